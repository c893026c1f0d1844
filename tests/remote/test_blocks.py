"""The cache of blocks: what it holds, and how much of an object it asks for."""

from conceptloader.storage.remote.blocks import Blocks


def test_the_cache_holds_its_capacity_and_asks_for_what_is_missing_alone():
    asked = []

    def fetch(offset, size):
        asked.append((offset, size))
        return bytes(range(offset, offset + size))

    blocks = Blocks(capacity=12, block_bytes=4)

    def read(offset, size):
        asked.clear()
        assert blocks.read("a", 18, offset, size, fetch) == bytes(range(offset, offset + size))
        return asked

    assert read(1, 2) == [(0, 4)]
    assert read(3, 6) == [(4, 8)]  # of three blocks the first is there; two side by side are one request
    assert read(0, 4) == []
    assert read(17, 1) == [(16, 2)]  # the end of the object; the block 4 was used longest ago, and leaves
    assert read(0, 3) == read(9, 3) == []
    assert read(0, 12) == [(4, 4)]
