"""Kernels: whole batches, from windows or from sample indices, into the arrays of a batch. One call, no GIL.

All arithmetic is int64. A kernel returns OK or another code of native.py; Call.state says what it was doing.
"""

from typing import Any

import numpy as np

from conceptloader.base.compiled import inner, kernel
from conceptloader.batch.kernels.items import PIECES, walk_items
from conceptloader.batch.kernels.native import (
    ABSENT,
    DAMAGED,
    DOCUMENTS,
    NOT_OPEN,
    OK,
    STREAM,
    Code,
    array_at,
    load,
    read,
)
from conceptloader.batch.kernels.pack import pack_pieces
from conceptloader.batch.kernels.records import Call, Piece
from conceptloader.batch.kernels.rows import NO_DOCUMENT, blank_row, fill_piece
from conceptloader.order.kernels import locate_many, windows_many


@inner
def find_row(call: Call, member: Any, number: int, by_document: int) -> Any:
    """The row of a member's shard that holds a token, or a document, of its dataset."""
    row, end = member.first_shard, member.first_shard + member.shards
    while end - row > 1:
        middle = (row + end) // 2
        if (call.shards[middle].first_document if by_document else call.shards[middle].base) <= number:
            row = middle
        else:
            end = middle
    return row


@inner
def find_tokens(call: Call, member: Any, window: int) -> tuple[Code, int, int, int]:
    """(code, start, stop, row): tokens [start, stop) of the dataset that a sample reads, none if they are quarantined;
    `row` is that of `start`."""
    shards, size, number = call.shards, call.arrays[0].seq_len, member.start + window
    start = number if member.by_document else member.start + window * size
    row = find_row(call, member, start, member.by_document)
    stop = start + size + 1
    ranges = call.quarantine[member.first_range : member.end_range]
    left_out = False
    if member.by_document:
        base, top = shards[row].base, shards[row].base + shards[row].tokens
        for k in range(len(ranges)):
            left_out |= ranges[k].start <= base and top <= ranges[k].stop
        if left_out:  # the document table included
            return OK, base, base, row
        code = read(call, row, DOCUMENTS, call.buffer, 16, 8 * (number - shards[row].first_document))
        if code != OK:
            return code, 0, 0, row
        start = base + load(np.int64(call.buffer.ctypes.data), np.int64)
        stop = base + load(np.int64(call.buffer.ctypes.data) + 8, np.int64)
        if not base <= start <= stop <= top:
            return DAMAGED, 0, 0, row
        stop = min(stop, start + size + 1)
    for k in range(len(ranges)):
        left_out |= ranges[k].start < stop and start < ranges[k].stop
    return OK, start, start if left_out else stop, row


