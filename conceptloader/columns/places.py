"""Which tokens of which shard the rows of a batch hold: the order's inverse, by the sample indices of the batch."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.blend import Blend, present
from conceptloader.format.read.bulk import ragged
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.trace.ranges import Member, by_value, ranges_of

At = Literal["labels", "inputs"]


class Pieces(NamedTuple):
    """Tokens [first, end) of a shard, each piece in one row of a batch, from position `place` on. int64 [n] each."""

    row: Ints
    place: Ints
    shard: Ints
    first: Ints
    end: Ints

    def where(self, known: NDArray[np.bool_]) -> "Pieces":
        """What is `known`, bool [B, S]."""
        if known.all():
            return self
        lengths = self.end - self.first
        which, offsets = np.repeat(np.arange(len(lengths)), lengths), offsets_of(lengths)
        kept = known.reshape(-1)[ragged(self.row * known.shape[1] + self.place, lengths)]
        follows = np.append(False, (which[1:] == which[:-1]) & kept[:-1])[: len(kept)]
        begins = np.flatnonzero(kept & ~follows)
        ends = np.flatnonzero(kept & ~np.append(follows[1:] & kept[1:], False)[: len(kept)]) + 1
        row, place, shard, first, _ = (column[which[begins]] for column in self)
        shift = begins - offsets[which[begins]]
        return Pieces(row, place + shift, shard, first + shift, first + shift + ends - begins)


def pieces_of(blend: Blend, samples: Ints, at: At, wanted: Callable[[Dataset], bool]) -> tuple[Pieces, int]:
    """The tokens that are labels, or inputs, of samples, by the shards of the dataset that has the files.

    Only of members whose dataset is `wanted`. Padding, and what is excluded, belongs to no token. A label whose input
    was taken out is omitted too: it was predicted from nothing.

    Returns: and how many samples are of other datasets.
    """
    members, _, windows = blend.order.sample_many(samples)
    found, others = [np.zeros((5, 0), np.int64)], 0
    for index, rows in by_value(members):
        view = present(blend.views, index)
        if not wanted(view.dataset):
            others += len(rows)
            continue
        seq_len = view.member.seq_len or blend.config.needed_seq_len
        parts = ranges_of(Member(view=view, seq_len=seq_len), windows[rows].astype(np.int64))
        parts = parts.take(parts.since > samples[rows[parts.row]]).joined()
        start, stop = parts.start, parts.start + parts.inputs
        if at == "labels":
            start, stop = parts.start + 1, parts.stop
        some = np.flatnonzero(start < stop)
        start, stop, row, place = start[some], stop[some], rows[parts.row[some]], parts.place[some]
        cut = view.dataset.cut(start, stop)
        begins = place[cut.row] + cut.first + cut.base - start[cut.row]
        found.append(np.stack([row[cut.row], begins, cut.shard, cut.first, cut.end]))
    return Pieces(*np.concatenate(found, 1)), others
