"""How long the page takes: `python -m tests.view.paint`. Milliseconds of a real browser.

On 10^12 tokens in 10,000 shards, and on 10^6 documents with 10^5 concepts.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

import conceptloader as cl
from conceptloader.format.write.track import BulkSpans
from conceptloader.testing import sparse_dataset
from tests.view.browser import Browser, start_browser

LOADS = 11
DOCUMENTS, LENGTH, CONCEPTS = 1_000_000, 40, 100_000
TIMES = """
const paint = performance.getEntriesByName("first-contentful-paint")[0].startTime;
return [paint, performance.getEntriesByName("shown").at(-1).startTime];
"""


def wide_dataset(path: str) -> None:
    """Documents of a line of letters, each with two spans, of one concept each."""
    random = np.random.default_rng(0)
    track = cl.writing.TrackOptions(vocabulary=[f"concept {k}" for k in range(CONCEPTS)])
    tokenizer = cl.writing.Tokenizer(name="bytes", vocab_size=257, eos_id=256)
    writer = cl.writing.create_writer(path, cl.writing.BuildOptions(tracks={"concepts": track}, tokenizer=tokenizer))
    offsets = LENGTH * np.arange(DOCUMENTS + 1)
    starts = (offsets[:-1, None] + [3, 20]).ravel()
    concepts = random.zipf(1.3, len(starts)) % CONCEPTS
    records = np.arange(CONCEPTS, dtype="<u4")
    spans = BulkSpans(starts, starts + 9, concepts, records.tobytes(), 4 * np.arange(CONCEPTS + 1))
    with writer.shard(0) as shard:
        letters = random.integers(97, 123, DOCUMENTS * LENGTH, np.int64)
        shard.add_documents(letters, offsets, {"concepts": spans}, [f"d{k}" for k in range(DOCUMENTS)])
    cl.writing.finalize(path)


def measure(browser: Browser, folder: str, views: Sequence[str]) -> None:
    command = [sys.executable, "-m", "conceptloader", "viewer", folder, "--seq-len", "1024"]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip().partition(": ")[2]
        print(f"up after {time.monotonic() - started:.1f} s")
        for view in views:
            found = [browser.open(f"{url}#{view}").run(TIMES) for _ in range(LOADS)]
            paint, shown = (median(column) for column in zip(*found, strict=True))
            first, slowest = found[0][1], max(one for _, one in found)
            print(
                f"{view:22} first paint {paint:4.0f} ms, all of it {shown:4.0f} ms, first load {first:4.0f} ms, "
                f"slowest load {slowest:4.0f} ms"
            )
        server.terminate()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, start_browser() as browser:
        sparse_dataset(f"{folder}/long", shards=10_000, tokens_per_shard=100_000_000)
        measure(browser, f"{folder}/long", ("overview", "window?i=123456789", "document?n=5000", "stats"))
        wide_dataset(f"{folder}/wide")
        views = "overview", "window?i=20000", "document?n=500000", "concepts", "concept?c=7", "stats", "search?q=abc"
        measure(browser, f"{folder}/wide", views)


if __name__ == "__main__":
    main()
