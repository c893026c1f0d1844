"""Which tokens samples of a member read, where they have them, and from which sample on they may not."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.config import View
from conceptloader.config.mask import ALWAYS, NEVER
from conceptloader.errors import FormatError
from conceptloader.format.read.bulk import equal_pairs, gather, ragged
from conceptloader.format.read.concepts import Coverage
from conceptloader.format.read.dataset import Cut, Dataset
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints
from conceptloader.loader.batch.reader import BatchReader, boundaries

Bools = NDArray[np.bool_]
Interval = tuple[int, int]
_RANGES = 1 << 11  # looked up at once: their spans are in memory


class Part(NamedTuple):
    """Tokens [start, stop) of the dataset, in a sample's inputs from `place` on.

    The first `inputs` of them are inputs, and all but the first are labels, from `place` on too. since: the sample of
    the run from which on it must not be read and gives no loss, as in Mask. goes_on: 1 for a piece of a part, not its
    first: then the first token is a label too.
    """

    start: int
    stop: int
    inputs: int
    place: int
    since: int
    goes_on: int

    def positions(self, start: int, stop: int) -> tuple[Interval | None, Interval | None]:
        """Where tokens [start, stop) of the dataset stand in the inputs and in the labels; None where they do not."""
        low, high = max(start, self.start) - self.start, min(stop, self.stop) - self.start
        inputs, labels = (low, min(high, self.inputs)), (max(low - 1, -self.goes_on), high - 1)
        moved = [(a + self.place, b + self.place) if a < b else None for a, b in (inputs, labels)]
        return moved[0], moved[1]


def whole(start: int, stop: int) -> Part:
    """Tokens [start, stop) of a dataset as a sample of inputs alone."""
    return Part(start, stop, stop - start, 0, NEVER, 0)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of the order with what its samples read: windows or packs of seq_len inputs, or documents."""

    view: View
    seq_len: int

    @property
    def dataset(self) -> Dataset:
        return self.view.dataset

    @cached_property
    def reader(self) -> BatchReader:
        """Of this member alone, for its packs."""
        order: Any = None  # windows are given
        return BatchReader(order, [self.view], boundaries(self.seq_len))

    @property
    def kind(self) -> str:
        """What a sample is: window, document or pack."""
        return self.view.kind

    @property
    def tracks(self) -> tuple[str, ...]:
        """The tracks that the configuration names, or else all that hold concepts."""
        return self.view.tracks or tuple(self.dataset.concept_tracks)

    @property
    def by_document(self) -> bool:
        """Whether a sample is a document."""
        return self.view.by_document

    def token_range(self, window: int) -> Interval:
        """Tokens [start, stop) that a window or document reads; of a pack, from its first part to its last."""
        parts = self._ranges(window)
        return (int(parts.start.min()), int(parts.stop.max())) if len(parts.row) else (0, 0)

    def parts(self, window: int, sample: int = 0) -> list[Part]:
        """What a sample reads of the dataset; nothing of what is excluded, from this sample on or always."""
        parts = self._ranges(window)
        return parts.take(parts.since > sample).joined().parts()

    def _ranges(self, window: int) -> "Ranges":
        numbers = np.array([window])
        if self.by_document and len(self.view.mask.at):  # the table of documents may be what is damaged
            numbers = numbers[~self.view.closed(numbers)]
        return ranges_of(self, numbers)


class Ranges(NamedTuple):
    """Parts of samples: which sample, by its place among those that were asked for; the rest as in Part."""

    row: Ints
    start: Ints
    stop: Ints
    inputs: Ints
    place: Ints
    since: Ints
    goes_on: Ints

    def take(self, rows: Ints | Bools) -> "Ranges":
        """Some of them."""
        return Ranges(*(column[rows] for column in self))

    def joined(self) -> "Ranges":
        """Those between which nothing was taken out as one."""
        follows = (self.goes_on[1:] > 0) & (self.row[1:] == self.row[:-1]) & (self.start[1:] == self.stop[:-1])
        first = np.append(0, np.flatnonzero(~follows) + 1)[: len(self.row)]
        last = np.append(first[1:], len(self.row))[: len(first)] - 1
        return self.take(first)._replace(stop=self.stop[last], inputs=np.add.reduceat(self.inputs, first))

    def parts(self) -> list[Part]:
        """Each by itself."""
        return [Part(*values) for values in zip(*(column.tolist() for column in self[1:]), strict=True)]


def ranges_of(member: Member, samples: Ints) -> Ranges:
    """The parts of some samples of a member: one each, of a pack any number.

    They are cut where tokens are taken out of them alone.
    """
    view, size = member.view, member.seq_len
    row, place = np.arange(len(samples)), np.zeros(len(samples), np.int64)
    if view.packs is not None:
        row, start, stop, inputs, place = _parts_of_packs(member, samples)
    elif member.by_document:
        start, stop = document_ranges(member.dataset, view.start + samples)
        stop = np.minimum(stop, start + size + 1)
        inputs = np.minimum(stop - start, size)
    else:
        start = view.start + samples * size
        stop, inputs = start + size + 1, np.full(len(samples), size)
    since = view.mask.since(start, stop)
    if member.by_document and len(view.mask.at):
        since[view.closed(samples)] = ALWAYS
    parts = Ranges(row, start, stop, inputs, place, since, np.zeros_like(row))
    if not len(view.own.at):
        return parts
    which, first, end, at = view.own.pieces(start, stop)
    row, start, _, inputs, place, since, _ = parts.take(which)
    shift = first - start
    inputs = np.clip(inputs - shift, 0, end - first)
    return Ranges(row, first, end, inputs, place + shift, np.minimum(since, at), (shift > 0).astype(np.int64))


