"""How much room a build will take on its disk, by a trial of some rows, and whether that is free."""

import os
import shutil
from dataclasses import asdict, dataclass
from typing import Any

from conceptloader.errors import ReadError
from conceptloader.ingest.build.trial import Trial

_AMPLE = 64  # times the input, of which no dataset takes as much


@dataclass(frozen=True)
class Room:
    """What a build will need, by some of its rows: documents, tokens, bytes; and how many bytes are free in `path`."""

    path: str
    documents: int
    tokens: int
    bytes: int
    free: int

    @property
    def enough(self) -> bool:
        return self.bytes <= self.free

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "enough": self.enough}

    def line(self) -> str:
        fate = "enough" if self.enough else "not enough"
        return (
            f"{self.path}: about {self.documents:,} documents, {self.tokens:,} tokens and {_shown(self.bytes)} to "
            f"write, by some of the rows; {_shown(self.free)} are free: {fate}"
        )

    def check(self) -> None:
        """Raises: ReadError if that is not enough."""
        if not self.enough:
            raise ReadError(
                self.path,
                f"{_shown(self.free)} free",
                f"about {_shown(self.bytes)} for the dataset, by some of the rows",
                "make room, or pass --out on another disk; no shard was begun",
            )


def is_ample(path: str, total: int) -> bool:
    """Whether so much is free that a build of `total` bytes of input needs no trial to know that it fits."""
    return _free(path) > _AMPLE * total


def room_of(path: str, trial: Trial, total: int) -> Room:
    """For a build in `path` of `total` bytes of input, of which a trial took some."""
    parts = total / max(1, sum(part.done.bytes * times for part, times in trial.parts))
    documents, tokens, written = (
        round(parts * sum(count * times for count, times in counts))
        for counts in zip(
            *(((p.done.documents, times), (p.done.tokens, times), (p.written, times)) for p, times in trial.parts),
            strict=True,
        )
    )
    return Room(path, documents, tokens, written, _free(path))


def _free(path: str) -> int:
    """Of the disk that a directory is on, or will be."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def _shown(count: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"
