"""The first rows of some inputs, placed as a build would: what there will be, and what most rows have wrong."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any

from conceptloader.format.write.build import create_writer
from conceptloader.ingest.build.builder import format_options
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.build.plan import Piece, piece_bytes
from conceptloader.ingest.build.shard import Progress, ShardFiller, ShardJob, read_piece
from conceptloader.ingest.records.inputs import Source

_TRIED = 1 << 18  # stored bytes of each


@dataclass(frozen=True)
class Room:
    """What a build will need, by its first rows: documents, tokens, bytes; and how many bytes are free in `path`."""

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
            f"{self.path}: about {self.documents:,} documents, {self.tokens:,} tokens and {self.bytes / 1e6:,.1f} MB "
            f"to write, by the first rows; {self.free / 1e6:,.1f} MB are free: {fate}"
        )


def estimate(
    sources: Sequence[Source], out: str | os.PathLike[str], options: Options, skip_bad: bool
) -> tuple[Room, Progress]:
    """What `build_dataset` will need, by the first rows of up to three inputs, and what was found in these.

    `out` is not written to. Raises: ConfigError, InputError, as it does for the rows that are tried.
    """
    options = options.resolved(sources, strict=not skip_bad)
    job, made = ShardJob(sources=sources, options=options, skip_bad=skip_bad), format_options(options)
    whole = [Piece(k, 0, len(one.row_groups or ()) or (0 if one.whole else one.size)) for k, one in enumerate(sources)]
    tried, written, last = Progress(), 0, len(sources) - 1
    for number in sorted({0, (last + 1) // 2, last}):
        with TemporaryDirectory() as directory:
            build, end = create_writer(directory, made), tried.bytes + _TRIED
            for rows, consumed in read_piece(job, build, whole[number]):
                if consumed and tried.bytes >= end:  # and what was decompressed with these bytes is at an end
                    break
                with build.shard(0) as writer:
                    tried.add(ShardFiller(job, writer).add(rows, consumed))
                    written += writer.weigh()
    total = sum(map(piece_bytes, sources, whole))
    documents, tokens, size = (round(total / max(1, tried.bytes) * n) for n in (tried.documents, tried.tokens, written))
    path = home = os.path.abspath(out)
    while not os.path.isdir(home):
        home = os.path.dirname(home)
    return Room(path, documents, tokens, size, shutil.disk_usage(home).free), tried
