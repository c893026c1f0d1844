"""How long the page takes on 10^12 tokens: `python -m tests.view.paint`. Milliseconds of a real browser."""

import subprocess
import sys
import tempfile
import time
from statistics import median

from conceptloader.testing import sparse_dataset
from tests.view.browser import start_browser

LOADS = 11
TIMES = """
const paint = performance.getEntriesByName("first-contentful-paint")[0].startTime;
return [paint, performance.getEntriesByName("shown").at(-1).startTime];
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, start_browser() as browser:
        sparse_dataset(folder, shards=10_000, tokens_per_shard=100_000_000)
        command = [sys.executable, "-m", "conceptloader", "viewer", folder, "--seq-len", "1024"]
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip().partition(": ")[2]
            print(f"up after {time.monotonic() - started:.1f} s")
            for view in ("overview", "window?i=123456789", "document?n=5000", "stats"):
                found = [browser.open(f"{url}#{view}").run(TIMES) for _ in range(LOADS)]
                paint, shown = (median(column) for column in zip(*found, strict=True))
                slowest = max(one for _, one in found)
                print(
                    f"{view:20} first paint {paint:4.0f} ms, all of it {shown:4.0f} ms, slowest load {slowest:4.0f} ms"
                )
            server.terminate()


if __name__ == "__main__":
    main()
