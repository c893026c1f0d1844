"""Kernels: the spans of a shard's tokens, and their concepts, into a row of a batch."""

import numpy as np

from conceptloader.base.compiled import inner, numbered
from conceptloader.batch.kernels.documents import find_items
from conceptloader.batch.kernels.native import at_address
from conceptloader.batch.kernels.streams import COLUMN, DAMAGED, FULL, NEEDED, OK, ONE, ZERO, load4, load8, read
from conceptloader.batch.kernels.tables import (
    BLOCK,
    DATA,
    DATA_SIZE,
    DENSE,
    ENTRIES,
    ENTRY_TABLE,
    FIELD,
    FILES_PER_TRACK,
    INDEX,
    ITEM,
    KIND,
    RECORDS,
    TOKENS,
    TOP_CONCEPT,
    TRACK_FILES,
)
from conceptloader.batch.layout import Array

NO_RECORD = (ONE << 32) - 1
ENTRY_BYTES = 12
HOLE_BYTES = 4096  # holes up to this size between wanted records are read along
MAX_RECORD_BYTES = 1 << 26
SLOT_BITS, SLOT_MASK = 31, (1 << 31) - 1

# Rows of `slots`, a column per span of the sample: record number with the slot below it, in order; begin and bytes of
# the record in the data file; concepts that are taken; where in the values they go.
KEYS, BEGIN, LENGTH, TAKEN, TARGET, SLOT_ROWS = numbered(6)

# Addresses of a track's arrays in `arrays`, and its limits.
SPAN_INDEX, NUM_SPANS, SPAN_ENDS, FLAGS, IDS, COUNTS, OFFSETS, VALUES, CAPACITY, MAX_SPANS, MAX_CONCEPTS, CUT_SPANS, \
    CUT_CONCEPTS, RAGGED, ARRAY_COLUMNS = numbered(15)  # fmt: skip
ARRAY_SUFFIXES = ("span_index", "num_spans", "spans", "flags", "ids", "counts", "offsets")


@inner
def add_span(
    arrays: Array, sample: int, seq_len: int, begin: int, end: int, flags: int, record: int, slots: Array
) -> int:
    """One span [begin, end) of a row's inputs; its record is left in `slots`."""
    limit = arrays[MAX_SPANS]
    count = at_address(arrays[NUM_SPANS] + 4 * sample, 1, np.int32)
    slot = np.int64(count[0])
    if slot >= limit:
        return OK if arrays[CUT_SPANS] else DAMAGED
    count[0] = np.int32(slot + 1)
    index = at_address(arrays[SPAN_INDEX] + 4 * (sample * seq_len + begin), end - begin, np.int32)
    for i in range(len(index)):
        index[i] = np.int32(slot)
    ends = at_address(arrays[SPAN_ENDS] + 8 * (sample * limit + slot), 2, np.int32)
    ends[0] = np.int32(begin)
    ends[1] = np.int32(end)
    at_address(arrays[FLAGS] + sample * limit + slot, 1, np.uint8)[0] = np.uint8(flags)
    slots[KEYS, slot] = record << SLOT_BITS | slot
    return OK


@inner
def dense_spans(
    shard: Array, track: Array, data: Array, low: int, start: int, stop: int, place: int, sample: int,
    seq_len: int, arrays: Array, slots: Array,
) -> int:  # fmt: skip
    """Runs of equal record ids over tokens [start, stop); `data` begins with item `low`, which is at most start - 1."""
    item = shard[ITEM]
    at = (start - low) * item + track[FIELD]
    before = load4(data, at - item) if start > low else -1
    record = load4(data, at)
    begin = start
    token = start
    while token < stop:
        token += 1
        at += item
        following = load4(data, at) if token < stop or token < shard[TOKENS] else -1
        if following == record and token < stop:
            continue
        if record != NO_RECORD:
            if record >= track[RECORDS]:
                return DAMAGED
            flags = (1 if begin == start and before == record else 0) + (2 if following == record else 0)
            code = add_span(arrays, sample, seq_len, place + begin - start, place + token - start, flags, record, slots)
            if code != OK:
                return code
        begin = token
        record = following
    return OK


