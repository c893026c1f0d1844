"""Counting the spans in windows that cross borders, from the files near each border."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from conceptloader.format.read.files import Files
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.format.write.ladder import REACH, Ladder

PIECE = 1 << 21  # tokens whose windows are counted at a time


def with_border_windows(manifest: Manifest, roots: Roots, shards: Sequence[int] | None = None) -> Manifest:
    """The manifest with each track's max_spans raised to what windows across borders touch.

    shards: those with whose first token such a border lies, in order; by default all. Reads the files of the tracks
    within 2**20 tokens of each border.
    """
    tracks = {}
    with closing(Files(manifest, roots)) as files:
        ranges = Ranges(manifest, files, False, None)
        regions: list[tuple[int, int]] = []  # of the first tokens of windows
        for shard in range(len(manifest.shards)) if shards is None else shards:
            border = ranges.shard_starts[shard]
            joins = regions and border - REACH <= regions[-1][1]
            regions.append((regions.pop()[0] if joins else max(border - REACH, 0), border))
        for name, track in manifest.tracks.items():
            counts = track.max_spans
            for start, stop in regions:
                for i in range(start, stop, PIECE):
                    counts = tuple(map(max, counts, count_windows(ranges, name, i, min(i + PIECE, stop))))
            tracks[name] = replace(track, max_spans=counts)
    return replace(manifest, tracks=tracks)


def count_windows(ranges: Ranges, track: str, start: int, stop: int) -> list[int]:
    """The ladder of the windows that begin with tokens [start, stop)."""
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for shard, a, b, base in ranges.parts(start, min(stop + REACH, ranges.num_tokens)):
        first, end, *_ = ranges.reader.runs(shard, track, a, b)
        starts.append(first + base)
        ends.append(end + base)
    ladder = Ladder()
    ladder.add(np.concatenate(starts), np.concatenate(ends))
    return ladder.counts
