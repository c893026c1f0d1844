"""Kernels: which parts of documents make a pack. The compiled twin of blend/packing.py."""

from typing import Any

import numpy as np

from conceptloader.base.compiled import inner, kernel
from conceptloader.batch.kernels.native import DAMAGED, MORE, OK, Code
from conceptloader.batch.kernels.records import PART, REFUSE, SPLIT, Call, Piece, Room
from conceptloader.batch.layout import Array


def make_room(pieces: int, seq_len: int, bins: int) -> Room:
    """For so many pieces."""
    return Room(
        pieces=np.empty(pieces, PART),
        parts=np.empty(pieces + bins, PART),
        order=np.empty(pieces, np.int64),
        tally=np.empty(seq_len + 1, np.int64),
        rooms=np.empty(bins, np.int64),
    )


@inner
def add_pieces(call: Call, piece: Piece, number: int, first: int, end: int) -> Code:
    """What begins within `piece`, of a document of tokens [first, end) of the shard: pieces of seq_len, and a rest.

    piece.sample is the number of the member, not of a sample.
    """
    state, base, overflow = call.state[0], call.shards[piece.row].base, call.members[piece.sample].overflow
    pieces, size = call.room.pieces, call.arrays[0].seq_len
    if overflow == REFUSE and end - first > size:
        return DAMAGED
    at = first + max(0, -(-(piece.start - first) // size)) * size
    while at < min(end, piece.stop):
        if at == first or overflow == SPLIT:
            if state.pieces == len(pieces):
                return MORE
            new = pieces[state.pieces]
            new.start = base + at
            new.tokens = min(size, end - at)
            new.end = base + end
            new.document = number
            state.pieces += 1
        at += size
    return OK


@inner
def sort_pieces(room: Room, count: int) -> None:
    """`order`: the first `count` pieces, the longest first, equal ones as they come; a counting sort."""
    tally, size = room.tally, len(room.tally) - 1
    for i in range(len(tally)):
        tally[i] = 0
    for k in range(count):
        tally[size - room.pieces[k].tokens + 1] += 1
    for i in range(1, size):
        tally[i] += tally[i - 1]
    for k in range(count):
        slot = size - room.pieces[k].tokens
        room.order[tally[slot]] = k
        tally[slot] += 1


@inner
def put(room: Room, rooms: Array, at: int, piece: Any, part: Any) -> None:
    """Part of a piece, which has its start and its tokens, into the pack whose room is rooms[at].

    rooms: room left * packs + number of the pack, for each pack of the block, rising.
    """
    packs, size, key = len(rooms), len(room.tally) - 1, rooms[at]
    part.bin = key % packs
    part.place = size - key // packs
    part.end = piece.end
    part.document = piece.document
    key -= part.tokens * packs
    while at > 0 and rooms[at - 1] > key:
        rooms[at] = rooms[at - 1]
        at -= 1
    rooms[at] = key


@inner
def pack_pieces(room: Room, count: int, packs: int, overflow: int) -> int:
    """Pack the first `count` pieces. Returns: how many parts there are; -1 for a piece that is refused, or that fits
    nowhere since the documents are not those for which the packs were counted."""
    rooms, size = room.rooms[:packs], len(room.tally) - 1
    sort_pieces(room, count)
    for b in range(packs):
        rooms[b] = size * packs + b
    left = parts = 0
    for k in range(count):
        piece = room.pieces[room.order[k]]
        low, high = 0, packs
        while low < high:
            middle = (low + high) // 2
            if rooms[middle] < piece.tokens * packs:
                low = middle + 1
            else:
                high = middle
        if low < packs:
            part = room.parts[parts]
            part.start = piece.start
            part.tokens = piece.tokens
            put(room, rooms, low, piece, part)
            parts += 1
        elif overflow == REFUSE:
            return -1
        else:
            room.order[left] = room.order[k]
            left += 1
    for k in range(left):
        piece = room.pieces[room.order[k]]
        start, stop = piece.start, piece.start + piece.tokens
        while start < stop:
            part = room.parts[parts]
            part.start = start
            part.tokens = min(stop - start, rooms[packs - 1] // packs)
            if part.tokens == 0:
                return -1
            start = start + part.tokens if overflow == SPLIT else stop
            put(room, rooms, packs - 1, piece, part)
            parts += 1
    return parts


@kernel
def pack_block(room: Room, count: int, packs: int, overflow: int) -> int:
    """pack_pieces, for who is not a kernel."""
    return pack_pieces(room, count, packs, overflow)
