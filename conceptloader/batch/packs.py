"""Packs of pieces, by the kernel: for whoever looks at many packs without reading them."""

from collections.abc import Sequence

from conceptloader.blend import packing
from conceptloader.kernels.kernel import Array
from conceptloader.kernels.packing import make_room, pack_pieces


def pack_some(pieces: Sequence[packing.Piece], packs: int, rules: packing.Packing) -> Array:
    """blend.packing.pack, compiled: PIECE [n]. Raises what it raises."""
    room = make_room(len(pieces), rules.seq_len, rules.bins)
    for k, piece in enumerate(pieces):
        room.pieces[k] = (-1, -1, *piece)
    parts = pack_pieces(room, len(pieces), packs, packing.OVERFLOWS.index(rules.overflow))
    if parts < 0:
        packing.pack(pieces, packs, rules)
    return room.packed[:parts]
