"""Kernels: whole batches, from windows or from sample indices, into the arrays of a batch. One call, no GIL.

All arithmetic is int64. A kernel returns OK or another code of system.py; Call.state says what it was doing.
"""

from typing import Any

import numpy as np

from conceptloader.kernels import records
from conceptloader.kernels.holes import blank_holes, next_kept
from conceptloader.kernels.items import begin_document, fill_track, place_document, walk_items
from conceptloader.kernels.kernel import inner, kernel
from conceptloader.kernels.order import GOLDEN, ONE, locate_many, mix64, windows_many
from conceptloader.kernels.parts import NO_DOCUMENT, make_parts
from conceptloader.kernels.records import DENSE, NONE, Call, PickBy, Picks, Tokens
from conceptloader.kernels.system import (
    DOCUMENTS,
    GROW,
    OK,
    STREAM,
    WANTS,
    Code,
    array_at,
    need,
    read,
    set_all,
    set_blank,
    take,
    wrong,
)

MAX_U4 = np.int64((1 << 32) - 1)


@inner
def blank_row(call: Call, index: Any, member: Any, tokens: int) -> None:
    """What does not depend on the tokens, of which a row will have `tokens`: positions, names, padding, no spans."""
    batch, sample = call.arrays[0], call.state[0].sample
    size, length, pad = batch.seq_len, batch.row_length, member.pad
    inputs = array_at(batch.input_ids, sample * length, size, np.int64)
    labels = array_at(batch.labels, sample * length, size, np.int64)
    positions = array_at(batch.position_ids, sample * size, size, np.int64)
    names = array_at(batch.dataset_id, sample, 1, np.int64)
    numbers = array_at(batch.sample_index, sample, 1, np.int64)
    seeds = array_at(batch.sample_seed, sample, 1, np.uint64)
    set_all(inputs[tokens:], pad)
    set_all(labels[max(0, tokens - 1) :], pad)
    for i in range(len(positions)):
        positions[i] = i
    set_all(names, member.dataset_id)
    set_all(numbers, np.int64(index))
    for i in range(len(seeds)):  # order.reference.sample_random
        seeds[i] = mix64(np.uint64(batch.random_key) + mix64(index + GOLDEN)) >> ONE
    for k in range(len(call.columns)):
        out = call.columns[k]
        first = min(size, max(0, tokens - out.labels))
        begin = (sample * size + first) * out.width + sample * out.bytes
        set_blank(out, begin, (size - first) * out.width + out.bytes)
    for t in range(len(call.outputs)):
        slots = call.outputs[t].max_spans
        offsets = array_at(call.outputs[t].offsets, sample * slots, slots + 1, np.int64)
        for i in range(1, len(offsets)):
            offsets[i] = offsets[0]


@inner
def fill_tokens(call: Call, inside: Tokens, named: Tokens, low: int, member: Any) -> Code:
    """Inputs and labels, fields and the loss mask, out of stream items in `scratch`, which begins with item `low`."""
    batch, row, sample = call.arrays[0], inside.row, call.state[0].sample
    size, length, count = batch.seq_len, batch.row_length, named.stop - named.start
    layout = call.layouts[call.shards[row].layout]
    item, source, shared = layout.item, np.int64(call.scratch.ctypes.data), length > size
    behind = named.stop if shared else inside.stop
    inputs = array_at(batch.input_ids, sample * length + inside.place, behind - inside.start, np.int64)
    at = source + (inside.start - low) * item
    bad = take(at, item, layout.code, layout.top_id, inputs.ctypes.data, len(inputs))
    if bad != OK:
        return wrong(call, records.BAD_TOKEN, inside.start + bad - 1, inputs[bad - 1], layout.top_id + 1)
    labels = array_at(batch.labels, sample * length + named.place, count, np.int64)
    if not shared:
        at = source + (named.start - low) * item
        bad = take(at, item, layout.code, layout.top_id, labels.ctypes.data, count)
        if bad != OK:
            return wrong(call, records.BAD_TOKEN, named.start + bad - 1, labels[bad - 1], layout.top_id + 1)

    for k in range(call.fields.shape[1]):
        out, field = call.columns[k], call.fields[row, k]
        if field.file != STREAM:
            continue
        tokens = named if out.labels else inside
        target, taken = sample * size + tokens.place, tokens.stop - tokens.start
        if field.at < 0:  # a weight that the dataset does not have
            set_all(array_at(out.address, target, taken, np.int32), field.code)
            continue
        at = source + (tokens.start - low) * item + field.at
        bad = take(at, item, field.code, 0, out.address + out.width * target, taken)
        if bad != OK:
            bits = array_at(out.address, target + bad - 1, 1, np.uint32)[0]
            call.state[0].other = k
            return wrong(call, records.BAD_WEIGHT, tokens.start + bad - 1, np.int64(bits), 0)

    mask = array_at(batch.loss_mask, sample * size + named.place, count, np.float32)
    eos, at = member.eos, (named.start - low) * item + layout.loss
    set_all(mask, 1)
    if eos >= 0 and not batch.loss_on_eos:
        for i in range(len(mask)):
            if labels[i] == eos:
                mask[i] = 0.0
    if layout.loss >= 0:
        for i in range(len(mask)):
            if call.scratch[at + i * item] == 0:
                mask[i] = 0.0
    return OK


