"""Batches of a configuration with datasets in object stores: the reference engine, in parallel, with equal results."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch.open import open_reader
from conceptloader.batch.plain import ReferenceReader
from conceptloader.blend import load_config, open_blend
from conceptloader.errors import ConfigError
from tests.remote.conftest import Server
from tests.remote.test_datasets import local, upload

__all__ = ["local"]  # the fixture


def reader(local: Path, path: str, **loader: str) -> ReferenceReader:
    config = {
        "version": 1,
        "seq_len": 32,
        "datasets": {"near": {"path": str(local), "weight": 1.0}, "far": {"path": path, "weight": 2.0}},
        "outputs": {"position_ids": "document", "document_ids": True, "cu_seqlens": True},
        "concepts": {"c": {"layout": "padded"}, "d": {"layout": "ragged"}},
        "loader": loader,
    }
    return open_reader(open_blend(load_config(config)))


@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_batches_are_equal(local: Path, server: Server, engine: str) -> None:
    mine = reader(local, upload(local, server), engine=engine)
    assert isinstance(mine, ReferenceReader)
    theirs = reader(local, str(local), engine="reference")
    samples = np.arange(40, dtype=np.uint64)
    found, expected = mine.read(samples), theirs.read(samples)
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(found[name], expected[name]), name


def test_packs_are_equal(local: Path, server: Server) -> None:
    """Blocks of documents are read through the store, and packed as from a local disk."""
    config = {"seq_len": 32, "packing": {"bins": 4}, "outputs": {"cu_seqlens": True}, "concepts": {"c": {}}}
    near, far = (
        open_reader(open_blend(load_config({**config, "datasets": {"a": {"path": path}}})))
        for path in (str(local), upload(local, server))
    )
    samples = np.arange(20, dtype=np.uint64)
    found, expected = far.read(samples), near.read(samples)
    assert found.keys() == expected.keys()
    for name in expected:
        assert np.array_equal(found[name], expected[name]), name


def test_a_forked_process_is_told(local: Path, server: Server) -> None:
    far = cl.open_dataset(upload(local, server))
    child = os.fork()
    if not child:
        try:
            far.tokens(0, 3)
        except ConfigError as error:
            os._exit(0 if "multiprocessing_context='spawn'" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_ends_while_requests_hang(local: Path, server: Server, checkout: Path) -> None:
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
