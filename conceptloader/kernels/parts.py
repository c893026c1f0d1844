"""Kernels: which parts a sample is made of.

A window, a document, a pack or what is given, of a dataset or a view, without what is excluded. All ways end in
add_parts.
"""

from typing import Any, NamedTuple

import numpy as np

from conceptloader.kernels.holes import is_closed, is_left_out
from conceptloader.kernels.items import add_piece, walk_items
from conceptloader.kernels.kernel import inner
from conceptloader.kernels.packing import add_document, cut_documents, pack_pieces
from conceptloader.kernels.records import BAD_DOCUMENT, NO_PLACE, Call, Tokens
from conceptloader.kernels.system import DOCUMENTS, OK, WANTS, Code, load, read, wrong

NO_DOCUMENT = np.int64(-1)


class Wanted(NamedTuple):
    """Tokens [start, stop) of a document, or of any (-1), of which `inputs` are inputs, and the rest a label."""

    start: Any
    inputs: Any
    stop: Any
    document: Any


@inner
def make_parts(call: Call, number: int, window: int) -> tuple[Code, int]:
    """(code, tokens): the parts of window, document or pack `window` of member `number`, as the sample at hand.

    How many tokens they fill the row with from its beginning, 0 if there may be gaps.
    """
    state, member, size = call.state[0], call.members[number], call.arrays[0].seq_len
    state.parts = 0
    if len(call.first_given):
        return OK, make_given(call, member)
    if member.bins > 0:
        return make_pack(call, number, window), 0
    if member.by_document:
        code, start, end = find_document(call, member, member.start + window)
        if code != OK:
            return code, 0
        wanted = Wanted(start, size, min(end, start + size + 1), member.start + window)
        return OK, add_parts(call, member, 0, wanted)
    start = member.start + window * size
    return OK, add_parts(call, member, 0, Wanted(start, size, start + size + 1, NO_DOCUMENT))


@inner
def make_given(call: Call, member: Any) -> Any:
    """The parts of the first seq_len + 1 tokens that are given, end to end.

    A document begins with each range, and where the dataset has one. Returns: as make_parts.
    """
    state, size, whole, place = call.state[0], call.arrays[0].seq_len, True, 0
    for k in range(call.first_given[state.sample], call.first_given[state.sample + 1]):
        start = call.given[k].start
        stop = min(call.given[k].stop, start + size + 1 - place)
        if start < stop:
            inputs = min(stop - start, size - place)
            whole = add_parts(call, member, place, Wanted(start, inputs, stop, NO_DOCUMENT)) > 0 and whole
            place += stop - start
    if whole:
        return place
    state.parts = 0
    add_part(call, -1, 0, Wanted(0, size, 0, NO_DOCUMENT))
    return 0


