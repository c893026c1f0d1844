"""Kernels: what is excluded, with its samples or alone."""

from typing import Any

import numpy as np

from conceptloader.kernels.kernel import inner
from conceptloader.kernels.records import Call, Tokens
from conceptloader.kernels.system import array_at, set_all, set_blank


@inner
def find_range(call: Call, low: Any, high: Any, end: int) -> Any:
    """The first of ranges [low, high) that ends at token `end` or later, or `high`."""
    while low < high:
        middle = (low + high) // 2
        if call.left_out[middle].stop < end:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def is_left_out(call: Call, member: Any, start: int, stop: int) -> bool:
    """Whether the sample at hand, with tokens [start, stop) of a member's dataset, reads nothing because of them."""
    ranges, k = call.left_out, find_range(call, member.first_range, member.end_range, start + 1)
    while k < member.end_range and ranges[k].start < stop:
        if ranges[k].at <= call.state[0].now:
            return True
        k += 1
    return False


@inner
def is_closed(call: Call, member: Any, row: int) -> Any:
    """Whether a shard is, as a whole: the document table included."""
    ranges, base = call.left_out, call.shards[row].base
    k = find_range(call, member.first_range, member.end_range, base + call.shards[row].tokens)
    return k < member.end_range and ranges[k].start <= base and ranges[k].at < 0


@inner
def next_kept(call: Call, part: Any, member: Any, begin: Any, stop: Any) -> tuple[int, int]:
    """The first stretch of tokens [begin, stop) of a part's shard that are not taken out; an empty one if all are."""
    ranges, k = call.left_out, find_range(call, member.end_range, member.end_own, part.base + begin + 1)
    while k < member.end_own and ranges[k].start - part.base < stop:
        if ranges[k].at <= call.state[0].now:
            if ranges[k].start - part.base > begin:
                return begin, ranges[k].start - part.base
            begin = min(ranges[k].stop - part.base, stop)
        k += 1
    return begin, stop


@inner
def blank_holes(call: Call, part: Any, member: Any, inside: Tokens, named: Tokens) -> None:
    """Make what is taken out of a part padding, as inputs and as labels, and mask the label after each range."""
    batch, sample = call.arrays[0], call.state[0].sample
    size, length = batch.seq_len, batch.row_length
    k = find_range(call, member.end_range, member.end_own, part.base + part.start)
    while k < member.end_own and call.left_out[k].start - part.base < part.stop:
        hole = call.left_out[k]
        k += 1
        if hole.at > call.state[0].now:
            continue
        for labels in range(2):
            tokens = named if labels else inside
            first = max(hole.start - part.base, tokens.start)
            count = max(0, min(hole.stop - part.base, tokens.stop) - first)
            place = tokens.place + first - tokens.start
            ids = batch.labels if labels else batch.input_ids
            set_all(array_at(ids, sample * length + place, count, np.int64), member.pad)
            for n in range(len(call.columns)):
                out = call.columns[n]
                set_blank(out, (sample * size + place) * out.width, count * out.width * (out.labels == labels))
        after = hole.stop - part.base  # the label after it
        count = 1 if named.start <= after < named.stop else 0
        place = sample * size + named.place + after - named.start
        set_all(array_at(batch.loss_mask, place, count, np.float32), 0)
