"""A source of tokens: what batch.plain asks of a dataset, so that something else can stand in for one."""

from collections.abc import Iterator
from typing import Any, Protocol

from conceptloader.format.read.values import Documents, Spans


class TokenSource(Protocol):
    """Tokens by position, with their documents and spans, as Dataset has them; see there for each method."""

    @property
    def files(self) -> Any: ...

    @property
    def tracks(self) -> Any: ...

    @property
    def tokenizer(self) -> Any: ...

    def read(self, start: int, stop: int) -> dict[str, Any]: ...

    def ahead(self, start: int, stop: int) -> Iterator[Any]: ...

    def documents_in(self, start: int, stop: int) -> Documents: ...

    def spans(self, track: str, start: int, stop: int) -> Spans: ...

    def file_of(self, kind: str, token: int) -> str: ...
