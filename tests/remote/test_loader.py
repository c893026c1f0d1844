"""Batches of a configuration with datasets in object stores: with equal results."""

import re
import subprocess
import sys
import uuid

import fsspec
import numpy as np
import pytest
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.config import open_blend
from conceptloader.errors import ReadError
from conceptloader.loader.batch.open import open_reader
from conceptloader.loader.torch.dataset import SampleDataset
from conceptloader.storage.remote import objects
from conceptloader.storage.remote.objects import RemoteObjects
from tests.batch.cases import configs
from tests.batch.compare import assert_same
from tests.remote.test_datasets import local, upload

__all__ = ["local"]  # the fixture


def configuration(local, path):
    return {
        "version": 1,
        "seq_len": 32,
        "datasets": {"near": {"path": str(local), "weight": 1.0}, "far": {"path": path, "weight": 2.0}},
        "outputs": {"position_ids": "document", "document_ids": True, "cu_seqlens": True},
        "tracks": {"c": {"layout": "padded"}, "d": {"layout": "ragged"}},
    }


def reader(local, path):
    return open_reader(open_blend(configuration(local, path)))


@pytest.mark.parametrize("seed", range(6))
def test_random_data_equal_those_of_a_local_disk(tmp_path, seed, monkeypatch):
    """Blocks so small that every read lies across their borders, and room for so few that they are dropped."""
    monkeypatch.setattr(RemoteObjects, "block_bytes", 24)
    monkeypatch.setattr(objects, "_HOLE", 16)
    monkeypatch.setenv("CONCEPTLOADER_REMOTE_MEMORY_BYTES", str(512 + seed))  # a cache of its own
    near = configs(tmp_path, seed)
    bucket = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").put(str(tmp_path), bucket, recursive=True)
    samples = np.arange(40, dtype=np.uint64)
    for config in near:
        wanted = open_reader(open_blend(config)).read(samples)
        for names in ([*config["datasets"]], [*config["datasets"]][:1]):
            far = {name: {**config["datasets"][name], "path": f"{bucket}/{name}"} for name in names}
            mine = open_reader(open_blend({**config, "datasets": {**config["datasets"], **far}}))
            for _ in range(2):
                assert_same(mine.read(samples), wanted)


def test_a_store_that_stays_away_is_named_once(local, server):
    """With the sample; the attempts of the request are not made again by those who wait for it."""
    mine = reader(local, upload(local, server))
    mine.read(np.arange(8, dtype=np.uint64))
    server.plan(unavailable=10**6)
    with pytest.raises(ReadError, match=r"sample \d+, dp_rank 0: s3://.*stream\.bin: cannot be read.*failed 5 times"):
        mine.read(np.arange(100, 102, dtype=np.uint64))
    assert len(server.asked) <= 2 * 5  # windows, attempts


def test_workers_of_a_dataloader(local, server, checkout):
    """After requests of the parent, whose client does not survive a fork: that is an error, and other workers read."""
    url = upload(local, server)
    samples = SampleDataset(configuration(local, url), num_samples=24)
    options = {"batch_size": 4, "collate_fn": cl.collate_fn}

    def workers(method):
        return list(DataLoader(samples, num_workers=1, multiprocessing_context=method, timeout=60, **options))

    # In a process without other threads than those of its client, since a fork copies whatever these hold.
    script = (
        "import conceptloader as cl\nfrom torch.utils.data import DataLoader\n"
        f"samples = cl.SampleDataset({configuration(local, url)!r}, num_samples=24)\nsamples.__getitems__([3])\n"
        "next(iter(DataLoader(samples, batch_size=4, collate_fn=cl.collate_fn, num_workers=1, timeout=60)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, timeout=100, capture_output=True, text=True)
    assert re.search(r"s3://.+: found a process that was forked.*set num_workers=0", done.stderr), done.stderr
    wanted = DataLoader(SampleDataset(configuration(local, str(local)), num_samples=24), **options)
    for found in (workers("forkserver"), DataLoader(samples, **options)):
        for mine, theirs in zip(found, wanted, strict=True):
            assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)


def test_a_process_ends_while_requests_hang(local, server, checkout):
    url = upload(local, server)
    script = (
        "import threading, time, conceptloader as cl\n"
        f"windows = cl.open_dataset({url!r}).windows(8)\n"
        "threading.Thread(target=windows.__getitems__, args=(range(50),), daemon=True).start()\n"
        "time.sleep(0.3)\n"
    )
    server.plan(delay=3)
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, timeout=60, capture_output=True, text=True)
    server.plan()
    assert done.returncode == 0, done.stderr
