"""Kernels: whole batches, from windows or from sample indices, into the arrays of a batch. One call, no GIL."""

from typing import Any

import numpy as np

from conceptloader.base.compiled import inner, kernel, numbered
from conceptloader.batch.kernels.documents import document_range, fill_documents
from conceptloader.batch.kernels.native import at_address
from conceptloader.batch.kernels.spans import clear_track, fill_track
from conceptloader.batch.kernels.streams import (
    ABSENT,
    LONGEST,
    NOT_OPEN,
    OK,
    ONE,
    POSITION,
    ROW,
    SAMPLE,
    SEQUENCE_SPACE,
    SEQUENCES,
    SEQUENCES_BEFORE,
    STATE_SIZE,
    mark_loss,
    read,
    widen,
)
from conceptloader.batch.kernels.tables import (
    BASE,
    BY_DOCUMENT,
    CODE,
    COUNT,
    DATASET_ID,
    DENSE,
    EOS,
    FIRST_DOCUMENT,
    FIRST_SHARD,
    ITEM,
    KIND,
    LOSS,
    NONE,
    OFFSET,
    PAD,
    Q_END,
    Q_FIRST,
    SHARDS,
    START,
    STREAM,
    TOKENS,
    TOP_ID,
)
from conceptloader.batch.layout import Array
from conceptloader.order.kernels import locate_many, windows_many

# Addresses of the arrays that a batch may have, in `arrays[0]`; 0 for one that is not wanted. The other rows are
# tracks.
INPUT_IDS, LABELS, LOSS_MASK, POSITION_IDS, DOCUMENT_IDS, DATASET_IDS, SAMPLE_INDEX, CU_SEQLENS = numbered(8)
ARRAY_NAMES = (
    "input_ids", "labels", "loss_mask", "position_ids", "document_ids", "dataset_id", "sample_index", "cu_seqlens",
)  # fmt: skip

# What a layout wants, in `options`. ROW_LENGTH: items of a row of input_ids and of labels, one more than SEQ_LEN if
# they share their memory: label j then lies where input j + 1 does.
SEQ_LEN, ROW_LENGTH, DOCUMENT_POSITIONS, NEEDS_DOCUMENTS, MASK_BORDERS, EOS_LOSS, OPTION_COUNT = numbered(7)


@inner
def shard_of(shards: Array, column: int, first: int, count: int, value: int) -> int:
    """Row of the last of `count` shards, from row `first` on, whose rising `column` is at most `value`."""
    low, high = first, first + count
    while high - low > 1:
        middle = (low + high) // 2
        if shards[middle, column] <= value:
            low = middle
        else:
            high = middle
    return low


@inner
def is_quarantined(member: Array, quarantine: Array, start: int, stop: int) -> bool:
    """Whether tokens [start, stop) touch a quarantined range."""
    found = False
    for q in range(member[Q_FIRST], member[Q_END]):
        found |= quarantine[q, 0] < stop and start < quarantine[q, 1]
    return found


@inner
def is_quarantined_whole(member: Array, quarantine: Array, start: int, stop: int) -> bool:
    """Whether tokens [start, stop) lie within a quarantined range."""
    found = False
    for q in range(member[Q_FIRST], member[Q_END]):
        found |= quarantine[q, 0] <= start and stop <= quarantine[q, 1]
    return found


@inner
def begin_sample(sample: int, index: Any, member: Array, arrays: Array, options: Array) -> None:
    """What does not depend on the tokens: positions from 0, names, no spans."""
    size = options[SEQ_LEN]
    positions = at_address(
        arrays[0, POSITION_IDS] + 8 * sample * size, size if arrays[0, POSITION_IDS] else 0, np.int64
    )
    for i in range(len(positions)):
        positions[i] = i
    if arrays[0, DATASET_IDS]:
        at_address(arrays[0, DATASET_IDS] + 8 * sample, ONE, np.int64)[0] = member[DATASET_ID]
    if arrays[0, SAMPLE_INDEX]:
        at_address(arrays[0, SAMPLE_INDEX] + 8 * sample, ONE, np.int64)[0] = np.int64(index)
    for t in range(1, len(arrays)):
        clear_track(arrays[t], sample, size)