@inner
def find_parts(call: Call, number: int, block: int, clock: int) -> Code:
    """The parts of a block of packs of member `number`, unless they are known: two bounded reads of its document table.

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
    row = find_row(call, member, first, 0)
    left_out = False
    while row < member.first_shard + member.shards and shards[row].base < last:
        base, tokens = shards[row].base, shards[row].tokens
        for k in range(member.first_range, member.end_range):
            left_out |= tokens > 0 and call.quarantine[k].start <= base and base + tokens <= call.quarantine[k].stop
        low, high = max(first - base, 0), min(last - base, tokens)
        if low < high and not left_out:
            call.used[row] = clock
            code = walk_items(call, Piece(row, low, high, high, 0, number, NO_DOCUMENT), PIECES)
            if code != OK:
                return code
        row += 1
    if not left_out:
        packs = min(member.bins, member.count - block * member.bins)
        parts = pack_pieces(call.room, state.pieces, packs, member.overflow)
        if parts < 0:
            return DAMAGED
        state.parts = parts
    state.packed_member = number
    state.packed_block = block
    return OK


@inner
def fill_pack(call: Call, picked: Any, number: int, pack: int, clock: int) -> Code:
    """The parts of a pack of member `number` that are not in the row yet. picked: its sample index."""
    batch, state, member = call.arrays[0], call.state[0], call.members[number]
    size, sample, ranges = batch.seq_len, state.sample, call.quarantine[member.first_range : member.end_range]
    code = find_parts(call, number, pack // member.bins, clock)
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
        row = find_row(call, member, start, 0)
        left_out = False
        for r in range(len(ranges)):
            left_out |= ranges[r].start < stop and start < ranges[r].stop
        if not left_out:
            call.used[row] = clock
            if call.files[row, STREAM] < 0:
                state.row = row
                return NOT_OPEN
            start -= call.shards[row].base
            stop -= call.shards[row].base
            code = fill_piece(
                call, Piece(row, start, stop, start + part.tokens, part.place, sample, part.document), member
            )
            if code != OK:
                return code
        begin_sequence(call, part.place, used)
        state.position = used
    if used > 0:
        begin_sequence(call, used, size)  # padding is a sequence of its own
    return OK


@inner
def begin_sequence(call: Call, begin: int, stop: int) -> None:
    """Positions from 0 on for inputs [begin, stop) of the sample at hand, and the border before them."""
    batch, state = call.arrays[0], call.state[0]
    row = state.sample * batch.seq_len
    positions = array_at(batch.position_ids, row + begin, stop - begin, np.int64)
    for i in range(len(positions)):
        positions[i] = i
    if 0 < begin < stop and batch.cu_seqlens:
        array_at(batch.cu_seqlens, state.sequences, 1, np.int32)[0] = np.int32(row + begin)
        state.sequences += 1


@kernel
def fill_samples(call: Call, picks: Any, order: Any, clock: int) -> Code:
    """Fill the samples from state.sample, state.position on. Returns a code; the state says where it stopped.

    picks: u64 [B] sample indices, i64 [B] members, u64 [B] windows of these, u64 [B] to work in. order: the
    kernel_tables of a mixture, to pick by; NO_TABLES if members and windows are given. clock: of this call. Both are
    tuples without names, which cost less to take in.
    """
    samples, members, windows, draws = picks
    phases, sizes, skip_at, skip_total = order
    if len(phases[0]) > 0:
        for k in range(len(samples)):
            passed = 0
            while passed < len(skip_at) and skip_at[passed] <= samples[k]:
                passed += 1
            windows[k] = samples[k] + skip_total[passed]
        locate_many(windows, members, draws, *phases)
        windows_many(members, draws, draws, windows, *sizes)  # the epochs, which nobody asks for, replace draws
    batch, state, shards = call.arrays[0], call.state[0], call.shards
    while state.sample < len(samples):
        sample, window = state.sample, np.int64(windows[state.sample])
        member = call.members[members[sample]]
        if member.first_shard < 0 or window >= member.count:
            return ABSENT
        if state.position == 0:
            state.sequences_before = state.sequences
        if member.bins > 0:
            code, start, stop, row = fill_pack(call, samples[sample], members[sample], window, clock), 0, 0, 0
        else:
            code, start, stop, row = find_tokens(call, member, window)
        if code != OK:
            return code
        if state.position == 0 and member.bins == 0:
            blank_row(call, sample, samples[sample], member, stop - start)
        document = member.start + window if member.by_document else NO_DOCUMENT
        at = start + state.position
        while at < stop:
            base, end = shards[row].base, min(stop, shards[row].base + shards[row].tokens)
            if at < end:
                call.used[row] = clock
                if call.files[row, STREAM] < 0:
                    state.row = row
                    return NOT_OPEN
                inputs_stop = min(end, start + batch.seq_len) - base  # the last token of a full window is a label only
                piece = Piece(row, at - base, end - base, inputs_stop, at - start, sample, document)
                code = fill_piece(call, piece, member)
                if code != OK:
                    return code
                at = end
                state.position = at - start
            row += 1
        sequences = array_at(batch.cu_seqlens, state.sequences, 1, np.int32)
        for i in range(len(sequences)):
            sequences[i] = np.int32((sample + 1) * batch.seq_len)
            state.sequences += 1
        state.sample = sample + 1
        state.position = 0
    sequences = array_at(batch.cu_seqlens, 0, state.sequences, np.int32)
    state.longest = 0
    for i in range(1, len(sequences)):
        state.longest = max(state.longest, np.int64(sequences[i] - sequences[i - 1]))
    return OK
