"""1e12 tokens in 10,000 shards (sparse files): opening and reading cost no memory to speak of."""

import subprocess
import sys

import pytest

from tests.corpora.sparse import sparse_dataset

SHARDS, TOKENS = 10_000, 100_000_000

READ = """
import resource, sys
import conceptloader as cl, conceptloader.format.read.dataset
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
ds = cl.open_dataset(sys.argv[1])
assert ds.num_tokens == 10**12 and ds.num_documents == 10_000, ds
windows = ds.windows(4096)
assert len(windows) == (10**12 - 1) // 4096
for i in [0, 1, 10**8, len(windows) - 1, *range(0, len(windows), len(windows) // 500)]:
    sample = windows[i]
    assert sample["tokens"].shape == (4097,) and not sample["tokens"].any()
    first, last = i * 4096 // 10**8, (i * 4096 + 4096) // 10**8
    assert sample["documents"].ids.tolist() == list(range(first, last + 1)), (i, sample["documents"])
assert ds.split(0.0, 0.98) == (0, 98 * 10**10)
print(peak() - before)
"""


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """A dataset of zeros: every shard is one document."""
    root = tmp_path_factory.mktemp("sparse")
    sparse_dataset(root, shards=SHARDS, tokens_per_shard=TOKENS)
    return root


def test_opening_and_reading_1e12_tokens_stays_below_50_mb(sparse):
    done = subprocess.run([sys.executable, "-c", READ, sparse], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50 * 1024  # kilobytes