@inner
def listed_spans(
    files: Array, row: int, t: int, shard: Array, track: Array, start: int, stop: int, place: int, sample: int,
    seq_len: int, arrays: Array, slots: Array, buffer: Array, state: Array, found: Array,
) -> int:  # fmt: skip
    """Spans of tokens [start, stop) from the spans file."""
    column = TRACK_FILES + ENTRY_TABLE + t * FILES_PER_TRACK
    count = track[ENTRIES]
    code = find_items(
        files, row, column, ENTRY_BYTES * count, shard[BLOCK], count, start, stop, buffer, state, found
    )  # fmt: skip
    if code != OK:
        return code
    low, high = found[0], found[1]
    until = min(high + 1, count)
    capacity = len(buffer) // ENTRY_BYTES
    held = 0
    at = 0
    first = -1
    record = NO_RECORD
    entry = low
    while entry <= high:
        if entry == count:
            following = shard[TOKENS]
            next_record = NO_RECORD
        else:
            if at == held:
                held = min(until - entry, capacity)
                code = read(files, row, column, buffer, ENTRY_BYTES * held, ENTRY_BYTES * entry, state)
                if code != OK:
                    return code
                at = 0
            following = load8(buffer, ENTRY_BYTES * at)
            next_record = load4(buffer, ENTRY_BYTES * at + 8)
            at += 1
        if first < 0:
            if not 0 <= following <= start:
                return DAMAGED
        else:
            if not first < following <= shard[TOKENS]:
                return DAMAGED
            if following > start and first < stop and record != NO_RECORD:
                if record >= track[RECORDS]:
                    return DAMAGED
                flags = (1 if first < start else 0) + (2 if following > stop else 0)
                begin, end = place + max(first, start) - start, place + min(following, stop) - start
                code = add_span(arrays, sample, seq_len, begin, end, flags, record, slots)
                if code != OK:
                    return code
        first = following
        record = next_record
        entry += 1
    return OK if first >= stop else DAMAGED


