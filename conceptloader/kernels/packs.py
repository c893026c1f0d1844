"""Kernels: packs of documents, into the arrays of a batch. The compiled twin of blend/packing.py is pack_pieces.

A batch has packs alone, or none; what is not about packs is in fill.py.
"""

from typing import Any

import numpy as np

from conceptloader.kernels.fill import NO_DOCUMENT, blank_row, fill_piece, ignore_labels
from conceptloader.kernels.items import PIECES, walk_items
from conceptloader.kernels.kernel import Array, inner, kernel
from conceptloader.kernels.records import (
    ABSENT_MEMBER,
    ABSENT_WINDOW,
    LONG_DOCUMENT,
    MORE_TOKENS,
    NO_PLACE,
    PART,
    REFUSE,
    SPLIT,
    Call,
    PickBy,
    Picks,
    Piece,
    Room,
)
from conceptloader.kernels.system import MORE, NOT_OPEN, OK, STREAM, Code, array_at, wrong


@inner
def cut_documents(call: Call, first: int, last: int, overflow: int) -> Code:
    """The pieces that begin in tokens [first, last), of the documents that walk_items found."""
    room, state, size = call.room, call.state[0], call.arrays[0].seq_len
    for k in range(state.parts):
        found = room.parts[k]
        if overflow == REFUSE and found.end - found.start > size:
            return wrong(call, LONG_DOCUMENT, found.document, found.end - found.start, size)
        at = found.start + max(0, -(-(first - found.start) // size)) * size
        while at < min(found.end, last):
            if at == found.start or overflow == SPLIT:
                if state.pieces == len(room.pieces):
                    return MORE
                piece = room.pieces[state.pieces]
                piece.start = at
                piece.tokens = min(size, found.end - at)
                piece.end = found.end
                piece.document = found.document
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
def pack_pieces(room: Room, count: int, packs: int, overflow: int) -> Any:
    """Pack the first `count` pieces. Returns: how many parts there are; -1 - k for piece k that is refused, or that
    fits nowhere since the documents are not those for which the packs were counted."""
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
            return -1 - room.order[k]
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
                return -1 - room.order[k]
            start = start + part.tokens if overflow == SPLIT else stop
            put(room, rooms, packs - 1, piece, part)
            parts += 1
    return parts


@kernel
def pack_block(room: Room, count: int, packs: int, overflow: int) -> Any:
    """pack_pieces, for who is not a kernel."""
    return pack_pieces(room, count, packs, overflow)


def make_room(pieces: int, seq_len: int, bins: int) -> Room:
    """What packing so many pieces works with."""
    return Room(
        pieces=np.empty(pieces, PART),
        parts=np.empty(pieces + bins, PART),
        order=np.empty(pieces, np.int64),
        tally=np.empty(seq_len + 1, np.int64),
        rooms=np.empty(bins, np.int64),
    )


@inner
def find_row(call: Call, member: Any, token: int) -> Any:
    """The row of the shard that holds a token of the files of a member's dataset."""
    row, end = member.first_shard, member.first_shard + member.shards
    while end - row > 1:
        middle = (row + end) // 2
        if call.shards[middle].base <= token:
            row = middle
        else:
            end = middle
    return row


@inner
def walk_runs(call: Call, member: Any, first: int, last: int) -> Code:
    """walk_items for a view, whose documents are runs: those that hold tokens [first, last) of it."""
    runs, state, parts = call.runs, call.state[0], call.room.parts
    run, end = member.first_run, member.first_run + member.runs
    while end - run > 1:
        middle = (run + end) // 2
        if runs[middle].first <= first:
            run = middle
        else:
            end = middle
    while run < member.first_run + member.runs and runs[run].first < last:
        if state.parts == len(parts):
            return MORE
        part = parts[state.parts]
        part.start = runs[run].first
        part.end = runs[run + 1].first
        part.document = run - member.first_run
        state.parts += 1
        run += 1
    return OK


@inner
def find_parts(call: Call, number: int, block: int) -> Code:
    """The parts of a block of packs of member `number`, unless they are known: two bounded reads of its document table,
    or the runs of a view.

    None, so that the packs are empty, if the block touches a shard that is quarantined as a whole, table included.
    """
    state, member, shards, size = call.state[0], call.members[number], call.shards, call.arrays[0].seq_len
    if state.packed_member == number and state.packed_block == block:
        return OK
    state.packed_member = -1
    state.pieces = state.parts = 0
    width = (member.bins - 1) * size
    first = member.start + block * width
    last = min(first + width, member.stop)
    row, left_out = find_row(call, member, first), False
    if member.runs > 0:
        code = walk_runs(call, member, first, last)
        if code != OK:
            return code
    while member.runs == 0 and row < member.first_shard + member.shards and shards[row].base < last:
        base, tokens = shards[row].base, shards[row].tokens
        for k in range(member.first_range, member.end_range * member.quarantined):
            known = call.left_out[k]
            left_out |= tokens > 0 and known.start <= base and base + tokens <= known.stop and known.at == 0
        low, high = max(first - base, 0), min(last - base, tokens)
        if low < high and not left_out:
            call.used[row] = state.clock
            code = walk_items(call, Piece(row, low, high, high, 0, 0, NO_DOCUMENT, NO_DOCUMENT), PIECES)
            if code != OK:
                return code
        row += 1
    if left_out:
        state.parts = 0
    else:
        code = cut_documents(call, first, last, member.overflow)
        if code != OK:
            return code
        packs = min(member.bins, member.count - block * member.bins)
        parts = pack_pieces(call.room, state.pieces, packs, member.overflow)
        if parts < 0:
            piece = call.room.pieces[-1 - parts]
            kind = NO_PLACE if member.overflow == REFUSE else MORE_TOKENS
            return wrong(call, kind, piece.document, piece.tokens, size)
        state.parts = parts
    state.packed_member = number
    state.packed_block = block
    return OK


@inner
def fill_pack(call: Call, picked: Any, number: int, pack: int) -> Code:
    """The parts of a pack of member `number` that are not in the row yet. picked: its sample index."""
    state, member, sample = call.state[0], call.members[number], call.state[0].sample
    size, ranges = call.arrays[0].seq_len, call.left_out
    code = find_parts(call, number, pack // member.bins)
    if code != OK:
        return code
    if state.position == 0:
        blank_row(call, sample, picked, member, 0)
    used = 0
    for k in range(state.parts):
        part = call.room.parts[k]
        if part.bin != pack % member.bins:
            continue
        used = part.place + part.tokens
        if part.place < state.position:
            continue
        start, stop = part.start, min(part.start + part.tokens + 1, part.end)
        low, high = member.first_range, member.end_range
        while low < high:  # the first one that ends behind `start`
            middle = (low + high) // 2
            if ranges[middle].stop <= start:
                low = middle + 1
            else:
                high = middle
        left_out = False
        while low < member.end_range and ranges[low].start < stop:
            left_out |= ranges[low].at <= np.int64(picked)
            low += 1
        if not left_out:
            shift = np.int64(0)
            if member.runs > 0:  # a run lies in one shard: see blend/packing.py
                run = call.runs[member.first_run + part.document]
                shift = run.source - run.first
            row = find_row(call, member, start + shift)
            call.used[row] = state.clock
            if call.files[row, STREAM] < 0:
                state.row = row
                return NOT_OPEN
            shift -= call.shards[row].base
            start += shift
            stop += shift
            code = fill_piece(
                call,
                Piece(row, start, stop, start + part.tokens, part.place, sample, part.document, NO_DOCUMENT),
                member,
            )
            if code != OK:
                return code
        end_sequence(call, part.place, used)
        state.position = used
    end_sequence(call, used, size)  # padding is a sequence of its own
    return OK


@inner
def end_sequence(call: Call, begin: int, stop: int) -> None:
    """Inputs [begin, stop) of the sample at hand, if there are any: positions from 0 on, and the border behind them."""
    batch, state = call.arrays[0], call.state[0]
    row = state.sample * batch.seq_len
    positions = array_at(batch.position_ids, row + begin, stop - begin, np.int64)
    for i in range(len(positions)):
        positions[i] = i
    if begin < stop and batch.cu_seqlens:
        array_at(batch.cu_seqlens, state.sequences, 1, np.int32)[0] = np.int32(row + stop)
        state.sequences += 1
        state.longest = max(state.longest, stop - begin)


@kernel
def fill_packs(call: Call, picks: Picks, order: PickBy) -> Code:
    """fill_samples for packs; order: not used, members and windows are given."""
    samples, members, windows, _ = picks
    state = call.state[0]
    while state.sample < len(samples):
        number, window = members[state.sample], np.int64(windows[state.sample])
        if call.members[number].bins == 0:
            return wrong(call, ABSENT_MEMBER, number, 0, 0)
        if not 0 <= window < call.members[number].count:
            return wrong(call, ABSENT_WINDOW, window, 0, call.members[number].count)
        if state.position == 0:
            state.sequences_before = state.sequences
        code = fill_pack(call, samples[state.sample], number, window)
        if code != OK:
            return code
        state.sample += 1
        state.position = 0
    ignore_labels(call, len(samples))
    return OK
