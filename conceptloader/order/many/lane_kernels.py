"""Compiled twins of the permutations of lanes in reference.py, for many numbers in one epoch of one dataset."""

import numpy as np

from conceptloader.base.compiled.kernel import inlined, kernel
from conceptloader.order.kernels import GOLDEN, ONE, TABLE_MAX, ZERO, U64Array, feistel, keyed_shuffle, mix64, unfeistel

U64 = np.uint64


@kernel
def permute_one(i: U64, n: U64, key: U64, back: bool, table: U64Array) -> U64:
    """permute or unpermute of reference.py. table: u64 [TABLE_MAX + 2], the one of (n, key) made last, and they."""
    if n > TABLE_MAX:
        bits = ZERO
        while (n - ONE) >> bits:
            bits += ONE
        bits >>= ONE
        a = ((n - ONE) >> bits) + ONE
        walked: U64 = unfeistel(i, n, a, bits, key) if back else feistel(i, n, a, bits, key)
        return walked
    items = table[: np.int64(n)]
    if table[TABLE_MAX] != n or table[TABLE_MAX + ONE] != key:
        keyed_shuffle(items, key)
        table[TABLE_MAX], table[TABLE_MAX + ONE] = n, key
    found: U64 = items[i]
    if back:
        for j in range(len(items)):
            if items[j] == i:
                found = U64(j)
    return found


@kernel
def permute_many(numbers: U64Array, n: U64, key: U64, back: bool, tables: U64Array, out: U64Array) -> None:
    """permute_one of many numbers. tables: u64 [2, TABLE_MAX + 2], to work in."""
    tables[0, np.int64(TABLE_MAX)] = ZERO
    for x in range(len(numbers)):
        out[x] = permute_one(numbers[x], n, key, back, tables[0])


@inlined
def opened(place: U64, each: U64, lane_key: U64, windows: U64, at_once: U64) -> tuple[U64, U64, U64]:
    width, early = at_once * windows, lane_key % at_once * windows
    number = (place + early) // width
    first = number * width - early if number else ZERO
    return first, min(each, (number + ONE) * width - early) - first, mix64(lane_key + mix64(number + GOLDEN))


@kernel
def lane_permute_many(
    numbers: U64Array, n: U64, key: U64, lanes: tuple[U64, U64, U64], back: bool, tables: U64Array, out: U64Array
) -> None:
    """lane_permute, or its inverse, of many numbers. lanes: count, windows and open; tables: as in permute_many."""
    blocks, places = tables[0], tables[1]
    blocks[np.int64(TABLE_MAX)] = places[np.int64(TABLE_MAX)] = ZERO
    count, windows, at_once = lanes
    each = n // count
    full = (each - ONE) // windows
    in_full, rest = full * count * windows, each - full * windows
    for x in range(len(numbers)):
        i = numbers[x]
        if i >= each * count:
            out[x] = i
        elif back:
            if i < in_full:
                j = permute_one(i // windows, full * count, key, True, blocks)
                lane, place = j % count, j // count * windows + i % windows
            else:
                lane = permute_one((i - in_full) // rest, count, key, True, blocks)
                place = full * windows + (i - in_full) % rest
            first, size, open_key = opened(place, each, mix64(key + mix64(lane + GOLDEN)), windows, at_once)
            out[x] = (first + permute_one(place - first, size, open_key, True, places)) * count + lane
        else:
            lane, place = i % count, i // count
            first, size, open_key = opened(place, each, mix64(key + mix64(lane + GOLDEN)), windows, at_once)
            place = first + permute_one(place - first, size, open_key, False, places)
            number, within = place // windows, place % windows
            if number < full:
                out[x] = permute_one(number * count + lane, full * count, key, False, blocks) * windows + within
            else:
                out[x] = in_full + permute_one(lane, count, key, False, blocks) * rest + within
