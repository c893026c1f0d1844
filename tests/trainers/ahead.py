"""Something between a loader and a trainer that reads ahead, as device prefetchers do."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class Ahead:
    """Reads two batches ahead."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        waiting: deque[Any] = deque()
        for batch in self.batches:
            waiting.append(batch)
            if len(waiting) > 2:
                yield waiting.popleft()
        yield from waiting
