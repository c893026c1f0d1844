"""Every error a user can meet. One family, a few kinds, so that `except ConceptloaderError` catches them all.

Every error has the same four parts, and the sentence is made of them here alone: where (`path`: file, line, key or
argument), what was `found`, what was `expected`, and the `fix`. Programs and tests read the parts and the `code`;
the wording may change.
"""

from copy import copy
from errno import EMFILE, ENFILE
from typing import Any, ClassVar, TypeVar

from conceptloader.base.terminal import masked, printable

__all__ = [
    "ConceptloaderError", "ConfigError", "FormatError", "InputError", "MissingPackageError", "ReadError", "ResumeError",
    "UnboundedLoaderError",
]  # fmt: skip

E = TypeVar("E", bound="ConceptloaderError")


class ConceptloaderError(Exception):
    """Base of all errors raised on purpose by conceptloader.

    Attributes:
        path: where: a file (with line or byte), the path of a key, or an argument.
        found: what was there. With nothing `expected`, what happened.
        expected: what should have been there; may be empty.
        fix: what to do about it; may be empty.
        code: a short name of the kind of error, or of this very error where callers tell it from others of its kind.

    `found` may be any value; text is shown as it is, anything else by its repr. As text an error holds no character
    that a terminal obeys, and of a URL no password: messages quote files of others.
    """

    CODE: ClassVar[str] = "conceptloader"

    def __init__(
        self, path: object = "", found: object = "", expected: str = "", fix: str = "", *, code: str = ""
    ) -> None:
        self._set(str(path), found if isinstance(found, str) else repr(found), expected, fix)
        self.code = code or self.CODE

    def _set(self, path: str, found: str, expected: str, fix: str) -> None:
        self.path, self.found, self.expected, self.fix = path, found, expected, fix
        self.args = (path, found, expected, fix)

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles: kinds have constructors of their own."""
        return _blank, (type(self),), {**vars(self), "path": self.path, "args": self.args}  # path: ImportError keeps it

    def within(self: E, place: object, joint: str = ": ") -> E:
        """This error, its path led in by `place`: the file of a key, the dataset of a file.

        A copy: several threads may have been given this one.
        """
        error = copy(self)
        error._set(f"{place}{joint}{self.path}" if self.path else str(place), self.found, self.expected, self.fix)
        return error

    @classmethod
    def saying(cls: type[E], path: object, text: str) -> E:
        """The error at `path` that a sentence of this form says, cut into its parts; other text is what happened."""
        head, cut, rest = text.rpartition(", expected ")
        place, mark, found = ("", "found ", head[6:]) if head.startswith("found ") else head.partition(": found ")
        if not cut or not mark:
            return cls(path, text)
        expected, _, fix = rest.partition("; ")
        return cls(": ".join(part for part in (str(path), place) if part), found, expected, fix)

    def __str__(self) -> str:
        what = f"found {self.found}, expected {self.expected}" if self.expected else self.found
        text = "; ".join(part for part in (what, self.fix) if part)
        return masked(printable(": ".join(part for part in (self.path, text) if part), keep="\n"))


def _blank(kind: type[E]) -> E:
    return kind.__new__(kind)


class ConfigError(ConceptloaderError, ValueError):
    """A configuration value or an argument breaks a rule."""

    CODE = "config"


class MissingPackageError(ConfigError, ImportError):  # type: ignore[misc]  # path: ours is never None
    """A package that is not installed is needed; `fix` has the line that installs it."""

    CODE = "package"


class KernelsError(ConceptloaderError, ImportError):  # type: ignore[misc]
    """The library of compiled kernels is missing, corrupt, of other sources, or for another processor."""

    CODE = "kernels"


class FormatError(ConceptloaderError, ValueError):
    """Bytes on disk are not what the format or the manifest promises."""

    CODE = "format"


class InputError(ConceptloaderError, ValueError):
    """Raw input to a build (a document, a span, a tokenizer) cannot be ingested."""

    CODE = "input"


def remedy(error: OSError, usual: str) -> str:
    """What to do about an error of the system: as usual, unless the file is not to blame."""
    full = error.errno in (EMFILE, ENFILE)
    return "raise the limit of open files: `ulimit -n 65536`, or in /etc/security/limits.conf" if full else usual


class ReadError(ConceptloaderError, OSError):
    """The operating system failed to read or write; `path` names file and offset, `errno` is the system's."""

    CODE = "read"

    def __init__(
        self,
        path: object = "",
        found: object = "",
        expected: str = "",
        fix: str = "",
        *,
        code: str = "",
        errno: int | None = None,
    ) -> None:
        super().__init__(path, found, expected, remedy(OSError(errno, ""), fix), code=code)
        self.errno = errno

    def __reduce__(self) -> tuple[Any, ...]:
        blank, kind, state = super().__reduce__()
        return blank, kind, {**state, "errno": self.errno}  # of OSError, and so not among our own


class ResumeError(ConceptloaderError, ValueError):
    """A resumed run would see other samples than those the checkpoint was trained on."""

    CODE = "resume"


class UnboundedLoaderError(ConceptloaderError, TypeError):
    """A loader without an end was asked for its length. A TypeError, which is what `len` means by "has none"."""

    CODE = "endless"
