"""The first rows of some inputs, placed as a build would place them: what most rows have wrong shows in seconds."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from tempfile import TemporaryDirectory

from conceptloader.format.spec.options import BuildOptions
from conceptloader.format.write.build import create_writer
from conceptloader.ingest.build.plan import Piece
from conceptloader.ingest.build.shard import Progress, ShardJob, filler_of, read_piece
from conceptloader.ingest.records.inputs import Source


def try_rows(job: ShardJob, options: BuildOptions) -> Progress:
    """Place the first block of rows of up to three inputs, in a directory that is removed again.

    Args:
        job: What a worker would be given; of its directory and shard nothing is read or written.
        options: Of the build.

    Returns:
        What was placed, lost and, if the job skips bad records, skipped.

    Raises:
        BadRecord: A record cannot be ingested, unless the job skips them.
        InputError: A file cannot.
    """
    count = len(job.sources)
    numbers = sorted({0, count // 2, count - 1})
    done = Progress()
    with TemporaryDirectory() as directory:
        build = create_writer(directory, options)
        job = replace(job, directory=directory, shard=0)
        with build.shard(0) as writer:
            filler = filler_of(job, writer)
            for number in numbers:
                for rows, _ in islice(read_piece(job, build, whole(job.sources, number)), 1):
                    done.add(filler.add(rows))
    return done


def whole(sources: Sequence[Source], number: int) -> Piece:
    """All of an input."""
    source = sources[number]
    if source.row_groups is not None:
        return Piece(number, 0, len(source.row_groups))
    return Piece(number, 0, 0 if source.whole else source.size)
