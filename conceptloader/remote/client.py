"""What makes the requests for objects: ranges, sizes and versions, one attempt each."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conceptloader.errors import ReadError
from conceptloader.storage.objects import Allows, Part


class Client:
    """Of one host, bucket or container.

    Raises: ReadError, with an errno that tells what may pass (EIO) from what does not (ENOENT, EACCES); FormatError for
    a redirect that is not allowed.
    """

    errors: Any = Exception  # what the library below raises

    def get(self, url: str, offset: int, size: int, allows: Allows) -> Part:
        """See Objects."""
        raise NotImplementedError

    def explain(self, error: Exception) -> tuple[int, str]:
        """An errno for an error of the library, and what to do."""
        raise NotImplementedError

    @contextmanager
    def named(self, url: str, offset: int) -> Iterator[None]:
        """Errors of the library as ReadErrors."""
        try:
            yield
        except self.errors as error:
            number, remedy = self.explain(error)
            message = f"cannot be read at offset {offset}: {first_line(error)}"
            raise ReadError(url, message, fix=remedy, errno=number) from error


def first_line(error: Exception) -> str:
    """The first line of a store's message says it; the rest are its own internals."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
