"""Kernels: whole batches, from windows or from sample indices, into the arrays of a batch. One call, no GIL.

All arithmetic is int64. A kernel returns OK or another code of system.py; Call.state says what it was doing.
"""

from typing import Any

import numpy as np

from conceptloader.kernels.items import add_document, fill_track, walk_items
from conceptloader.kernels.kernel import inner, kernel
from conceptloader.kernels.order import locate_many, windows_many
from conceptloader.kernels.records import (
    ABSENT_MEMBER,
    ABSENT_WINDOW,
    BAD_DOCUMENT,
    BAD_TOKEN,
    BAD_WEIGHT,
    DENSE,
    NONE,
    Call,
    PickBy,
    Picks,
    Piece,
)
from conceptloader.kernels.system import (
    DOCUMENTS,
    NOT_OPEN,
    OK,
    STREAM,
    Code,
    array_at,
    load,
    read,
    take,
    wrong,
)

NO_DOCUMENT = np.int64(-1)


@inner
def find_tokens(call: Call, member: Any, window: int, sample: Any) -> tuple[Code, int, int, int, int]:
    """(code, start, stop, row, run): tokens [start, stop) of the dataset that a sample reads, none if some are left
    out; the shard of `start` and, of a view, its run."""
    shards, runs, ranges = call.shards, call.runs, call.left_out
    size, number = call.arrays[0].seq_len, member.start + window
    start = number if member.by_document else member.start + window * size
    run, end = member.first_run, member.first_run + member.runs
    wanted, by_number = start, member.by_document
    if member.runs > 0:
        if member.by_document:
            run += number
            start = runs[run].first
        while not member.by_document and end - run > 1:
            middle = (run + end) // 2
            if runs[middle].first <= start:
                run = middle
            else:
                end = middle
        wanted, by_number = start - runs[run].first + runs[run].source, np.int64(0)
    row, end = member.first_shard, member.first_shard + member.shards
    while end - row > 1:
        middle = (row + end) // 2
        if (shards[middle].first_document if by_number else shards[middle].base) <= wanted:
            row = middle
        else:
            end = middle
    stop = start + size + 1
    if member.by_document and member.runs > 0:
        stop = min(stop, runs[run + 1].first)
    elif member.by_document:
        base, top = shards[row].base, shards[row].base + shards[row].tokens
        for k in range(member.first_range, member.end_range * member.quarantined):
            if ranges[k].start <= base and top <= ranges[k].stop and ranges[k].at == 0:  # the document table included
                return OK, base, base, row, run
        code = read(call, row, DOCUMENTS, call.buffer, 16, 8 * (number - shards[row].first_document))
        if code != OK:
            return code, 0, 0, row, run
        start = base + load(np.int64(call.buffer.ctypes.data), np.int64)
        stop = base + load(np.int64(call.buffer.ctypes.data) + 8, np.int64)
        if not base <= start <= stop <= top:
            call.state[0].other = stop - base
            ordinal = number - shards[row].first_document
            return wrong(call, BAD_DOCUMENT, ordinal, start - base, top - base), 0, 0, row, run
        stop = min(stop, start + size + 1)
    low, high = member.first_range, member.end_range
    while low < high:  # the first one that ends behind `start`
        middle = (low + high) // 2
        if ranges[middle].stop <= start:
            low = middle + 1
        else:
            high = middle
    while low < member.end_range and ranges[low].start < stop:
        if ranges[low].at <= np.int64(sample):
            return OK, start, start, row, run
        low += 1
    return OK, start, stop, row, run