@inner
def pad_sample(sample: int, tokens: int, member: Array, arrays: Array, options: Array) -> None:
    """The rest of a row of which only `tokens` tokens were there to be read."""
    size, length = options[SEQ_LEN], options[ROW_LENGTH]
    inputs = at_address(arrays[0, INPUT_IDS] + 8 * sample * length, size, np.int64)
    labels = at_address(arrays[0, LABELS] + 8 * sample * length, size, np.int64)
    mask = at_address(arrays[0, LOSS_MASK] + 4 * sample * size, size if arrays[0, LOSS_MASK] else 0, np.float32)
    for i in range(tokens, size):
        inputs[i] = member[PAD]
    for i in range(max(0, tokens - 1), size):
        labels[i] = member[PAD]
    for i in range(max(0, tokens - 1), len(mask)):
        mask[i] = 0.0
    if arrays[0, POSITION_IDS] and tokens == 0:
        positions = at_address(arrays[0, POSITION_IDS] + 8 * sample * size, size, np.int64)
        for i in range(size):
            positions[i] = i
    ids = at_address(arrays[0, DOCUMENT_IDS] + 8 * sample * size, size if arrays[0, DOCUMENT_IDS] else 0, np.int64)
    for i in range(tokens, len(ids)):
        ids[i] = -1


@inner
def find_tokens(
    files: Array, shards: Array, member: Array, quarantine: Array, window: int, options: Array,
    buffer: Array, state: Array, found: Array,
) -> int:  # fmt: skip
    """found[0], found[1] = the tokens [start, stop) of the dataset that a sample reads, none if it is quarantined;
    found[2] = a row of `shards` at or before the one of `start`."""
    first, count = member[FIRST_SHARD], member[SHARDS]
    if not member[BY_DOCUMENT]:
        start = member[START] + window * options[SEQ_LEN]
        stop = start + options[SEQ_LEN] + 1
        found[2] = shard_of(shards, BASE, first, count, start)
    else:
        document = member[START] + window
        row = shard_of(shards, FIRST_DOCUMENT, first, count, document)
        base = shards[row, BASE]
        if is_quarantined_whole(member, quarantine, base, base + shards[row, TOKENS]):
            found[0] = found[1] = 0
            return OK
        code = document_range(
            files, row, document - shards[row, FIRST_DOCUMENT], shards[row], buffer, state, found
        )  # fmt: skip
        if code != OK:
            return code
        start, stop = base + found[0], min(base + found[1], base + found[0] + options[SEQ_LEN] + 1)
        found[2] = row
    if is_quarantined(member, quarantine, start, stop):
        stop = start
    found[0] = start
    found[1] = stop
    return OK


@inner
def fill_piece(
    files: Array, shards: Array, tracks: Array, row: int, member: Array, a: int, e: int, place: int,
    sample: int, document: int, arrays: Array, options: Array, slots: Array, scratch: Array, buffer: Array,
    state: Array, found: Array,
) -> int:  # fmt: skip
    """Tokens [a, e) of one shard into a row, as its tokens `place` and following; one read of the stream."""
    size, length = options[SEQ_LEN], options[ROW_LENGTH]
    shard = shards[row]
    inputs_end = min(e, a + size - place)  # the last token of a full window is a label only
    low, high = a, e
    for t in range(tracks.shape[1]):
        if tracks[row, t, KIND] == DENSE:
            low = max(0, a - 1)
            high = max(e, min(inputs_end + 1, shard[TOKENS]))
    item = shard[ITEM]
    code = read(files, row, STREAM, scratch, (high - low) * item, shard[OFFSET] + low * item, state)
    if code != OK:
        return code
    skip = (a - low) * item
    shared = length > size
    tokens = (e if shared else inputs_end) - a
    inputs = at_address(arrays[0, INPUT_IDS] + 8 * (sample * length + place), tokens, np.int64)
    code = widen(scratch, skip, item, shard[CODE], shard[TOP_ID], inputs)
    if code != OK:
        return code
    ahead = 1 if place == 0 else 0  # the first token of a row is no label
    first = place + ahead - 1
    skip += ahead * item
    labels = at_address(arrays[0, LABELS] + 8 * (sample * length + first), e - a - ahead, np.int64)
    if not shared:
        code = widen(scratch, skip, item, shard[CODE], shard[TOP_ID], labels)
        if code != OK:
            return code
    mask = at_address(arrays[0, LOSS_MASK] + 4 * sample * size, size if arrays[0, LOSS_MASK] else 0, np.float32)
    eos = -1 if options[EOS_LOSS] else member[EOS]
    mark_loss(scratch, skip, item, shard[LOSS], eos, labels, mask[first : first + e - a - ahead])
    ids = at_address(arrays[0, DOCUMENT_IDS] + 8 * sample * size, size if arrays[0, DOCUMENT_IDS] else 0, np.int64)
    if document >= 0:
        for i in range(place, min(place + inputs_end - a, len(ids))):
            ids[i] = document
    elif options[NEEDS_DOCUMENTS]:
        resets = size if options[DOCUMENT_POSITIONS] else 0
        positions = at_address(arrays[0, POSITION_IDS] + 8 * sample * size, resets, np.int64)
        wants = arrays[0, CU_SEQLENS]
        sequences = at_address(wants, state[SEQUENCE_SPACE] if wants else 0, np.int32)
        code = fill_documents(
            files, row, shard, a, e, place, sample, size, options[MASK_BORDERS] != 0, ids, positions, mask, sequences,
            buffer, state, found,
        )  # fmt: skip
        if code != OK:
            return code
    if inputs_end > a:
        for t in range(tracks.shape[1]):
            if tracks[row, t, KIND] != NONE:
                code = fill_track(
                    files, row, np.int64(t), shard, tracks[row, t], scratch, low, a, inputs_end, place, sample, size,
                    arrays[t + 1], slots, buffer, state, found,
                )  # fmt: skip
                if code != OK:
                    return code
    return OK


