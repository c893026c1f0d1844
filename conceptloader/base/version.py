"""The version of the package, and where its pages are: the one place for both."""

__version__ = "0.5.0.dev0"
PAGES = f"https://example.org/conceptloader/blob/{'main' if '.dev' in __version__ else f'v{__version__}'}/docs"
"""For messages and help: an installed package has no docs/."""
