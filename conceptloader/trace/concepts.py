"""Which windows hold tokens with a concept. No index by concept exists: the track is read once, in large pieces."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.lookup import read_items
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import OFFSET
from conceptloader.trace.run import Member

_CHUNK_RECORDS = 1 << 16

Bools = npt.NDArray[np.bool_]


def concept_windows(member: Member, track: str, concept: int) -> Iterator[tuple[int, int, int]]:
    """(window, inputs, labels) for each window, document or pack with such tokens, in order; they count them.

    track: of codec "concepts". The last token of a window is a label only, the first one an input only.
    """
    dataset, count = member.dataset, member.view.count
    having = [_records_with(dataset, shard, track, concept) for shard in range(dataset.num_shards)]
    for low in range(0, count, member.together):
        windows = range(low, min(low + member.together, count))
        parts = [(window - low, part) for window in windows for part in member.parts(window)]
        if not parts:
            continue
        holder, begin, end, inputs = np.array([(k, p.start, p.stop, p.inputs) for k, p in parts], np.int64).T
        up_to = _counter(dataset, track, having, int(begin.min()), int(end.max()))
        found = np.zeros((2, len(windows)), np.int64)
        np.add.at(found[0], holder, up_to(begin + inputs) - up_to(begin))
        np.add.at(found[1], holder, up_to(end) - up_to(np.minimum(begin + 1, end)))
        for k in np.flatnonzero(found.any(0)).tolist():
            yield windows[k], int(found[0, k]), int(found[1, k])


def _counter(dataset: Dataset, track: str, having: Sequence[Bools], first: int, last: int) -> Callable[[Ints], Ints]:
    """How many tokens of [first, each position) belong to certain records: having[shard] says to which."""
    starts, lengths = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]  # an empty run, so that there is one
    for shard, a, b, base in dataset.parts(first, last):
        if having[shard].any():
            start, end, _, _, record = dataset.reader.runs(shard, track, a, b)
            chosen = having[shard][record]
            starts.append(start[chosen] + base)
            lengths.append((end - start)[chosen])
    start, length = np.concatenate(starts), np.concatenate(lengths)
    before = np.cumsum(length) - length

    def up_to(tokens: Ints) -> Ints:
        k = np.searchsorted(start, tokens, side="right") - 1
        counted: Ints = before[k] + np.minimum(tokens - start[k], length[k])
        return counted

    return up_to


def _records_with(dataset: Dataset, shard: int, track: str, concept: int) -> Bools:
    """Which records of a shard hold a concept: bool [records]."""
    count = int(dataset.manifest.shards.tracks[track].records[shard])
    found = np.zeros(count, np.bool_)
    for low in range(0, count, _CHUNK_RECORDS):
        number = min(_CHUNK_RECORDS, count - low)
        offsets = read_items(dataset.files, f"{track}.index", shard, OFFSET, low, low + number + 1)
        begin, end = int(offsets[0]), int(offsets[-1])
        values = np.frombuffer(dataset.files.read(f"{track}.data", shard, begin, end - begin), "<u4")
        hits = np.flatnonzero(values == concept) * 4 + begin
        found[low + np.searchsorted(offsets.astype(np.int64), hits, side="right") - 1] = True
    return found
