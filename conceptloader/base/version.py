"""The version of the package: the one place for it."""

__version__ = "0.4.0.dev0"
