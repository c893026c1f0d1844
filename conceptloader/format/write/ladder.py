"""The largest number of spans that any window of 2**k tokens touches, without looking at every window."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from conceptloader.format.read.bulk import read_items
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.files import Files
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import OFFSET
from conceptloader.format.spec.manifest import LADDER_STEPS, Manifest
from conceptloader.format.spec.paths import Roots

REACH = 1 << (LADDER_STEPS - 1)  # windows up to this many tokens are counted exactly
PIECE = 1 << 21  # tokens whose windows are counted at a time
_RECORDS = 1 << 19  # whose sizes are looked at at a time


class Ladder:
    """counts[k] for k = 0..20, over all runs seen so far.

    The shortest window that touches c consecutive runs goes from the last token of the first to the first token of
    the last: it has `start[j + c - 1] - end[j] + 2` tokens. So 2**k tokens can touch c runs if the minimum over j is
    at most 2**k, and the largest such c is found by doubling and halving, starting from what is known already.
    """

    def __init__(self) -> None:
        self.counts = [0] * LADDER_STEPS

    def add(self, starts: Ints, ends: Ints) -> None:
        """Count the runs [start, end), int64 [n] each, in order and disjoint. Overlapping calls are harmless."""
        n = len(starts)
        if n and ends[-1] - starts[0] < 1 << 31:  # half the time for half the bytes
            starts, ends = ((places - starts[0]).astype(np.int32) for places in (starts, ends))

        def fits(count: int, window: int) -> bool:
            if count == 1:
                return True
            return bool((starts[count - 1 :] - ends[: n - count + 1]).min() + 2 <= window)

        least = 0
        for k in range(LADDER_STEPS):
            low = max(least, self.counts[k])
            if low < n and fits(low + 1, 1 << k):
                low += 1
                high = 2 * low
                while high <= n and fits(high, 1 << k):
                    low, high = high, 2 * high
                high = min(high, n + 1)
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if fits(middle, 1 << k) else (low, middle)
            least = self.counts[k] = low


def with_border_windows(manifest: Manifest, roots: Roots, shards: Sequence[int] | None = None) -> Manifest:
    """The manifest with each track's max_spans raised to what windows across boundaries touch.

    shards: those with whose first token such a boundary lies, in order; by default all. Reads the files of the tracks
    within 2**20 tokens of each boundary.
    """
    tracks = {}
    with closing(Files(manifest, roots)) as files:
        ranges = Dataset(files)
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


def count_spans(ranges: Dataset, track: str) -> list[int]:
    """max_spans of a dataset or a view, as its files have it."""
    starts = range(0, ranges.num_tokens, PIECE)
    return list(map(max, zip(*(count_windows(ranges, track, start, start + PIECE) for start in starts), strict=True)))


def count_items(files: Files, track: str) -> int:
    """The largest number of concepts, or of numbers, in a record."""
    most, item = 0, files.item(track)
    for shard, records in enumerate(files.table.tracks[track].records.tolist()):
        for i in range(0, records, _RECORDS):
            stop = min(_RECORDS, records - i) + i + 1
            offsets = read_items(files, f"{track}.index", shard, OFFSET, i, stop).astype(np.int64)
            most = max(most, int(np.diff(offsets).max()) // item)
    return most


def count_windows(ranges: Dataset, track: str, start: int, stop: int) -> list[int]:
    """The ladder of the windows that begin with tokens [start, stop)."""
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _, first, end, _ in ranges.span_places(track, start, min(stop + REACH, ranges.num_tokens)):
        starts.append(first)
        ends.append(end)
    ladder = Ladder()
    ladder.add(np.concatenate(starts), np.concatenate(ends))
    return ladder.counts