@inner
def fill_columns(call: Call, inside: Tokens, named: Tokens) -> Code:
    """Items of columns, one read of each: into the batch, or by way of the buffer if its elements become wider."""
    size, sample, row, code = call.arrays[0].seq_len, call.state[0].sample, inside.row, OK
    for k in range(call.fields.shape[1]):
        out, field = call.columns[k], call.fields[row, k]
        tokens = named if out.labels else inside
        count, begin = tokens.stop - tokens.start, (sample * size + tokens.place) * out.width
        if field.file == STREAM or count <= 0:
            continue
        if field.file < 0:
            set_blank(out, begin, count * out.width)
            continue
        at, whole = field.at + tokens.start * field.step, count * field.step
        if field.unit == 0:
            target = array_at(out.address, begin, whole, np.uint8)
            code = max(code, read(call, row, field.file, target, whole, at))
        else:
            found, done = need(call, row, field.file, whole, at), np.int64(0)
            wide = out.width * field.unit // field.step
            while found == OK and done < whole:
                part = min(whole - done, len(call.buffer) // field.unit * field.unit)
                found = read(call, row, field.file, call.buffer, part, at + done)
                if found == OK:
                    target = out.address + begin + done // field.unit * wide
                    take(np.int64(call.buffer.ctypes.data), field.unit, field.code, MAX_U4, target, part // field.unit)
                done += part
            code = max(code, found)
        if field.holes >= 0:
            code = max(code, blank_missing(call, tokens, out, field.holes))
        if code > WANTS:
            return code
    return code


@inner
def blank_missing(call: Call, tokens: Tokens, out: Any, file: int) -> Code:
    """Items of tokens without a value, which are bits in a file, blank."""
    size, sample, row = call.arrays[0].seq_len, call.state[0].sample, tokens.row
    first, last = tokens.start >> 3, (tokens.stop + 7) >> 3
    code = need(call, row, file, last - first, first)
    while code == OK and first < last:
        part = min(last - first, len(call.buffer))
        code = read(call, row, file, call.buffer, part, first)
        if code == OK:
            for t in range(max(tokens.start, first << 3), min(tokens.stop, (first + part) << 3)):
                if call.buffer[(t >> 3) - first] >> (t & 7) & 1:
                    set_blank(out, (sample * size + tokens.place + t - tokens.start) * out.width, out.width)
        first += part
    return code


@inner
def fill_part(call: Call, part: Any, member: Any) -> Code:
    """A part of the sample at hand; one read of the stream. What lacks does not keep the rest from being asked for."""
    row, start, stop, place, packed = part.row, part.start, part.stop, part.place, member.bins > 0
    if row < 0:
        begin_document(call, place, place + part.inputs, NO_DOCUMENT, packed)
        return OK
    call.used[row] = call.state[0].clock  # of several threads any one: a late value closes another idle file first
    shard, inputs_stop = call.shards[row], start + part.inputs
    skipped = 1 if place == 0 or packed else 0  # the first token of a row or a document is no label
    inside = Tokens(row, start, inputs_stop, place)
    named = Tokens(row, start + skipped, stop, place - 1 + skipped)
    low, high = start, stop
    for t in range(call.tracks.shape[1]):
        if call.tracks[row, t].kind == DENSE:
            low = max(0, start - 1)
            high = max(high, min(inputs_stop + 1 + call.outputs[t].labels, shard.tokens))
    item = call.layouts[shard.layout].item
    streamed = OK
    if call.arrays[0].input_ids:  # else only the boundaries are wanted
        streamed = read(call, row, STREAM, call.scratch, (high - low) * item, shard.offset + low * item)
        if streamed == OK:
            streamed = fill_tokens(call, inside, named, low, member)
    code = streamed if streamed > WANTS else max(streamed, fill_columns(call, inside, named))
    if code > WANTS:
        return code
    if shard.documents and member.documents and part.document < 0:
        tokens = Tokens(row, start, stop, place)
        code = max(code, walk_items(call, tokens, 0, DOCUMENTS, shard.documents, place_document))
    else:
        begin_document(call, place, place + part.inputs, part.document, packed)
    if member.end_range < member.end_own:
        blank_holes(call, part, member, inside, named)
    for t in range(call.tracks.shape[1]):
        found, kind = named if call.outputs[t].labels else inside, call.tracks[row, t].kind
        if kind == NONE or (kind == DENSE and streamed != OK) or found.start >= found.stop:
            continue
        at, end = next_kept(call, part, member, found.start, found.stop)
        while at < end and code <= WANTS:
            code = max(code, fill_track(call, Tokens(row, at, end, found.place + at - found.start), t, low))
            at, end = next_kept(call, part, member, end, found.stop)
    return code


@inner
def fill_sample(call: Call, number: Any, window: int, index: Any) -> Code:
    """Window, document or pack `window` of member `number` as sample `index` of the run, the sample at hand."""
    state, member = call.state[0], call.members[number]
    if member.first_shard < 0:
        return wrong(call, records.ABSENT_MEMBER, number, 0, 0)
    if not 0 <= window < member.count:
        return wrong(call, records.ABSENT_WINDOW, window, 0, member.count)
    code, tokens = make_parts(call, number, window)
    if code > WANTS:
        return code
    blank_row(call, index, member, tokens)
    for k in range(state.parts if code == OK else 0):
        code = max(code, fill_part(call, call.parts[k], member))
        if code > WANTS:
            return code
    sequences = array_at(call.arrays[0].cu_seqlens, state.sequences, 1, np.int32)
    set_all(sequences, (state.sample + 1) * call.arrays[0].seq_len)
    state.sequences += len(sequences)
    return code


@inner
def begin_batch(call: Call) -> None:
    """What the first sample continues from."""
    batch, state = call.arrays[0], call.state[0]
    sequences = array_at(batch.cu_seqlens, 0, 1, np.int32)
    set_all(sequences, 0)
    state.complete_sequences = len(sequences)
    for t in range(len(call.outputs)):
        set_all(array_at(call.outputs[t].offsets, 0, 1, np.int64), 0)


@inner
def end_batch(call: Call, samples: int) -> None:
    """Replace labels without loss, once all is known that masks any; the longest sequence."""
    batch, state = call.arrays[0], call.state[0]
    labels = array_at(batch.labels, 0, samples * batch.seq_len if batch.ignore_index else 0, np.int64)
    mask = array_at(batch.loss_mask, 0, len(labels), np.float32)
    for i in range(len(labels)):
        if mask[i] == 0.0:
            labels[i] = batch.ignore_index
    sequences = array_at(batch.cu_seqlens, 0, state.sequences, np.int32)
    state.longest = 0
    for i in range(1, len(sequences)):
        state.longest = max(state.longest, np.int64(sequences[i] - sequences[i - 1]))


@inner
def pick_windows(picks: Picks, order: PickBy) -> None:
    """The members and windows of the samples, unless they are given."""
    samples, _, members, windows, draws = picks
    tables, scratch = order
    skip_at, skip_total = tables.skip_at, tables.skip_total
    if len(tables.phases.starts) == 0:
        return
    for k in range(len(samples)):
        passed = 0
        while passed < len(skip_at) and skip_at[passed] <= samples[k]:
            passed += 1
        windows[k] = samples[k] + skip_total[passed]
    locate_many(windows, members, draws, tables.phases, scratch)
    # The epochs, which nobody asks for, replace the draws.
    windows_many(members, draws, draws, windows, tables.sizes, scratch)


@kernel
def fill_samples(call: Call, picks: Picks, order: PickBy) -> Code:
    """Fill the samples from state.complete on, in a pass over all of them.

    One that lacks something says what, and is tried again by the next pass, as are all after it.
    """
    pick_windows(picks, order)
    state = call.state[0]
    if state.complete == 0:
        begin_batch(call)
    state.wants = 0
    state.sequences = state.complete_sequences
    for k in range(state.complete, len(picks.samples)):
        before = state.sequences
        state.sample = k
        state.now = np.int64(picks.positions[k])
        code = fill_sample(call, picks.members[k], np.int64(picks.windows[k]), picks.samples[k])
        if code == GROW or (code > WANTS and k == state.complete):
            return code
        if code > WANTS:  # it counts once all before it is complete
            break
        if code == WANTS:
            state.sequences = before
        elif k == state.complete:
            state.complete = k + 1
            state.complete_sequences = state.sequences
    state.announcing = 0
    if state.complete < len(picks.samples):
        return WANTS
    end_batch(call, len(picks.samples))
    return OK
