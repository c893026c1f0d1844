"""Kernels: the documents that hold tokens of a shard, and what they mean for a row of a batch."""

import numpy as np

from conceptloader.base.compiled import inner
from conceptloader.batch.kernels.streams import DAMAGED, OK, ONE, SEQUENCES, WORD, ZERO, load8, read
from conceptloader.batch.kernels.tables import BLOCK, DOCUMENT_TABLE, DOCUMENTS, FIRST_DOCUMENT, TOKENS
from conceptloader.batch.layout import Array


@inner
def find_items(
    files: Array, row: int, column: int, table_at: int, block: int, count: int, start: int, stop: int,
    buffer: Array, state: Array, found: Array,
) -> int:  # fmt: skip
    """found[0], found[1] = low, high: items low to high - 1 hold tokens [start, stop) of a shard; see read/reader.py.

    A block table entry is read for every block of the range, in pieces of the buffer's size: only the ends matter.
    """
    first = start // block
    last = -(-stop // block)
    near = min(last - first + 1, len(buffer) // 8)
    code = read(files, row, column, buffer, 8 * near, table_at + 8 * first, state)
    if code != OK:
        return code
    low = load8(buffer, ZERO)
    if first + near - 1 < last:
        code = read(files, row, column, buffer, WORD, table_at + 8 * last, state)
        if code != OK:
            return code
        near = 1
    high = load8(buffer, 8 * (near - 1))
    found[0] = low
    found[1] = high + 1 if 0 <= high < count else count
    return OK if 0 <= low < found[1] else DAMAGED


@inner
def document_range(
    files: Array, row: int, ordinal: int, shard: Array, buffer: Array, state: Array, found: Array
) -> int:
    """found[0], found[1] = tokens [start, stop) of a document of a shard."""
    code = read(files, row, DOCUMENT_TABLE, buffer, 2 * WORD, 8 * ordinal, state)
    if code != OK:
        return code
    found[0] = load8(buffer, ZERO)
    found[1] = load8(buffer, WORD)
    return OK if 0 <= found[0] <= found[1] <= shard[TOKENS] else DAMAGED


@inner
def fill_document(
    document: int, begin: int, end: int, is_border: bool, sample: int, seq_len: int, mask_borders: bool,
    ids: Array, positions: Array, mask: Array, sequences: Array, state: Array,
) -> None:  # fmt: skip
    """One document's part [begin, end) of a row's seq_len + 1 tokens. Arrays that are not wanted have length 0."""
    if is_border:
        if mask_borders:
            mask[begin - 1] = 0.0
        if len(sequences) > 0 and begin < seq_len:
            sequences[state[SEQUENCES]] = np.int32(sample * seq_len + begin)
            state[SEQUENCES] += 1
    for i in range(begin, min(end, len(ids))):
        ids[i] = document
    for i in range(begin, min(end, len(positions))):
        positions[i] = i - begin


@inner
def fill_documents(
    files: Array, row: int, shard: Array, start: int, stop: int, place: int, sample: int, seq_len: int,
    mask_borders: bool, ids: Array, positions: Array, mask: Array, sequences: Array,
    buffer: Array, state: Array, found: Array,
) -> int:  # fmt: skip
    """The documents of tokens [start, stop) of a shard, which are tokens `place` and following of a row."""
    count = shard[DOCUMENTS]
    if count == 0:
        fill_document(
            -ONE, place, place + stop - start, place > 0, sample, seq_len, mask_borders, ids, positions, mask,
            sequences, state,
        )  # fmt: skip
        return OK
    column = DOCUMENT_TABLE
    code = find_items(files, row, column, 8 * (count + 1), shard[BLOCK], count, start, stop, buffer, state, found)
    if code != OK:
        return code
    low, high = found[0], found[1]
    capacity = len(buffer) // 8
    held = 0  # entries in the buffer, and the next one's place in it
    at = 0
    left = high - low + 1
    ordinal = low
    first = -1
    while left > 0:
        if at == held:
            held = min(left, capacity)
            code = read(files, row, column, buffer, 8 * held, 8 * (high + 1 - left), state)
            if code != OK:
                return code
            at = 0
        following = load8(buffer, 8 * at)
        at += 1
        left -= 1
        if first < 0:
            if not 0 <= following <= start:
                return DAMAGED
        else:
            if not first <= following <= shard[TOKENS]:
                return DAMAGED
            if first < following and following > start and first < stop:
                begin = place + max(first, start) - start
                fill_document(
                    shard[FIRST_DOCUMENT] + ordinal, begin, place + min(following, stop) - start,
                    begin > 0 and first >= start, sample, seq_len, mask_borders, ids, positions, mask, sequences, state,
                )  # fmt: skip
            ordinal += 1
        first = following
    return OK if first >= stop else DAMAGED
