"""Caches of blocks: what they hold, and how much of an object they ask for."""

import errno
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conceptloader.storage.remote import blocks
from conceptloader.storage.remote.blocks import DiskBlocks, MemoryBlocks


def test_a_memory_cache_holds_its_capacity_and_no_more() -> None:
    blocks = MemoryBlocks(capacity=8, block_bytes=4)
    blocks.put(("a", 0), b"1234")
    blocks.put(("a", 1), b"5678")
    assert blocks.get(("a", 0)) == b"1234"  # used last
    blocks.put(("a", 2), b"9")
    assert [blocks.get(("a", number)) for number in range(3)] == [b"1234", None, b"9"]
    blocks.put(("a", 2), b"9999")  # in place of the same block
    assert [blocks.get(("a", number)) for number in range(3)] == [b"1234", None, b"9999"]


def test_two_processes_fetch_a_block_once(tmp_path: Path) -> None:
    """They share a cache on the disk, and fetch at the same time what lies in different blocks."""
    script = textwrap.dedent(
        """
        import os, sys, time
        from concurrent.futures import ThreadPoolExecutor
        from conceptloader.storage.remote.blocks import disk_blocks
        cache = disk_blocks(sys.argv[1], 1 << 30)
        def fetch(offset, size):
            with open(sys.argv[2], "a") as file:
                file.write(f"{offset} {size}\\n")
            time.sleep(0.05)
            return bytes(size)
        print("ready", flush=True)
        sys.stdin.readline()
        unit = cache.block_bytes
        def read(k):
            k = (k * 7 + int(sys.argv[3])) % 40
            return cache.read("a", 40 * unit, k * unit, unit, fetch)
        with ThreadPoolExecutor(8) as pool:
            assert all(block == bytes(unit) for block in pool.map(read, range(40)))
        """
    )
    log = tmp_path / "fetched"
    command = [sys.executable, "-c", script, str(tmp_path / "cache"), str(log)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen([*command, str(k)], **pipes) for k in (0, 13)]
    assert [process.stdout.readline() for process in processes if process.stdout] == [b"ready\n"] * 2
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert [process.wait(100) for process in processes] == [0, 0]
    assert len(log.read_text().splitlines()) == 40


def test_a_full_disk_is_said_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
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
