"""The sample checksum: frozen, as the specification says, and sure to meet large changes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.storage.sample import BLOCK, PARTS, WHOLE, sample_checksum, sample_places
from tests.format import spec_reader

FROZEN = {  # size -> pages of the blocks between the first and the last
    32769: ([1, 2, 3, 4, 5, 6], "e28aac3f4c513880"),
    100000: ([3, 7, 11, 14, 15, 20], "7dc46ccf0a1d6779"),
    10000019: ([340, 511, 1209, 1393, 1901, 2348], "f28dbb84c88f721e"),
}


def content(size):
    return (np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype("u1").tobytes()


def checksum(data):
    return sample_checksum(len(data), lambda at, size: data[at : at + size])


def test_places_and_checksums_are_frozen():
    found = {}
    for size in FROZEN:
        places = list(sample_places(size))
        assert (places[0], places[-1]) == ((0, BLOCK), (size - BLOCK, BLOCK))
        found[size] = [at // BLOCK for at, _ in places[1:-1]], checksum(content(size))
    assert found == FROZEN


@given(st.one_of(st.integers(0, 3 * WHOLE), st.integers(WHOLE, 1 << 22)))
def test_the_specification_says_the_same(size):
    data = content(size)
    assert checksum(data) == spec_reader.sample_checksum(data)


@given(st.integers(WHOLE + 1, 1 << 40), st.data())
def test_a_change_of_a_third_is_met_wherever_it_lies(size, data):
    """Between two blocks of neighbouring parts lie less than two parts."""
    length = -(-size // (PARTS // 2)) + 2 * BLOCK
    if length <= size:
        start = data.draw(st.integers(0, size - length))
        assert any(at >= start and at + count <= start + length for at, count in sample_places(size))