@inner
def blank_row(call: Call, sample: int, index: Any, member: Any, tokens: int) -> None:
    """What does not depend on the tokens, of which a row will have `tokens`: positions, names, padding, no spans."""
    batch = call.arrays[0]
    size, length, pad = batch.seq_len, batch.row_length, member.pad
    inputs = array_at(batch.input_ids, sample * length, size, np.int64)
    labels = array_at(batch.labels, sample * length, size, np.int64)
    mask = array_at(batch.loss_mask, sample * size, size, np.float32)
    documents = array_at(batch.document_ids, sample * size, size, np.int64)
    positions = array_at(batch.position_ids, sample * size, size, np.int64)
    names = array_at(batch.dataset_id, sample, 1, np.int64)
    numbers = array_at(batch.sample_index, sample, 1, np.int64)
    for i in range(tokens, size):
        inputs[i] = pad
    for i in range(max(0, tokens - 1), size):
        labels[i] = pad
    for i in range(max(0, tokens - 1), len(mask)):
        mask[i] = 0.0
    for i in range(tokens, len(documents)):
        documents[i] = NO_DOCUMENT
    for i in range(len(positions)):
        positions[i] = i
    for i in range(len(names)):
        names[i] = member.dataset_id
    for i in range(len(numbers)):
        numbers[i] = np.int64(index)
    for k in range(len(call.columns)):
        field = call.columns[k]
        first = min(size, max(0, tokens - field.labels))
        blank = array_at(field.address, (sample * size + first) * field.width, (size - first) * field.width, np.uint8)
        for i in range(len(blank)):
            blank[i] = 0
    for t in range(len(call.outputs)):
        out = call.outputs[t]
        slots, first = out.max_spans, sample * out.max_spans
        index_of = array_at(out.span_index, sample * size, size, np.int32)
        ends = array_at(out.spans, 2 * first, 2 * slots, np.int32)
        flags = array_at(out.flags, first, slots, np.uint8)
        counts = array_at(out.counts, first, slots, np.int32)
        ids = array_at(out.ids, first * out.max_concepts, slots * out.max_concepts, np.int64)
        scores = array_at(out.ids and out.scores, first * out.max_concepts, slots * out.max_concepts, np.float32)
        offsets = array_at(out.offsets, first, slots + 1, np.int64)
        values = array_at(out.values, first * out.width, (1 - out.ragged) * slots * out.width, np.uint8)
        array_at(out.num_spans, sample, 1, np.int32)[0] = 0
        for i in range(len(values)):
            values[i] = 0
        for i in range(size):
            index_of[i] = -1
        for i in range(2 * slots):
            ends[i] = 0
        for i in range(slots):
            flags[i] = 0
        for i in range(len(counts)):
            counts[i] = 0
        for i in range(len(ids)):
            ids[i] = -1
        for i in range(len(scores)):
            scores[i] = 0.0
        for i in range(1, len(offsets)):
            offsets[i] = offsets[0]


