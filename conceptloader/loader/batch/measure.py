"""How fast a reader is on the storage at hand, and whether that was the storage or the system's page cache."""

import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from conceptloader.config import Blend
from conceptloader.kernels.kernel import U64Array
from conceptloader.loader.batch.prefetch import Prefetcher
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.loader.batch.tables import FILES


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What it took to read `samples` samples in batches of `batch`, by `threads` threads.

    repeated: samples that are not of their dataset's first epoch, so that they had been read before. p50_ms, p99_ms: of
    the reading of a batch. bytes_asked: by reads; bytes_fetched: that the system got from storage for them; both None
    where it does not say.
    """

    threads: int
    batch: int
    samples: int
    repeated: int
    seconds: float
    tokens_per_second: float
    p50_ms: float
    p99_ms: float
    bytes_asked: int | None
    bytes_fetched: int | None

    @property
    def fetched_per_asked(self) -> float | None:
        return self.bytes_fetched / self.bytes_asked if self.bytes_fetched is not None and self.bytes_asked else None

    @property
    def source(self) -> str:
        """Where the bytes probably came from. What is fetched are whole pages, so more than what is asked for."""
        share = self.fetched_per_asked
        return "unknown" if share is None else "page cache" if share < 0.1 else "both" if share < 0.9 else "storage"


def measure(
    blend: Blend,
    reader: BatchReader,
    *,
    first: int,
    last: int,
    seconds: float,
    batch: int,
    threads: int,
    prefetch: int,
) -> Pass:
    """Read as the loader does, from sample `first` on: for so many seconds or up to `last`, and one batch at least.

    prefetch: batches that are prefetched; with 0, each is read when it is wanted. Raises: FormatError, ReadError.
    """
    options, times, end = blend.config.loader, array("q"), first

    def read(samples: U64Array) -> object:
        start = time.perf_counter_ns()
        arrays = reader.read(samples)
        times.append(time.perf_counter_ns() - start)
        return arrays

    reader.read(np.zeros(0, np.uint64))  # loads the compiled code
    before, start = bytes_read(), time.perf_counter()
    for samples, _ in Prefetcher(
        read,
        _batches(first, last, batch, seconds),
        threads=threads,
        depth=prefetch,
        most=options.prefetch_bytes // reader.layout.carve(batch).size,
        warn_after_s=options.warn_after_s,
        timeout_s=options.timeout_s,
        where=reader.where,
    ):
        end = int(samples[-1]) + 1
    elapsed, after = time.perf_counter() - start, bytes_read()
    p50, p99 = np.percentile(np.frombuffer(times, np.int64), [50, 99]) / 1e6
    if any(dataset.files.remote is not None for dataset in blend.datasets.values()):
        before = None  # the system does not count what comes through a socket
    draws = zip(blend.order.counts(first), blend.order.counts(end), blend.order.sizes, strict=True)
    return Pass(
        threads=threads,
        batch=batch,
        samples=end - first,
        repeated=sum(max(0, after - max(before, size)) for before, after, size in draws),
        seconds=elapsed,
        tokens_per_second=(end - first) * reader.layout.seq_len / elapsed,
        p50_ms=float(p50),
        p99_ms=float(p99),
        bytes_asked=after[0] - before[0] if before and after else None,
        bytes_fetched=after[1] - before[1] if before and after else None,
    )


def _batches(first: int, last: int, batch: int, seconds: float) -> Iterator[U64Array]:
    deadline = time.monotonic() + seconds
    for start in range(first, max(last, first + 1), batch):
        if start > first and time.monotonic() > deadline:
            return
        yield np.arange(start, start + batch, dtype=np.uint64)


def bytes_read() -> tuple[int, int] | None:
    """Bytes that this process has asked for, and bytes that were fetched from storage for it; None if not known."""
    try:
        with open("/proc/self/io") as file:
            fields = dict(line.split(": ") for line in file)
        return int(fields["rchar"]), int(fields["read_bytes"])
    except (OSError, KeyError, ValueError):
        return None


def drop_from_cache(blend: Blend) -> None:
    """Ask the system to forget the pages of all local files that samples are read from.

    It keeps those that have not been written to storage yet, and those that a process has mapped.

    Raises: FormatError for a file of another size than the manifest says, ReadError.
    """
    tracks = {track for view in blend.views if view is not None for track in view.levels}
    kinds = {"stream.bin", "documents.bin", *(f"{track}.{part}" for track in tracks for part in FILES)}
    for dataset in blend.datasets.values():
        files, local = dataset.files, dataset.files.local
        if local is None:
            continue
        for kind in files.kinds.keys() - (files.table.files.keys() - kinds):  # with columns that are read
            for shard in np.flatnonzero(files.kinds[kind].size > 0).tolist():
                descriptor = local.open(files.expected(kind, shard))
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
