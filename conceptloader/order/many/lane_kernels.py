"""Compiled twins of the permutations of lanes in reference.py, for many numbers in one epoch of one dataset."""

from typing import Any

import numpy as np

from conceptloader.base.compiled.code import inlined, inner
from conceptloader.base.compiled.kernel import kernel
from conceptloader.order import reference
from conceptloader.order.kernels import (
    GOLDEN,
    NO_TABLES,
    ONE,
    TABLE_MAX,
    ZERO,
    I64Array,
    U64Array,
    feistel,
    keyed_shuffle,
    locate_many,
    mix64,
    unfeistel,
    windows_many,
)

U64 = np.uint64


@inner
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


@inlined
def opened(place: U64, each: U64, lane_key: U64, windows: U64, at_once: U64) -> tuple[U64, U64, U64]:
    width, early = at_once * windows, lane_key % at_once * windows
    number = (place + early) // width
    first = number * width - early if number else ZERO
    return first, min(each, (number + ONE) * width - early) - first, mix64(lane_key + mix64(number + GOLDEN))


@inner
def lane_permute_one(i: U64, n: U64, key: U64, lanes: tuple[U64, U64, U64], back: bool, tables: U64Array) -> Any:
    """lane_permute or lane_unpermute of reference.py. lanes: count, windows and open; tables: see permute_many."""
    blocks, places = tables[0], tables[1]
    count, windows, at_once = lanes
    each = n // count
    full = (each - ONE) // windows
    in_full, rest = full * count * windows, each - full * windows
    if i >= each * count:
        return i
    if back:
        if i < in_full:
            j = permute_one(i // windows, full * count, key, True, blocks)
            lane, place = j % count, j // count * windows + i % windows
        else:
            lane = permute_one((i - in_full) // rest, count, key, True, blocks)
            place = full * windows + (i - in_full) % rest
        first, size, open_key = opened(place, each, mix64(key + mix64(lane + GOLDEN)), windows, at_once)
        return (first + permute_one(place - first, size, open_key, True, places)) * count + lane
    lane, place = i % count, i // count
    first, size, open_key = opened(place, each, mix64(key + mix64(lane + GOLDEN)), windows, at_once)
    place = first + permute_one(place - first, size, open_key, False, places)
    number, within = place // windows, place % windows
    if number < full:
        return permute_one(number * count + lane, full * count, key, False, blocks) * windows + within
    return in_full + permute_one(lane, count, key, False, blocks) * rest + within


@kernel
def permute_many(
    numbers: U64Array,
    datasets: I64Array,
    epochs: U64Array,
    known: tuple[U64Array, U64Array, Any],
    lanes: tuple[U64, U64, U64],
    back: bool,
    tables: U64Array,
    out: U64Array,
) -> None:
    """Windows of places in epochs of datasets, or the other way round. known: of each dataset, its windows, its key,
    and whether it has no lanes; tables: u64 [2, TABLE_MAX + 2], to work in."""
    sizes, keys, plain = known
    tables[0, np.int64(TABLE_MAX)] = tables[1, np.int64(TABLE_MAX)] = ZERO
    for x in range(len(numbers)):
        d = datasets[x]
        key = mix64(keys[d] + mix64(epochs[x] + GOLDEN))
        if plain[d]:
            out[x] = permute_one(numbers[x], sizes[d], key, back, tables[0])
        else:
            out[x] = lane_permute_one(numbers[x], sizes[d], key, lanes, back, tables)


@kernel
def locate_in_lanes(
    places: U64Array, lanes: I64Array, datasets: I64Array, draws: U64Array, phases: Any, scratch: Any
) -> None:
    """locate_many of places in lanes, one lane after the other. phases: as there, but starts, origins, keys and bases
    have a row for each lane."""
    starts, origins, keys, roots, left, right, share, bases, block = phases
    first = 0
    for end in range(1, len(lanes) + 1):
        lane = lanes[first]
        if end == len(lanes) or lanes[end] != lane:
            of_lane = starts[lane], origins[lane], keys[lane], roots, left, right, share, bases[lane], block
            locate_many(places[first:end], datasets[first:end], draws[first:end], of_lane, scratch)
            first = end


def load() -> None:
    """Compile what many samples are found with, or load it."""
    u64, i64, table, scratch = np.zeros(0, U64), np.zeros(0, np.int64), np.zeros((0, 0), U64), np.zeros(4, U64)
    locate_many(u64, i64, u64, NO_TABLES.phases, scratch)
    windows_many(i64, u64, u64, u64, NO_TABLES.sizes, scratch)
    *trees, _, block = NO_TABLES.phases[3:]
    locate_in_lanes(u64, i64, i64, u64, (table, table, table, *trees, np.zeros((0, 0, 0), U64), block), scratch)
    tables, known = np.zeros((2, reference.TABLE_MAX + 2), U64), (u64, u64, np.zeros(0, np.bool_))
    permute_many(u64, i64, u64, known, (ONE, ONE, ONE), False, tables, u64)
