"""Kernels: the documents and the spans that hold tokens of a part, and what they mean for a row of a batch."""

from typing import Any

import numpy as np

from conceptloader.kernels import records
from conceptloader.kernels.kernel import inner
from conceptloader.kernels.packing import add_document
from conceptloader.kernels.records import DENSE, TRUNCATED, Call, Tokens
from conceptloader.kernels.system import (
    DOCUMENTS,
    GROW,
    OK,
    STREAM,
    WANTS,
    Code,
    array_at,
    load,
    need,
    read,
    set_all,
    take,
    wrong,
)

NO_RECORD = np.int64((1 << 32) - 1)
SLOT_BITS = np.int64(31)  # of a slot's key
SLOT_MASK = np.int64((1 << 31) - 1)
HOLE_BYTES = 4096  # holes up to this size between wanted records are read along
MAX_RECORD_BYTES = 1 << 26


@inner
def find_items(call: Call, tokens: Tokens, column: int, table_at: int, count: int) -> tuple[Code, int, int]:
    """(code, low, high): of `count` items, low to high - 1 hold these tokens; see read/reader.py.

    A block table entry is read for every block of the range, in pieces of the buffer's size: only the ends matter.
    """
    block = call.layouts[call.shards[tokens.row].layout].block
    first, last = tokens.start // block, -(-tokens.stop // block)
    code = need(call, tokens.row, column, 8 * (last - first + 1), table_at + 8 * first)
    if code != OK:
        return code, 0, 0
    near = min(last - first + 1, len(call.buffer) // 8)
    code = read(call, tokens.row, column, call.buffer, 8 * near, table_at + 8 * first)
    if code != OK:
        return code, 0, 0
    address = np.int64(call.buffer.ctypes.data)
    low = load(address, np.int64)
    if first + near - 1 < last:
        code = read(call, tokens.row, column, call.buffer, 8, table_at + 8 * last)
        if code != OK:
            return code, 0, 0
        near = 1
    high = load(address + 8 * (near - 1), np.int64)
    high = high + 1 if 0 <= high < count else count
    if 0 <= low < high:
        return OK, low, high
    call.state[0].other = high - 1
    return wrong(call, records.BAD_BLOCKS, first, low, count), low, high


@inner
def walk_items(call: Call, tokens: Tokens, t: int, column: int, count: int, use: Any) -> Code:
    """Give `use` each of a table's `count` items with some of these tokens: use(call, tokens, t, number, begin, end).

    Entry k says where item k begins, with a record for a span; an item ends where the next one begins. The documents'
    table has one entry more; the last span ends with the shard. number: of the document, or of the record.
    """
    width, entries = (8, count + 1) if column == DOCUMENTS else (12, count)
    code, low, high = find_items(call, tokens, column, width * entries, count)
    if code != OK:
        return code
    most, wanted = call.shards[tokens.row].tokens, min(high + 1, entries)
    code = need(call, tokens.row, column, width * (wanted - low), width * low)
    if code != OK:
        return code
    address = np.int64(call.buffer.ctypes.data)
    held = at = 0  # entries in the buffer, and the next one's place in it
    begin = number = np.int64(-1)  # of the item that the entry ends
    for entry in range(low, high + 1):
        end, following = most, NO_RECORD
        if entry < entries:
            if at == held:
                held, at = min(wanted - entry, len(call.buffer) // width), 0
                code = read(call, tokens.row, column, call.buffer, width * held, width * entry)
                if code != OK:
                    return code
            end = load(address + width * at, np.int64)
            following = entry if column == DOCUMENTS else np.int64(load(address + width * at + 8, np.uint32))
            at += 1
        if entry == low:
            if not 0 <= end <= tokens.start:
                return wrong(call, records.BEGINS_LATE, entry, end, tokens.start)
        elif end < begin or end > most or (end == begin and column != DOCUMENTS):
            call.state[0].other = begin
            return wrong(call, records.FALLS, entry, end, most)
        elif begin < end and tokens.start < end and begin < tokens.stop:
            code = use(call, tokens, t, number, begin, end)
            if code != OK:
                return code
        begin, number = end, following
    return OK if begin >= tokens.stop else wrong(call, records.ENDS_EARLY, high, begin, tokens.stop)


@inner
def add_piece(call: Call, tokens: Tokens, _: int, number: Any, begin: Any, end: Any) -> Code:
    """A document for a block of packs, to be cut into pieces."""
    shard = call.shards[tokens.row]
    return add_document(call, shard.base + begin, shard.base + end, shard.first_document + number)


@inner
def place_document(call: Call, tokens: Tokens, _: int, number: Any, begin: Any, end: Any) -> Code:
    """A document, where it holds these tokens, in the row."""
    shift = tokens.place - tokens.start
    first, last = max(begin, tokens.start) + shift, min(end, tokens.stop) + shift
    begin_document(call, first, last, call.shards[tokens.row].first_document + number, False)
    return OK


@inner
def begin_document(call: Call, begin: int, stop: int, number: int, packed: bool) -> None:
    """Inputs [begin, stop) of the sample at hand are of one document, or of none; up to what the row has."""
    batch, state = call.arrays[0], call.state[0]
    size, row = batch.seq_len, state.sample * batch.seq_len
    count = min(stop, size) - begin
    if begin > 0:  # what goes on from before the sample begins with it
        if batch.mask_boundaries and not packed:  # there the token before has no label in this document
            array_at(batch.loss_mask, row + begin - 1, 1, np.float32)[0] = 0.0
        if batch.cu_seqlens and begin < size:
            array_at(batch.cu_seqlens, state.sequences, 1, np.int32)[0] = np.int32(row + begin)
            state.sequences += 1
    set_all(array_at(batch.document_ids, row + begin, count, np.int64), number)
    if packed or batch.document_positions:
        positions = array_at(batch.position_ids, row + begin, count, np.int64)
        for i in range(len(positions)):
            positions[i] = i


@inner
def add_span(call: Call, tokens: Tokens, t: int, record: int, first: int, end: int) -> Code:
    """A span of tokens [first, end) of the shard, which may begin before these tokens, and end after them; if any."""
    if record == NO_RECORD:
        return OK
    out = call.outputs[t]
    known, from_start = call.tracks[tokens.row, t].records, max(first, tokens.start)
    if record >= known:
        return wrong(call, records.NO_SUCH_RECORD, from_start, record, known)
    count = array_at(out.num_spans, call.state[0].sample, 1, np.int32)
    slot = np.int64(count[0])
    begin = tokens.place + from_start - tokens.start
    stop = tokens.place + min(end, tokens.stop) - tokens.start
    index = array_at(out.span_index, call.state[0].sample * call.arrays[0].seq_len + begin, stop - begin, np.int32)
    if slot >= out.max_spans:
        if out.mark:
            set_all(index, TRUNCATED)
        return OK if out.cut_spans else wrong(call, records.MANY_SPANS, from_start, slot + 1, out.max_spans)
    count[0] = np.int32(slot + 1)
    set_all(index, slot)
    at = call.state[0].sample * out.max_spans + slot
    ends = array_at(out.spans, 2 * at, 2, np.int32)
    ends[0] = np.int32(begin)
    ends[1] = np.int32(stop)
    flags = (1 if first < tokens.start else 0) + (2 if end > tokens.stop else 0)
    array_at(out.flags, at, 1, np.uint8)[0] = np.uint8(flags)
    call.slots[slot].key = record << SLOT_BITS | slot
    return OK


@inner
def dense_spans(call: Call, tokens: Tokens, t: int, low: int) -> Code:
    """Spans of a dense track: runs of equal record ids. scratch begins with item `low`, which is at most start - 1."""
    shard = call.shards[tokens.row]
    item, last = call.layouts[shard.layout].item, shard.tokens
    at = np.int64(call.scratch.ctypes.data) + (tokens.start - low) * item + call.tracks[tokens.row, t].field
    record = np.int64(load(at, np.uint32))
    begin = token = tokens.start
    if tokens.start > low and np.int64(load(at - item, np.uint32)) == record:
        begin -= 1
    while token < tokens.stop:
        token += 1
        at += item
        following = np.int64(load(at, np.uint32)) if token < tokens.stop or token < last else np.int64(-1)
        if following == record and token < tokens.stop:
            continue
        code = add_span(call, tokens, t, record, begin, token + (following == record))
        if code != OK:
            call.state[0].column = STREAM
            return code
        begin = token
        record = following
    return OK


@inner
def fill_track(call: Call, tokens: Tokens, t: int, low: int) -> Code:
    """Spans and concepts of these tokens. low: see dense_spans."""
    call.state[0].track = t
    number = array_at(call.outputs[t].num_spans, call.state[0].sample, 1, np.int32)
    first = np.int64(number[0])
    dense = call.tracks[tokens.row, t].kind == DENSE
    column, entries = call.outputs[t].spans_file, call.tracks[tokens.row, t].entries
    code = dense_spans(call, tokens, t, low) if dense else walk_items(call, tokens, t, column, entries, add_span)
    count = np.int64(number[0])
    if code != OK or count == first:
        return code
    slots = call.slots[first:count]
    gap = len(slots) // 2
    while gap > 0:  # Shell sort of the keys: mostly sorted already, and short
        for i in range(gap, len(slots)):
            key = slots[i].key
            j = i
            while j >= gap and slots[j - gap].key > key:
                slots[j].key = slots[j - gap].key
                j -= gap
            slots[j].key = key
        gap //= 2
    code = find_records(call, tokens, t, first, count)
    return code if code != OK else read_concepts(call, tokens, t, first, count)


@inner
def find_records(call: Call, tokens: Tokens, t: int, first: int, count: int) -> Code:
    """Where the records of slots [first, count) begin, in index reads that join what lies close together.

    How many of their concepts are taken, and where these go, too: an index into ids or values.
    """
    out, slots, buffer, track = call.outputs[t], call.slots, call.buffer, call.tracks[tokens.row, t]
    item = track.id_bytes + track.score_bytes
    words = array_at(np.int64(buffer.ctypes.data), 0, len(buffer) // 8, np.int64)
    low, found = first, OK
    while low < count:
        record = last = slots[low].key >> SLOT_BITS
        high = low + 1
        while high < count:
            following = slots[high].key >> SLOT_BITS
            if following - last > HOLE_BYTES // 8 + 1 or following - record + 2 > len(words):
                break
            last = following
            high += 1
        found = max(found, read(call, tokens.row, out.index_file, buffer, 8 * (last - record + 2), 8 * record))
        if found > WANTS:
            return found
        if found == WANTS:  # the other groups as well
            low = high
            continue
        if words[0] < 0:
            return wrong(call, records.BAD_OFFSET, record, words[0], track.data_size)
        for i in range(last - record + 1):
            if words[i + 1] < words[i]:
                call.state[0].other = words[i]
                return wrong(call, records.OFFSETS_FALL, record + i, words[i + 1], track.data_size)
        if words[last - record + 1] > track.data_size:
            return wrong(call, records.BAD_OFFSET, last + 1, words[last - record + 1], track.data_size)
        for k in range(low, high):
            slot = slots[slots[k].key & SLOT_MASK]
            at = (slots[k].key >> SLOT_BITS) - record
            size = words[at + 1] - words[at]
            slot.count = size // item
            if size % item or (out.single and slot.count != 1):
                return wrong(call, records.NO_NUMBER if out.single else records.NO_LIST, record + at, size, item)
            if size > MAX_RECORD_BYTES:
                return wrong(call, records.LARGE_RECORD, record + at, size, MAX_RECORD_BYTES)
            if slot.count > out.max_concepts and not out.cut_concepts:
                return wrong(call, records.MANY_CONCEPTS, record + at, slot.count, out.max_concepts)
            slot.begin = words[at]
            slot.taken = min(slot.count, out.max_concepts)
        low = high
    if found != OK:
        return found
    limit, row = out.max_spans, call.state[0].sample * out.max_spans
    if not out.ragged:
        counts = array_at(out.counts, row, limit, np.int32)
        for k in range(first, count):
            if not out.single:
                counts[k] = np.int32(slots[k].taken)
            slots[k].target = (row + k) * out.max_concepts
        return OK
    offsets = array_at(out.offsets, row, limit + 1, np.int64)
    for k in range(first, count):
        slots[k].target = offsets[k]
        offsets[k + 1] = offsets[k] + slots[k].taken
    for k in range(count, limit):
        offsets[k + 1] = offsets[count]
    call.state[0].value = offsets[count]
    return GROW if offsets[count] > out.capacity else OK


@inner
def read_concepts(call: Call, tokens: Tokens, t: int, first: int, count: int) -> Code:
    """Concept ids of slots [first, count), in data reads that join what lies close together.

    Their scores follow the ids of each record.
    """
    out, slots, buffer, track = call.outputs[t], call.slots, call.buffer, call.tracks[tokens.row, t]
    address, room, found = np.int64(buffer.ctypes.data), len(buffer) // 8 * 8, OK
    for scored in range(1 + (track.score_bytes > 0)):
        width = track.score_bytes if scored else track.id_bytes
        kind = track.score_code if scored else track.id_code
        target = out.scores if scored else out.ids if out.ids else out.values
        wide = 4 if scored else out.width  # in the batch
        before = scored * track.id_bytes  # bytes of a concept in front of these of a record
        low = first
        while low < count:
            slot = slots[slots[low].key & SLOT_MASK]
            base = slot.begin + before * slot.count
            end = base + width * slot.taken
            high = low + 1
            while high < count:
                slot = slots[slots[high].key & SLOT_MASK]
                begin = slot.begin + before * slot.count
                stop = begin + width * slot.taken
                if begin < base or begin - end > HOLE_BYTES or stop - base > len(buffer):
                    break
                end = max(end, stop)
                high += 1
            if base < end:
                found = max(found, need(call, tokens.row, out.data_file, end - base, base))
            if found != OK:  # the other groups as well
                low = high
                continue
            for done in range(base, end, room):  # a record larger than the buffer is read in pieces, alone
                size = min(end - done, room)
                code = read(call, tokens.row, out.data_file, buffer, size, done)
                if code != OK:
                    return code
                for k in range(low, high):
                    number = slots[k].key & SLOT_MASK
                    slot = slots[number]
                    begin = slot.begin + before * slot.count
                    skipped = max(0, (done - begin) // width)
                    taken = max(0, min(slot.taken, (done + size - begin) // width) - skipped)
                    at = address + begin + width * skipped - done
                    place = target + wide * (slot.target + skipped)
                    bad = take(at, width, kind, track.top_concept, place, taken)
                    if bad != OK:
                        span = array_at(out.spans, 2 * (call.state[0].sample * out.max_spans + number), 1, np.int32)
                        token = tokens.start + span[0] - tokens.place
                        if scored:
                            bits = array_at(place, bad - 1, 1, np.uint32)[0]
                            return wrong(call, records.BAD_SCORE, token, np.int64(bits), 0)
                        found = array_at(place, bad - 1, 1, np.int64)[0]
                        return wrong(call, records.BAD_CONCEPT, token, found, track.top_concept + 1)
            low = high
    return found
