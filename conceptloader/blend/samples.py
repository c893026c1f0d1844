"""Which tokens a sample of a view reads, where it has them, and whether it may read them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from conceptloader.blend import View
from conceptloader.blend.mask import NEVER
from conceptloader.errors import ConfigError


class Part(NamedTuple):
    """Tokens [start, stop) of the dataset, in a sample's inputs from `place` on.

    The first `inputs` of them are inputs, and all but the first are labels, from `place` on too. document: its number,
    -1 where a part is a window of many. since: the sample of the run from which on it must not be read and gives no
    loss, as in Mask. goes_on: 1 for a piece of a part, not its first: then the first token is a label too.
    """

    start: int
    stop: int
    inputs: int
    place: int = 0
    document: int = -1
    since: int = NEVER
    goes_on: int = 0

    def positions(self, start: int, stop: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Where tokens [start, stop) of the dataset stand in the inputs and in the labels; None where they do not."""
        low, high = max(start, self.start) - self.start, min(stop, self.stop) - self.start
        inputs, labels = (low, min(high, self.inputs)), (max(low - 1, -self.goes_on), high - 1)
        moved = [(a + self.place, b + self.place) if a < b else None for a, b in (inputs, labels)]
        return moved[0], moved[1]


def present(views: Sequence[View | None], member: int) -> View:
    """views[member]. Raises ConfigError if that member of the order has left the configuration."""
    view = views[member]
    if view is None:
        raise ConfigError(
            "datasets",
            f"member {member} of the order is not in the configuration, but a sample before it left is asked for",
            fix="put its dataset back",
        )
    return view


def by_document(view: View) -> bool:
    """Whether a sample is a document, not a window or a pack."""
    return view.member.seq_len is None


def kind_of(view: View) -> str:
    """What a sample of a view is called."""
    return "document" if by_document(view) else "pack" if view.packs is not None else "window"


def parts_of(view: View, number: int, seq_len: int) -> list[Part]:
    """What sample `number` is made of.

    It is a window of seq_len + 1 tokens, at most as many of a document, or a pack's parts. None for a document in a
    shard that is never read, its document table included.
    """
    if view.packs is not None:
        parts = view.packs.parts(number)
        found = [Part(p.start, min(p.start + p.tokens + 1, p.end), p.tokens, p.place, p.document) for p in parts]
    elif not by_document(view):
        start = view.start + number * seq_len
        found = [Part(start, start + seq_len + 1, seq_len)]
    elif len(view.mask.at) and in_closed_shard(view, number):
        found = []
    else:
        start, stop = view.dataset.document_range(view.start + number)
        stop = min(stop, start + seq_len + 1)
        found = [Part(start, stop, min(stop - start, seq_len), 0, view.start + number)]
    if not len(view.mask.at):
        return found
    return [p._replace(since=view.mask.since(p.start, p.stop)) for p in found]


def pieces_of(view: View, parts: Sequence[Part]) -> list[Part]:
    """Parts of a sample, cut into what is taken out of them alone, with the sample `since` which that is so."""
    if not len(view.holes.own.at):
        return list(parts)
    start, stop = np.array([(part.start, part.stop) for part in parts], np.int64).reshape(-1, 2).T
    found = []
    for which, first, end, at in zip(*(column.tolist() for column in view.holes.own.pieces(start, stop)), strict=True):
        part = parts[which]
        shift, since = first - part.start, min(part.since, at)
        inputs = min(max(part.inputs - shift, 0), end - first)
        found.append(Part(first, end, inputs, part.place + shift, part.document, since, int(shift > 0)))
    return found


def joined(pieces: Iterable[Part]) -> list[Part]:
    """Pieces, in order, where nothing was taken out between two of them as one."""
    found: list[Part] = []
    for piece in pieces:
        if piece.goes_on and found and found[-1].stop == piece.start:
            found[-1] = found[-1]._replace(stop=piece.stop, inputs=found[-1].inputs + piece.inputs)
        else:
            found.append(piece)
    return found


def in_closed_shard(view: View, numbers: Any) -> Any:
    """Whether a document of a view, or each of many, is in a shard that is never read, its table too."""
    shards = np.searchsorted(view.dataset.first_documents, view.start + numbers, side="right") - 1
    return view.mask.closed(view.dataset)[shards]