def _parts_of_packs(member: Member, samples: Ints) -> NDArray[np.int64]:
    """(row, start, stop, inputs, place) of the parts of packs."""
    blocks, bins = np.divmod(samples, _widths(member)[2])
    found = [np.zeros((5, 0), np.int64)]
    for block, some in by_value(blocks):
        parts = member.reader.packs(0, block)
        parts = parts[np.argsort(parts["bin"], kind="stable")]
        row, place = equal_pairs(bins[some], parts["bin"])
        mine = parts[place]
        stop = np.minimum(mine["start"] + mine["tokens"] + 1, mine["end"])
        found.append(np.stack([some[row], mine["start"], stop, mine["tokens"], mine["place"]]))
    return np.concatenate(found, 1)


def samples_touching(member: Member, start: Ints, end: Ints, low: int, high: int) -> Ints:
    """Samples in [low, high), ascending: all that have tokens of some intervals, also only as labels, and maybe others.

    start, end: of disjoint intervals in ascending order.
    """
    if member.by_document:
        return np.arange(low, high)
    width, reach, bins = _widths(member)
    first = np.maximum((start - member.view.start - reach) // width, low // bins)
    last = np.minimum((end - 1 - member.view.start) // width, (high - 1) // bins)
    first[1:] = np.maximum(first[1:], np.maximum.accumulate(last)[:-1] + 1)
    counts = np.maximum(last - first + 1, 0)
    samples: Ints = (ragged(first, counts)[:, None] * bins + np.arange(bins)).reshape(-1)
    return samples[samples < high]


class Holding(NamedTuple):
    """Parts of windows (documents, packs) that hold tokens: how many as inputs, as labels; since: as in Part."""

    windows: Ints
    inputs: Ints
    labels: Ints
    since: Ints


def held(member: Member, samples: Ints, start: Ints, end: Ints) -> Holding:
    """What some samples hold of the tokens of disjoint intervals, in order: each part that has any.

    The last token of a window is a label only, the first one an input only.
    """
    parts, before = ranges_of(member, samples), Coverage(start, end)
    inputs = before(parts.start + parts.inputs) - before(parts.start)
    labels = before(parts.stop) - before(np.minimum(parts.start + 1 - parts.goes_on, parts.stop))
    some = np.flatnonzero((parts.since > 0) & (inputs + labels > 0))
    return Holding(samples[parts.row[some]], inputs[some], labels[some], parts.since[some])


def runs_of_samples(member: Member, most: int, tokens: int) -> Iterator[tuple[int, int, int, int]]:
    """(low, high, first token, end) of runs of samples [low, high) that read about `most` tokens, all in there.

    tokens: about as many are read by the first run, by each of the others twice as many as before.
    """
    width, reach, bins = _widths(member)
    high, tokens = 0, min(tokens, most)
    while high < member.view.count:
        low = high
        high = min(low + max(1, tokens // member.seq_len // bins) * bins, member.view.count)
        tokens = min(2 * tokens, most)
        if member.by_document:
            read = np.arange(low, high)
            read = read[~member.view.closed(read)]  # which are in shards that are never read, nor are their tables
            ends = [member.token_range(number) for number in read[[0, -1]].tolist()] if len(read) else [(0, 0)]
            yield low, high, ends[0][0], ends[-1][1]
        else:
            base, last = member.view.start, -(-high // bins) * width + reach
            yield low, high, base + low // bins * width, min(base + last, member.dataset.num_tokens)


def _widths(member: Member) -> tuple[int, int, int]:
    """(tokens, tokens after them, samples): this number of samples reads what begins in this number of tokens."""
    packing = member.view.member.packing
    if packing is None:
        return member.seq_len, 1, 1
    return (packing.bins - 1) * member.seq_len, member.seq_len, packing.bins


def document_ranges(dataset: Dataset, documents: Ints) -> tuple[Ints, Ints]:
    """Tokens [start, stop) of many documents, by their numbers in the dataset."""
    if dataset.runs is not None:
        return dataset.runs.first[documents], dataset.runs.first[documents + 1]
    start, stop = np.empty_like(documents), np.empty_like(documents)
    for shard, chosen, ordinals in documents_by_shard(dataset, documents):
        pairs = gather(dataset.files, "documents.bin", shard, fmt.OFFSET, ordinals, ordinals + 2).astype(np.int64)
        base = dataset.shard_starts[shard]
        start[chosen], stop[chosen] = pairs[::2] + base, pairs[1::2] + base
    if (start > stop).any() or (stop > dataset.num_tokens).any():
        raise FormatError(
            dataset.path,
            "a document that ends before its start",
            "ends after their starts",
            "run `conceptloader verify`",
        )
    return start, stop


def documents_by_shard(dataset: Dataset, documents: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """(shard, places in `documents`, ordinals in the shard)."""
    known = np.flatnonzero(documents >= 0)
    for shard, some in by_value(
        np.searchsorted(dataset.manifest.shards.first_documents, documents[known], side="right") - 1
    ):
        yield shard, known[some], documents[known[some]] - dataset.first_documents[shard]


def ranges_by_shard(dataset: Dataset, start: Ints, stop: Ints) -> Iterator[tuple[int, Cut]]:
    """(shard, pieces) of token ranges, none empty, split where shards or a subset's runs begin; some at a time."""
    cut = dataset.cut(start, stop)
    for shard, some in by_value(cut.shard):
        for low in range(0, len(some), _RANGES):
            yield shard, Cut(*(column[some[low : low + _RANGES]] for column in cut))


def by_value(values: Ints) -> Iterator[tuple[int, Ints]]:
    """(value, its places) of each value in an array, ascending."""
    order = np.argsort(values, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
        if len(places):
            yield int(values[places[0]]), places
