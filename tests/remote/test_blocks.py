"""Caches of blocks: what they hold, and how much of an object they ask for."""

import errno
import logging
import os

from conceptloader.storage.remote import blocks
from conceptloader.storage.remote.blocks import DiskBlocks, MemoryBlocks


def test_a_memory_cache_holds_its_capacity_and_no_more():
    blocks = MemoryBlocks(capacity=8, block_bytes=4)
    blocks.put(("a", 0), b"1234")
    blocks.put(("a", 1), b"5678")
    assert blocks.get(("a", 0)) == b"1234"  # used last
    blocks.put(("a", 2), b"9")
    assert [blocks.get(("a", number)) for number in range(3)] == [b"1234", None, b"9"]
    blocks.put(("a", 2), b"9999")  # in place of the same block
    assert [blocks.get(("a", number)) for number in range(3)] == [b"1234", None, b"9999"]


def test_a_full_disk_is_said_once_and_loses_nothing(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    caplog.set_level(logging.WARNING, "conceptloader")  # whatever a command before has set
    cache = DiskBlocks(str(tmp_path), 1000, 8)
    monkeypatch.setattr(blocks.os, "rename", full)
    for _ in range(3):
        assert cache.read("a", 50, 3, 20, lambda offset, size: bytes(range(offset, offset + size))) == bytes(
            range(3, 23)
        )
    (record,) = caplog.records
    assert "nothing can be kept there (No space left on device)" in record.message
    assert not list(tmp_path.rglob("*.tmp"))
    monkeypatch.undo()
    cache.read("a", 50, 3, 20, lambda offset, size: bytes(size))
    assert len(list(tmp_path.rglob("*/*"))) == 3
