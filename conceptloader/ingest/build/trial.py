"""Some rows of some inputs, placed as a build would place them: what most rows have wrong shows in seconds."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from tempfile import TemporaryDirectory

from conceptloader.format.spec.options import BuildOptions
from conceptloader.format.write.build import Build, create_writer
from conceptloader.ingest.build.doubled import Doubled
from conceptloader.ingest.build.plan import Piece, piece_bytes
from conceptloader.ingest.build.shard import Progress, Rows, ShardFiller, ShardJob, read_piece
from conceptloader.ingest.records.inputs import Source

_BLOCKS = 32


_PLACES, _WIDTH = 15, 1 << 18  # of an input after its first block, and the bytes that are read at each


@dataclass
class Trial:
    """done: what was placed, lost and skipped, with the stored bytes of input; written: bytes that it took on disk.

    parts: of inputs, with how many times each is there by its size; the first block of an input stands for itself.
    """

    done: Progress = field(default_factory=Progress)
    written: int = 0
    parts: list[tuple["Trial", float]] = field(default_factory=list)

    def add(self, part: "Trial", times: float) -> None:
        self.done.add(part.done)
        self.written += part.written
        self.parts.append((part, times))


def try_rows(job: ShardJob, options: BuildOptions) -> Trial:
    """Place the first block of rows of up to three inputs and rows of later places, in directories that are removed.

    Args:
        job: What a worker would be given; of its directory and shard nothing is read or written.
        options: Of the build.

    Returns:
        What was placed, lost and, if the job skips bad records, skipped.

    Raises:
        BadRecord: A record cannot be ingested, unless the job skips them.
        InputError: A file cannot, or most of the first documents have what the job asks for.
    """
    last = len(job.sources) - 1
    trial, doubled = Trial(), Doubled(job.options.asked)
    for number in sorted({0, (last + 1) // 2, last}):
        piece = whole(job.sources, number)
        with TemporaryDirectory() as directory:
            build = create_writer(directory, options)
            place = partial(_place, job, build, doubled)
            first, begun = Trial(), 0
            for block, (some, consumed) in enumerate(read_piece(job, build, piece)):
                if block and (consumed or block == _BLOCKS):
                    break  # what was decompressed for the first block is at an end
                begun = max(some.numbers, default=0) + 1  # blank lines have none
                place(some, consumed, first)
            left = piece_bytes(job.sources[number], piece) - first.done.bytes
            later = _later(job.sources[number], number, first.done.bytes)
            parts = [(_try_place(job, place, build, there, begun), count) for there, count in later.items()]
            parts = [(part, count) for part, count in parts if part.done.bytes]
            # Without later places, the first block stands for the whole input.
            trial.add(first, 1 if parts else 1 + left / max(1, first.done.bytes))
            for part, count in parts:
                trial.add(part, left * count / sum(count for _, count in parts) / part.done.bytes)
    doubled.check()
    return trial


def _later(source: Source, number: int, begin: int) -> Mapping[Piece, int]:
    """Parts of an input at equal distances after its first `begin` bytes, with how many of these are in each.

    None of an input that is read as a whole.
    """
    if source.row_groups is not None:
        ends = [*accumulate(source.row_groups)]
        places = (begin + (ends[-1] - begin) * (2 * k + 1) // (2 * _PLACES) for k in range(_PLACES))
        groups = (min(bisect_right(ends, at), len(ends) - 1) for at in places)
        return Counter(Piece(number, group, group + 1) for group in groups)
    if source.whole:
        return {}
    step = max(_WIDTH, -(-(source.size - begin) // _PLACES))
    return {Piece(number, at, min(at + _WIDTH, source.size)): 1 for at in range(begin, source.size, step)}


def _try_place(job: ShardJob, place: Callable[..., None], build: Build, piece: Piece, begun: int) -> Trial:
    """The lines of a part, or the first rows of a row group, if their numbers are from `begun`: others were tried."""
    lines, trial = job.sources[piece.source].row_groups is None, Trial()
    for some, consumed in read_piece(job, build, piece):
        if lines or some.numbers[0] >= begun:
            place(some, consumed, trial)
        if not lines:
            break
    if lines:  # also where none begins, as within a long document
        trial.done.bytes = piece.end - piece.begin
    return trial


def _place(job: ShardJob, build: Build, doubled: Doubled, rows: Rows, consumed: int, trial: Trial) -> None:
    """One block, which is added to `trial`, as a shard of `build` that is removed."""
    with build.shard(0) as writer:
        trial.done.add(ShardFiller(job, writer, doubled).add(rows, consumed))
        trial.written += writer.weigh()


def whole(sources: Sequence[Source], number: int) -> Piece:
    """All of an input."""
    source = sources[number]
    if source.row_groups is not None:
        return Piece(number, 0, len(source.row_groups))
    return Piece(number, 0, 0 if source.whole else source.size)