@inner
def sort_keys(keys: Array) -> None:
    """Shell sort: mostly sorted already, and short."""
    n = len(keys)
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            key = keys[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 2


@inner
def find_records(
    files: Array, row: int, column: int, track: Array, keys: Array, arrays: Array, slots: Array,
    buffer: Array, state: Array,
) -> int:  # fmt: skip
    """Begin and length of the records of sorted `keys`, in index reads that join what lies close together."""
    capacity = len(buffer) // 8
    low = 0
    while low < len(keys):
        first = keys[low] >> SLOT_BITS
        high = low + 1
        last = first
        while high < len(keys):
            record = keys[high] >> SLOT_BITS
            if record - last > HOLE_BYTES // 8 + 1 or record - first + 2 > capacity:
                break
            last = record
            high += 1
        code = read(files, row, column, buffer, 8 * (last - first + 2), 8 * first, state)
        if code != OK:
            return code
        before = load8(buffer, ZERO)
        for i in range(1, last - first + 2):
            offset = load8(buffer, 8 * i)
            if offset < before:
                return DAMAGED
            before = offset
        if load8(buffer, ZERO) < 0 or before > track[DATA_SIZE]:
            return DAMAGED
        for k in range(low, high):
            slot = keys[k] & SLOT_MASK
            at = 8 * ((keys[k] >> SLOT_BITS) - first)
            size = load8(buffer, at + 8) - load8(buffer, at)
            if size % 4 or size > MAX_RECORD_BYTES or (size // 4 > arrays[MAX_CONCEPTS] and not arrays[CUT_CONCEPTS]):
                return DAMAGED
            slots[BEGIN, slot] = load8(buffer, at)
            slots[LENGTH, slot] = size
            slots[TAKEN, slot] = min(size // 4, arrays[MAX_CONCEPTS])
        low = high
    return OK


@inner
def place_concepts(arrays: Array, sample: int, first: int, count: int, slots: Array, state: Array) -> int:
    """Decide where the concepts of slots [first, count) go: TARGET is an index into ids or values."""
    limit = arrays[MAX_SPANS]
    if not arrays[RAGGED]:
        counts = at_address(arrays[COUNTS] + 4 * sample * limit, limit, np.int32)
        for slot in range(first, count):
            counts[slot] = np.int32(slots[TAKEN, slot])
            slots[TARGET, slot] = (sample * limit + slot) * arrays[MAX_CONCEPTS]
        return OK
    offsets = at_address(arrays[OFFSETS] + 8 * sample * limit, limit + 1, np.int64)
    for slot in range(first, count):
        slots[TARGET, slot] = offsets[slot]
        offsets[slot + 1] = offsets[slot] + slots[TAKEN, slot]
    for slot in range(count, limit):
        offsets[slot + 1] = offsets[count]
    state[NEEDED] = offsets[count]
    return FULL if offsets[count] > arrays[CAPACITY] else OK


@inner
def read_concepts(
    files: Array, row: int, column: int, track: Array, keys: Array, arrays: Array, slots: Array, buffer: Array,
    state: Array,
) -> int:  # fmt: skip
    """Concept ids of the records of sorted `keys`, in data reads that join what lies close together."""
    out = arrays[VALUES] if arrays[RAGGED] else arrays[IDS]
    top = track[TOP_CONCEPT]
    signs = ZERO  # negative if an id is above `top`
    low = 0
    while low < len(keys):
        slot = keys[low] & SLOT_MASK
        base = slots[BEGIN, slot]
        end = base + 4 * slots[TAKEN, slot]
        high = low + 1
        while high < len(keys):
            slot = keys[high] & SLOT_MASK
            begin = slots[BEGIN, slot]
            if begin < base or begin - end > HOLE_BYTES or begin + 4 * slots[TAKEN, slot] - base > len(buffer):
                break
            end = max(end, begin + 4 * slots[TAKEN, slot])
            high += 1
        done = base  # a record larger than the buffer is read in pieces, alone
        while done < end:
            size = min(end - done, len(buffer) // 4 * 4)
            code = read(files, row, column, buffer, size, done, state)
            if code != OK:
                return code
            for k in range(low, high):
                slot = keys[k] & SLOT_MASK
                begin = slots[BEGIN, slot]
                from_concept = max(0, (done - begin) // 4)
                to_concept = min(slots[TAKEN, slot], (done + size - begin) // 4)
                target = out + 8 * (slots[TARGET, slot] + from_concept)
                ids = at_address(target, max(0, to_concept - from_concept), np.int64)
                for i in range(len(ids)):
                    concept = load4(buffer, begin + 4 * (from_concept + i) - done)
                    ids[i] = concept
                    signs |= top - concept
            done += size
        low = high
    return DAMAGED if signs < 0 else OK


@inner
def fill_track(
    files: Array, row: int, t: int, shard: Array, track: Array, data: Array, low: int, start: int, stop: int,
    place: int, sample: int, seq_len: int, arrays: Array, slots: Array, buffer: Array, state: Array,
    found: Array,
) -> int:  # fmt: skip
    """Spans and concepts of tokens [start, stop) of a shard, which are inputs `place` and following of a row."""
    number = at_address(arrays[NUM_SPANS] + 4 * sample, 1, np.int32)
    before = np.int64(number[0])
    if track[KIND] == DENSE:
        code = dense_spans(shard, track, data, low, start, stop, place, sample, seq_len, arrays, slots)
    else:
        code = listed_spans(
            files, row, t, shard, track, start, stop, place, sample, seq_len, arrays, slots, buffer, state, found
        )  # fmt: skip
    count = np.int64(number[0])
    if code != OK or count == before:
        return code
    keys = slots[KEYS, before:count]
    sort_keys(keys)
    column = TRACK_FILES + t * FILES_PER_TRACK
    code = find_records(files, row, column + INDEX, track, keys, arrays, slots, buffer, state)
    if code == OK:
        code = place_concepts(arrays, sample, before, count, slots, state)
        if code == FULL:
            state[COLUMN] = t
    if code == OK:
        code = read_concepts(files, row, column + DATA, track, keys, arrays, slots, buffer, state)
    return code


@inner
def clear_track(arrays: Array, sample: int, seq_len: int) -> None:
    """A row without spans."""
    limit = arrays[MAX_SPANS]
    at_address(arrays[NUM_SPANS] + 4 * sample, 1, np.int32)[0] = 0
    index = at_address(arrays[SPAN_INDEX] + 4 * sample * seq_len, seq_len, np.int32)
    for i in range(seq_len):
        index[i] = -1
    ends = at_address(arrays[SPAN_ENDS] + 8 * sample * limit, 2 * limit, np.int32)
    for i in range(2 * limit):
        ends[i] = 0
    flags = at_address(arrays[FLAGS] + sample * limit, limit, np.uint8)
    for i in range(limit):
        flags[i] = 0
    if arrays[RAGGED]:
        offsets = at_address(arrays[OFFSETS] + 8 * sample * limit, limit + 1, np.int64)
        for i in range(limit):
            offsets[i + 1] = offsets[0]
        return
    counts = at_address(arrays[COUNTS] + 4 * sample * limit, limit, np.int32)
    for i in range(limit):
        counts[i] = 0
    size = limit * arrays[MAX_CONCEPTS]
    ids = at_address(arrays[IDS] + 8 * sample * size, size, np.int64)
    for i in range(size):
        ids[i] = -1
