"""The first rows of some inputs, placed as a build would place them: what most rows have wrong shows in seconds."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

from conceptloader.format.spec.options import BuildOptions
from conceptloader.format.write.build import create_writer
from conceptloader.ingest.build.plan import Piece
from conceptloader.ingest.build.shard import Progress, Rows, ShardJob, filler_of, read_piece
from conceptloader.ingest.records.inputs import Source

_BLOCKS = 32


@dataclass
class Trial:
    """done: what was placed, lost and skipped, with the stored bytes of input; written: bytes that it took on disk."""

    done: Progress
    written: int = 0


def try_rows(job: ShardJob, options: BuildOptions, rows: float | None = None) -> Trial:
    """Place the first block of rows of up to three inputs, in a directory that is removed again.

    Args:
        job: What a worker would be given; of its directory and shard nothing is read or written.
        options: Of the build.
        rows: Place about so many of the first rows of all inputs instead.

    Returns:
        What was placed, lost and, if the job skips bad records, skipped.

    Raises:
        BadRecord: A record cannot be ingested, unless the job skips them.
        InputError: A file cannot.
    """
    count = len(job.sources)
    numbers = sorted({0, count // 2, count - 1}) if rows is None else [*range(count)]
    trial = Trial(Progress())
    for number in numbers:
        with TemporaryDirectory() as directory:
            build = create_writer(directory, options)  # for the options; what is written is in one for each block
            for block, (some, consumed) in enumerate(read_piece(job, build, whole(job.sources, number))):
                if rows is None and block and (consumed or block == _BLOCKS):
                    break  # what was decompressed for the first block is at an end
                trial.done.add(_place(job, options, some, consumed, trial))
                if rows is not None and trial.done.documents + len(trial.done.bad) >= rows:
                    return trial
    return trial


def _place(job: ShardJob, options: BuildOptions, rows: Rows, consumed: int, trial: Trial) -> Progress:
    """One block, whose bytes are added to `trial`."""
    with TemporaryDirectory() as directory:
        with create_writer(directory, options).shard(0) as writer:
            done = filler_of(replace(job, directory=directory, shard=0), writer).add(rows, consumed)
        shard = f"{writer.name}."  # not what there is once: vocabularies, for instance
        trial.written += sum(file.stat().st_size for file in os.scandir(directory) if file.name.startswith(shard))
    return done


def whole(sources: Sequence[Source], number: int) -> Piece:
    """All of an input."""
    source = sources[number]
    if source.row_groups is not None:
        return Piece(number, 0, len(source.row_groups))
    return Piece(number, 0, 0 if source.whole else source.size)
