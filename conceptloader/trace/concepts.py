"""Which windows hold tokens with a concept. No index by concept exists: the track is read once, in large pieces."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.lookup import read_items
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import OFFSET
from conceptloader.trace.run import Member

_CHUNK_TOKENS = 1 << 20
_CHUNK_RECORDS = 1 << 16

Bools = npt.NDArray[np.bool_]


def concept_windows(member: Member, track: str, concept: int) -> Iterator[tuple[int, int, int]]:
    """(window, inputs, labels) for each window with such tokens, in order; inputs and labels count them.

    track: of codec "concepts". The last token of a window is a label only, the first one an input only.
    """
    dataset, size, count = member.dataset, member.seq_len, member.view.count
    having = [_records_with(dataset, shard, track, concept) for shard in range(dataset.num_shards)]
    some = 1 if member.by_document else max(1, _CHUNK_TOKENS // size)
    for low in range(0, count, some):
        windows = range(low, min(low + some, count))
        begin, end = np.array([member.token_range(window) for window in windows], np.int64).T
        up_to = _counter(dataset, track, having, int(begin[0]), int(end[-1]))
        inputs = up_to(np.minimum(end, begin + size)) - up_to(begin)
        labels = up_to(end) - up_to(np.minimum(begin + 1, end))
        for k in np.flatnonzero(inputs + labels).tolist():
            yield windows[k], int(inputs[k]), int(labels[k])


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
        data, sizes = dataset.files.read(f"{track}.data", shard, begin, end - begin), np.diff(offsets).astype(np.int64)
        codec = dataset.tracks[track].concepts
        record = np.repeat(np.arange(number), sizes // codec.item)
        found[low + record[codec.all_ids(data, sizes) == concept]] = True
    return found
