"""Every error a user can meet. One family, a few kinds, so that `except ConceptloaderError` catches them all.

A message says four things: what and where (file, key or argument), what was found, what was expected, what to do.
"""

from conceptloader.base.terminal import masked, printable


class ConceptloaderError(Exception):
    """Base of all errors raised on purpose by conceptloader. Messages quote files of others: as text they hold no
    character that a terminal obeys, and of a URL no password."""

    def __str__(self) -> str:
        return masked(printable(super().__str__(), keep="\n"))


class ConfigError(ConceptloaderError, ValueError):
    """A configuration value or an argument breaks a rule."""


class MissingPackageError(ConfigError, ImportError):
    """A package that is not installed is needed; the message has the line that installs it."""


class KernelsError(ConceptloaderError, ImportError):
    """The library of compiled kernels is missing, damaged, of other sources, or for another processor."""


class FormatError(ConceptloaderError, ValueError):
    """Bytes on disk are not what the format or the manifest promises."""


class InputError(ConceptloaderError, ValueError):
    """Raw input to a build (a document, a span, a tokenizer) cannot be ingested."""


class ReadError(ConceptloaderError, OSError):
    """The operating system failed to read or write; the message names file and offset."""


class ResumeError(ConceptloaderError, ValueError):
    """A resumed run would see other samples than those the checkpoint was trained on."""


class EndlessError(ConceptloaderError, TypeError):
    """A loader without an end was asked for its length. A TypeError, which is what `len` means by "has none"."""
