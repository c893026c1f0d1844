"""Which tokens of which shard the rows of a batch hold: the order's inverse, by the sample indices of the batch."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.config import Blend, present
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
        lengths = self.end - self.first
        which, begins = np.repeat(np.arange(len(lengths)), lengths), offsets_of(lengths)[:-1]
        shift = np.arange(len(which)) - begins[which]
        kept = np.flatnonzero(known.reshape(-1)[ragged(self.row * known.shape[1] + self.place, lengths)])
        # Of what is kept, where a token does not follow the one before in its piece.
        new = np.flatnonzero(np.append(True, (np.diff(kept) != 1) | (np.diff(which[kept]) != 0))[: len(kept)])
        row, place, shard, first, _ = (column[which[kept[new]]] for column in self)
        moved, count = shift[kept[new]], np.diff(np.append(new, len(kept)))
        return Pieces(row, place + moved, shard, first + moved, first + moved + count)


def pieces_of(blend: Blend, samples: Ints, at: At, wanted: Callable[[Dataset], bool]) -> Pieces:
    """The tokens that are labels, or inputs, of samples, by the shards of the dataset that has the files.

    Only of members whose dataset is `wanted`. Padding, and what is excluded, belongs to no token. A label whose input
    was taken out is omitted too: it was predicted from nothing.
    """
    members, _, windows = blend.order.sample_many(samples)
    found = [np.zeros((5, 0), np.int64)]
    for index, rows in by_value(members):
        view = present(blend.views, index)
        if not wanted(view.dataset):
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
    return Pieces(*np.concatenate(found, 1))
