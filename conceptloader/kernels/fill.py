"""Kernels: whole batches, from windows or from sample indices, into the arrays of a batch. One call, no GIL.

All arithmetic is int64. A kernel returns OK or another code of system.py; Call.state says what it was doing.
"""

from typing import Any

import numpy as np

from conceptloader.kernels.items import begin_document, fill_track, walk_items
from conceptloader.kernels.kernel import inner, kernel
from conceptloader.kernels.order import locate_many, windows_many
from conceptloader.kernels.parts import NO_DOCUMENT, make_parts
from conceptloader.kernels.records import (
    ABSENT_MEMBER,
    ABSENT_WINDOW,
    BAD_TOKEN,
    BAD_WEIGHT,
    DENSE,
    NONE,
    Call,
    PickBy,
    Picks,
    Tokens,
)
from conceptloader.kernels.system import NOT_OPEN, OK, STREAM, Code, array_at, read, take, wrong


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
def fill_part(call: Call, part: Any, member: Any) -> Code:
    """A part of the sample at hand; one read of the stream."""
    batch, state, row, start, stop, place = call.arrays[0], call.state[0], part.row, part.start, part.stop, part.place
    size, length, sample, packed = batch.seq_len, batch.row_length, state.sample, member.bins > 0
    if row < 0:
        begin_document(call, place, place + part.inputs, NO_DOCUMENT, packed)
        return OK
    call.used[row] = state.clock
    if call.files[row, STREAM] < 0:
        state.row = row
        return NOT_OPEN
    shard, inputs_stop = call.shards[row], start + part.inputs
    item, low, high = shard.item, start, stop
    for t in range(call.tracks.shape[1]):
        if call.tracks[row, t].kind == DENSE:
            low = max(0, start - 1)
            high = max(high, min(inputs_stop + 1 + call.outputs[t].labels, shard.tokens))
    code = read(call, row, STREAM, call.scratch, (high - low) * item, shard.offset + low * item)
    if code != OK:
        return code

    shared = length > size
    first = sample * length + place
    at = (start - low) * item
    inputs = array_at(batch.input_ids, first, (stop if shared else inputs_stop) - start, np.int64)
    source = np.int64(call.scratch.ctypes.data)
    bad = take(source + at, item, shard.code, shard.top_id, inputs.ctypes.data, len(inputs))
    if bad != OK:
        return wrong(call, BAD_TOKEN, start + bad - 1, inputs[bad - 1], shard.top_id + 1)
    if place == 0 or packed:  # the first token of a row or a document is no label
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
        target, begin, taken = sample * size + place, (start - low) * item, part.inputs
        if out.labels:
            target, begin, taken = first - sample * (length - size), at, count
        if field.at < 0:  # a weight that the dataset does not have
            blank = array_at(out.address, target, taken, np.int32)
            for i in range(len(blank)):
                blank[i] = np.int32(field.code)
            continue
        bad = take(source + begin + field.at, item, field.code, 0, out.address + out.width * target, taken)
        if bad != OK:
            bits = array_at(out.address, target + bad - 1, 1, np.uint32)[0]
            return wrong(call, BAD_WEIGHT, low + begin // item + bad - 1, np.int64(bits), 0)

    mask = array_at(batch.loss_mask, first - sample * (length - size), count, np.float32)
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

    if shard.documents and part.document < 0:
        code = walk_items(call, Tokens(row, start, stop, place), -1)
    else:
        begin_document(call, place, place + part.inputs, part.document, packed)
    inside = Tokens(row, start, inputs_stop, place)
    named = Tokens(row, stop - count, stop, first - sample * length)
    for t in range(call.tracks.shape[1]):
        found = named if call.outputs[t].labels else inside
        if code == OK and call.tracks[row, t].kind != NONE and found.start < found.stop:
            code = fill_track(call, found, t, low)
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
    batch, state = call.arrays[0], call.state[0]
    while state.sample < len(samples):
        number, window, index = members[state.sample], np.int64(windows[state.sample]), samples[state.sample]
        member = call.members[number]
        if member.first_shard < 0:
            return wrong(call, ABSENT_MEMBER, number, 0, 0)
        if not 0 <= window < member.count:
            return wrong(call, ABSENT_WINDOW, window, 0, member.count)
        if state.position == 0:
            state.sequences_before = state.sequences
        code, tokens = make_parts(call, number, window, index)
        if code != OK:
            return code
        if state.position == 0:
            blank_row(call, state.sample, index, member, tokens)
        while state.position < state.parts:
            code = fill_part(call, call.parts[state.position], member)
            if code != OK:
                return code
            state.position += 1
        state.sample += 1
        state.position = 0
        sequences = array_at(batch.cu_seqlens, state.sequences, 1, np.int32)
        for i in range(len(sequences)):
            sequences[i] = np.int32(state.sample * batch.seq_len)
            state.sequences += 1
    ignore_labels(call, len(samples))
    sequences = array_at(batch.cu_seqlens, 0, state.sequences, np.int32)
    state.longest = 0
    for i in range(1, len(sequences)):
        state.longest = max(state.longest, np.int64(sequences[i] - sequences[i - 1]))
    return OK