@inner
def fill_piece(call: Call, piece: Piece, member: Any) -> Code:
    """A piece of a row; one read of the stream."""
    batch, shard, row, start, stop = call.arrays[0], call.shards[piece.row], piece.row, piece.start, piece.stop
    size, length, item, inputs_stop = batch.seq_len, batch.row_length, shard.item, piece.inputs_stop
    low, high = start, stop
    for t in range(call.tracks.shape[1]):
        if call.tracks[row, t].kind == DENSE:
            low = max(0, start - 1)
            high = max(high, min(inputs_stop + 1 + call.outputs[t].labels, shard.tokens))
    code = read(call, row, STREAM, call.scratch, (high - low) * item, shard.offset + low * item)
    if code != OK:
        return code

    shared = length > size
    first = piece.sample * length + piece.place
    at = (start - low) * item
    inputs = array_at(batch.input_ids, first, (stop if shared else inputs_stop) - start, np.int64)
    source = np.int64(call.scratch.ctypes.data)
    bad = take(source + at, item, shard.code, shard.top_id, inputs.ctypes.data, len(inputs))
    if bad != OK:
        return wrong(call, BAD_TOKEN, start + bad - 1, inputs[bad - 1], shard.top_id + 1)
    if piece.place == 0 or piece.document >= 0:  # the first token of a row or a document is no label
        at += item
        count = stop - start - 1
    else:
        first -= 1
        count = stop - start
    labels = array_at(batch.labels, first, count, np.int64)
    if not shared:
        bad = take(source + at, item, shard.code, shard.top_id, labels.ctypes.data, len(labels))
        if bad != OK:
            return wrong(call, BAD_TOKEN, stop - count + bad - 1, labels[bad - 1], shard.top_id + 1)

    for k in range(len(call.columns)):
        out, field = call.columns[k], call.fields[row, k]
        place = piece.sample * size + piece.place
        begin, taken = (start - low) * item, inputs_stop - start
        if out.labels:
            place, begin, taken = first - piece.sample * (length - size), at, count
        if field.at < 0:  # a weight that the dataset does not have
            blank = array_at(out.address, place, taken, np.int32)
            for i in range(len(blank)):
                blank[i] = np.int32(field.code)
            continue
        bad = take(source + begin + field.at, item, field.code, 0, out.address + out.width * place, taken)
        if bad != OK:
            bits = array_at(out.address, place + bad - 1, 1, np.uint32)[0]
            return wrong(call, BAD_WEIGHT, low + begin // item + bad - 1, np.int64(bits), 0)

    mask = array_at(batch.loss_mask, first - piece.sample * (length - size), count, np.float32)
    eos, field = member.eos, shard.loss
    for i in range(len(mask)):
        mask[i] = 1.0
    if eos >= 0 and not batch.eos_loss:
        for i in range(len(mask)):
            if labels[i] == eos:
                mask[i] = 0.0
    if field >= 0:
        for i in range(len(mask)):
            if call.scratch[at + i * item + field] == 0:
                mask[i] = 0.0

    inside = Piece(row, start, inputs_stop, inputs_stop, piece.place, piece.sample, piece.document, piece.run)
    if piece.document >= 0:
        ids = array_at(batch.document_ids, piece.sample * size + piece.place, inputs_stop - start, np.int64)
        for i in range(len(ids)):
            ids[i] = piece.document
    elif batch.document_ids or batch.document_positions or batch.mask_borders or batch.cu_seqlens:
        if shard.documents and piece.run < 0:
            code = walk_items(call, piece, -1)
        else:
            add_document(call, piece, piece.run, start, stop)
    named = Piece(row, stop - count, stop, stop, first - piece.sample * length, piece.sample, piece.document, piece.run)
    for t in range(call.tracks.shape[1]):
        part = named if call.outputs[t].labels else inside
        if code == OK and call.tracks[row, t].kind != NONE and part.start < part.stop:
            code = fill_track(call, part, t, low)
    return code


@inner
def ignore_labels(call: Call, samples: int) -> None:
    """Replace labels without loss, once all is known that masks any."""
    batch = call.arrays[0]
    labels = array_at(batch.labels, 0, samples * batch.seq_len if batch.ignore_index else 0, np.int64)
    mask = array_at(batch.loss_mask, 0, len(labels), np.float32)
    for i in range(len(labels)):
        if mask[i] == 0.0:
            labels[i] = batch.ignore_index


@kernel
def fill_samples(call: Call, picks: Picks, order: PickBy) -> Code:
    """Fill the samples from state.sample, state.position on. Returns a code; the state says where it stopped."""
    samples, members, windows, draws = picks
    tables, scratch = order
    skip_at, skip_total = tables.skip_at, tables.skip_total
    if len(tables.phases.starts) > 0:
        for k in range(len(samples)):
            passed = 0
            while passed < len(skip_at) and skip_at[passed] <= samples[k]:
                passed += 1
            windows[k] = samples[k] + skip_total[passed]
        locate_many(windows, members, draws, tables.phases, scratch)
        # The epochs, which nobody asks for, replace the draws.
        windows_many(members, draws, draws, windows, tables.sizes, scratch)
    batch, state, shards = call.arrays[0], call.state[0], call.shards
    while state.sample < len(samples):
        sample, window = state.sample, np.int64(windows[state.sample])
        member = call.members[members[sample]]
        if member.first_shard < 0:
            return wrong(call, ABSENT_MEMBER, members[sample], 0, 0)
        if not 0 <= window < member.count:
            return wrong(call, ABSENT_WINDOW, window, 0, member.count)
        if state.position == 0:
            state.sequences_before = state.sequences
        code, start, stop, row, run = find_tokens(call, member, window, samples[sample])
        if code != OK:
            return code
        if state.position == 0:
            blank_row(call, sample, samples[sample], member, stop - start)
        document = member.start + window if member.by_document else NO_DOCUMENT
        at = start + state.position
        while at < stop:
            end, shift, number = stop, np.int64(0), NO_DOCUMENT
            if member.runs > 0:
                while call.runs[run + 1].first <= at:
                    run += 1
                end = min(stop, call.runs[run + 1].first)
                shift = call.runs[run].source - call.runs[run].first
                number = run - member.first_run
                if at + shift < shards[row].base:  # only those of a view rise in its source
                    row = member.first_shard
            base = shards[row].base - shift
            end = min(end, base + shards[row].tokens)
            if at >= end:
                row += 1
                continue
            call.used[row] = state.clock
            if call.files[row, STREAM] < 0:
                state.row = row
                return NOT_OPEN
            inputs_stop = min(end, start + batch.seq_len) - base  # the last token of a full window is a label only
            piece = Piece(row, at - base, end - base, inputs_stop, at - start, sample, document, number)
            code = fill_piece(call, piece, member)
            if code != OK:
                return code
            at = end
            state.position = at - start
        sequences = array_at(batch.cu_seqlens, state.sequences, 1, np.int32)
        for i in range(len(sequences)):
            sequences[i] = np.int32((sample + 1) * batch.seq_len)
            state.sequences += 1
        state.sample = sample + 1
        state.position = 0
    ignore_labels(call, len(samples))
    sequences = array_at(batch.cu_seqlens, 0, state.sequences, np.int32)
    state.longest = 0
    for i in range(1, len(sequences)):
        state.longest = max(state.longest, np.int64(sequences[i] - sequences[i - 1]))
    return OK
