"""The version of the package: the one place for it."""

__version__ = "0.2.0"
