"""What can be set about reading from object stores, by the environment, so that every process of a job has it."""

import os
from dataclasses import dataclass
from functools import lru_cache

from conceptloader.errors import ConfigError
from conceptloader.storage.blocks import BlockReader, DiskBlocks, MemoryBlocks

_MEMORY_BLOCK = 1 << 16
_DISK_BLOCK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Settings:
    """connections: requests at a time; memory_bytes: cache of blocks of everything but tokens; cache_dir, cache_bytes:
    cache on a local disk, of tokens too, off by default."""

    connections: int = 64
    memory_bytes: int = 128 << 20
    cache_dir: str | None = None
    cache_bytes: int = 64 << 30


def settings() -> Settings:
    """From CONCEPTLOADER_REMOTE_CONNECTIONS, _MEMORY_BYTES, _CACHE_DIR and _CACHE_BYTES. Raises: ConfigError."""
    return Settings(
        connections=_number("CONNECTIONS", Settings.connections),
        memory_bytes=_number("MEMORY_BYTES", Settings.memory_bytes),
        cache_dir=os.environ.get("CONCEPTLOADER_REMOTE_CACHE_DIR") or None,
        cache_bytes=_number("CACHE_BYTES", Settings.cache_bytes),
    )


def _number(name: str, default: int) -> int:
    key = f"CONCEPTLOADER_REMOTE_{name}"
    text = os.environ.get(key)
    if text is None:
        return default
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{key}: found {text!r}, expected an integer of at least 1")
    return int(text)


@lru_cache(maxsize=4)
def memory_reader(capacity: int) -> BlockReader:
    """The cache in memory that all datasets of the process share."""
    return BlockReader(MemoryBlocks(capacity, _MEMORY_BLOCK))


@lru_cache(maxsize=4)
def disk_reader(directory: str, capacity: int) -> BlockReader:
    return BlockReader(DiskBlocks(directory, capacity, _DISK_BLOCK))