@kernel
def fill_samples(
    samples: Array, positions: Array, phases: Any, datasets: Any, members_of: Array, draws: Array, windows: Array,
    files: Array, used: Array, clock: int, shards: Array, tracks: Array, members: Array, quarantine: Array,
    arrays: Array, options: Array, slots: Array, scratch: Array, buffer: Array, state: Array,
) -> int:  # fmt: skip
    """Fill the samples from state[SAMPLE], state[POSITION] on. Returns a code; state says where it stopped.

    positions: of the samples in a mixture with the tables `phases` and `datasets`; empty if windows[k] of members_of[k]
    are given. draws: room for one number a sample.
    """
    if len(positions) > 0:
        locate_many(positions, members_of, draws, *phases)
        windows_many(members_of, draws, draws, windows, *datasets)  # the epochs, which nobody asks for, replace draws
    found = state[STATE_SIZE:]
    size = options[SEQ_LEN]
    wants_sequences = arrays[0, CU_SEQLENS]
    sequences = at_address(wants_sequences, state[SEQUENCE_SPACE] if wants_sequences else 0, np.int32)
    while state[SAMPLE] < len(samples):
        sample = state[SAMPLE]
        member = members[members_of[sample]]
        if member[FIRST_SHARD] < 0 or np.int64(windows[sample]) >= member[COUNT]:
            return ABSENT
        if state[POSITION] == 0:
            state[SEQUENCES_BEFORE] = state[SEQUENCES]
            begin_sample(sample, samples[sample], member, arrays, options)
        code = find_tokens(
            files, shards, member, quarantine, np.int64(windows[sample]), options, buffer, state, found
        )  # fmt: skip
        if code != OK:
            return code
        start, stop, row = found[0], found[1], found[2]
        document = member[START] + np.int64(windows[sample]) if member[BY_DOCUMENT] else -ONE
        at = start + state[POSITION]
        while at < stop:
            base = shards[row, BASE]
            if at >= base + shards[row, TOKENS]:
                row += 1
                continue
            used[row] = clock
            if files[row, STREAM] < 0:
                state[ROW] = row
                return NOT_OPEN
            end = min(stop, base + shards[row, TOKENS])
            code = fill_piece(
                files, shards, tracks, row, member, at - base, end - base, at - start, sample, document, arrays,
                options, slots, scratch, buffer, state, found,
            )  # fmt: skip
            if code != OK:
                return code
            at = end
            state[POSITION] = at - start
        if stop - start <= size:
            pad_sample(sample, stop - start, member, arrays, options)
        if wants_sequences:
            sequences[state[SEQUENCES]] = np.int32((sample + 1) * size)
            state[SEQUENCES] += 1
        state[SAMPLE] = sample + 1
        state[POSITION] = 0
    state[LONGEST] = 0
    if wants_sequences:
        for i in range(1, state[SEQUENCES]):
            state[LONGEST] = max(state[LONGEST], np.int64(sequences[i] - sequences[i - 1]))
    return OK
