"""Caches of blocks: what they hold, and how much of an object they ask for."""

from conceptloader.storage.blocks import BlockCache, MemoryBlocks


def test_a_memory_cache_holds_its_capacity_and_no_more() -> None:
    blocks = MemoryBlocks(capacity=8, block_bytes=4)
    blocks.put(("a", 0), b"1234")
    blocks.put(("a", 1), b"5678")
    assert blocks.get(("a", 0)) == b"1234"  # used last
    blocks.put(("a", 2), b"9")
    assert [blocks.get(("a", number)) for number in range(3)] == [b"1234", None, b"9"]
    blocks.put(("a", 2), b"9999")  # in place of the same block
    assert [blocks.get(("a", number)) for number in range(3)] == [b"1234", None, b"9999"]


def test_exactly_the_missing_blocks_are_fetched() -> None:
    whole = bytes(range(50))
    fetched = []

    def fetch(offset: int, size: int) -> bytes:
        fetched.append((offset, size))
        return whole[offset : offset + size]

    cache = BlockCache(MemoryBlocks(capacity=1000, block_bytes=8))
    assert cache.read("a", 50, 17, 5, fetch) == whole[17:22]
    assert cache.read("a", 50, 9, 41, fetch) == whole[9:]
    assert cache.read("a", 50, 0, 50, fetch) == whole
    assert fetched == [(16, 8), (8, 8), (24, 26), (0, 8)]