@inner
def make_pack(call: Call, number: int, pack: int) -> Code:
    """The parts of a pack of member `number`; padding is one of its own."""
    state, member, size, used = call.state[0], call.members[number], call.arrays[0].seq_len, 0
    code = find_packs(call, number, pack // member.bins)
    if code != OK:
        return code
    slot = pack % member.bins
    for k in range(state.packed):
        piece = call.room.packed[k]
        if piece.bin == slot:
            stop = min(piece.start + piece.tokens + 1, piece.end)
            add_parts(call, member, piece.place, Wanted(piece.start, piece.tokens, stop, piece.document))
            used = piece.place + piece.tokens
    if used < size:
        add_part(call, -1, used, Wanted(0, size - used, 0, NO_DOCUMENT))
    return OK


@inner
def add_parts(call: Call, member: Any, place: int, wanted: Wanted) -> Any:
    """A part of the sample for each shard, and for each run of a view.

    Returns: how many tokens they have, or 0 if the sample leaves some out, and so all.
    """
    at, start, stop = wanted.start, wanted.start, wanted.stop
    if is_left_out(call, member, start, stop):
        add_part(call, -1, place, Wanted(0, wanted.inputs, 0, NO_DOCUMENT))
        return 0
    while at < stop:
        end, shift, number = stop, np.int64(0), wanted.document
        if member.runs > 0:
            run = find_run(call, member, at)
            end = min(stop, call.runs[run + 1].first)
            shift = call.runs[run].source - call.runs[run].first
            if number < 0:
                number = run - member.first_run
        row = find_row(call, member, at + shift, False)
        base = call.shards[row].base - shift
        end = min(end, base + call.shards[row].tokens)
        inputs = min(end, start + wanted.inputs) - at
        add_part(call, row, place + at - start, Wanted(at - base, inputs, end - base, number))
        call.parts[call.state[0].parts - 1].base = base
        at = end
    return stop - start


@inner
def add_part(call: Call, row: int, place: int, wanted: Wanted) -> None:
    """Tokens of the shard in a row, which may be none, -1."""
    state = call.state[0]
    part = call.parts[state.parts]
    part.row = row
    part.place = place
    part.start = wanted.start
    part.inputs = wanted.inputs
    part.stop = wanted.stop
    part.document = wanted.document
    state.parts += 1


@inner
def find_row(call: Call, member: Any, wanted: int, by_document: bool) -> Any:
    """The row of the shard that holds a token, or a document, of the files of a member's dataset."""
    row, end = member.first_shard, member.first_shard + member.shards
    while end - row > 1:
        middle = (row + end) // 2
        if (call.shards[middle].first_document if by_document else call.shards[middle].base) <= wanted:
            row = middle
        else:
            end = middle
    return row


@inner
def find_run(call: Call, member: Any, token: int) -> Any:
    """The run that holds a token of a view."""
    run, end = member.first_run, member.first_run + member.runs
    while end - run > 1:
        middle = (run + end) // 2
        if call.runs[middle].first <= token:
            run = middle
        else:
            end = middle
    return run


@inner
def find_document(call: Call, member: Any, document: int) -> tuple[Code, int, int]:
    """(code, start, stop): the tokens of a document of a member's dataset, none in a shard that is never read."""
    if member.runs > 0:
        run = member.first_run + document
        return OK, call.runs[run].first, call.runs[run + 1].first
    row = find_row(call, member, document, True)
    base, tokens, ordinal = call.shards[row].base, call.shards[row].tokens, document - call.shards[row].first_document
    if is_closed(call, member, row):
        return OK, base, base
    code = read(call, row, DOCUMENTS, call.buffer, 16, 8 * ordinal)
    if code != OK:
        return code, 0, 0
    address = np.int64(call.buffer.ctypes.data)
    start, stop = load(address, np.int64), load(address + 8, np.int64)
    if not 0 <= start <= stop <= tokens:
        call.state[0].other = stop
        return wrong(call, BAD_DOCUMENT, ordinal, start, tokens), 0, 0
    return OK, base + start, base + stop


@inner
def find_documents(call: Call, member: Any, first: int, last: int) -> Code:
    """The documents that hold tokens [first, last) of a member's dataset.

    Found in two bounded reads of a document table, or the runs of a view; none if one of their shards is never read.
    """
    state, runs, shards = call.state[0], call.runs, call.shards
    state.packed = 0
    found = OK
    if member.runs > 0:
        run = find_run(call, member, first)
        while run < member.first_run + member.runs and runs[run].first < last:
            code = add_document(call, runs[run].first, runs[run + 1].first, run - member.first_run)
            if code != OK:
                return code
            run += 1
        return OK
    row = find_row(call, member, first, False)
    while row < member.first_shard + member.shards and shards[row].base < last:
        low, high = max(first - shards[row].base, 0), min(last - shards[row].base, shards[row].tokens)
        if low < high:
            if is_closed(call, member, row):
                state.packed = 0
                return OK
            call.used[row] = state.clock
            tokens = Tokens(row, low, high, 0)
            found = max(found, walk_items(call, tokens, 0, DOCUMENTS, shards[row].documents, add_piece))
            if found > WANTS:
                return found
        row += 1
    return found


@inner
def find_packs(call: Call, number: int, block: int) -> Code:
    """The packs of a block of member `number`, unless they are known; empty ones without documents."""
    state, room, member, size = call.state[0], call.room, call.members[number], call.arrays[0].seq_len
    if state.packed_member == number and state.packed_block == block:
        return OK
    state.packed_member = -1
    width = (member.bins - 1) * size
    first = member.start + block * width
    last = min(first + width, member.stop)
    code = find_documents(call, member, first, last)
    if code == OK:
        code = cut_documents(call, first, last, member.overflow)
    if code != OK:
        return code
    packs = min(member.bins, member.count - block * member.bins)
    packed = pack_pieces(room, state.pieces, packs, member.overflow)
    if packed < 0:
        piece = room.pieces[-1 - packed]
        return wrong(call, NO_PLACE, piece.document, piece.tokens, size)
    state.packed = packed
    state.packed_member = number
    state.packed_block = block
    return OK
