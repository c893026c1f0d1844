"""Many readers at once: workers of every start method, threads, forks, few descriptors, a read-only place."""

import multiprocessing
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.base.lazy import lazy
from conceptloader.loader.batch.open import open_reader
from conceptloader.loader.batch.open_files import OpenFiles
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.storage.handles import Handles
from conceptloader.storage.source import LocalFiles
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.blended import tokens_of
from tests.soak.builds import child

SHARDS = 12
SEQ_LEN = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "ds"
    write_dataset(path, random_documents(120, seed=3, mean_length=40), shards=SHARDS, encoding="spans")
    return path


def configuration(data):
    return {
        "seq_len": SEQ_LEN,
        "datasets": {"a": {"path": str(data)}},
        "tracks": {"concepts": {}},
        "outputs": {"document_ids": True},
    }


@pytest.fixture(scope="module")
def truth(data):
    """input_ids of the first 200 samples."""
    blend = cl.open_blend(configuration(data))
    return [tokens_of(blend, sample)[:-1] for sample in range(200)]


def test_64_threads_on_one_reader_while_descriptors_are_evicted(data, truth):
    """Fewer descriptors than a shard has files, so that every read evicts what another thread is using."""
    blend = cl.open_blend(cl.load_config(configuration(data)))
    reader = open_reader(blend)
    if isinstance(reader, BatchReader):
        reader._files = OpenFiles(reader._tables, Handles(6))
    else:
        for ds in blend.datasets.values():
            ds.files.source = LocalFiles(handles=Handles(2))

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(15):
            chosen = rng.integers(0, 200, 4)
            batch = reader.read(chosen.astype(np.uint64))
            assert batch["input_ids"].tolist() == [truth[k] for k in chosen.tolist()]
        return 15

    with ThreadPoolExecutor(64) as pool:
        assert sum(pool.map(read, range(64))) == 64 * 15


def test_forks_while_threads_are_reading(data, truth):
    """A child has the locks and descriptors of threads that do not exist in it."""
    reader = open_reader(cl.open_blend(cl.load_config(configuration(data))))
    stop = False

    def hammer(seed):
        rng = np.random.default_rng(seed)
        while not stop:
            reader.read(rng.integers(0, 200, 2).astype(np.uint64))

    def in_child():
        for k in range(0, 200, 25):
            batch = reader.read(np.arange(k, k + 5, dtype=np.uint64))
            assert batch["input_ids"].tolist() == truth[k : k + 5]

    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(hammer, seed) for seed in range(4)]
        try:
            for _ in range(5):
                assert child(in_child)
        finally:
            stop = True
        for task in tasks:
            task.result()


_COLLECTS = """
import gc, os, sys, threading, time
os.register_at_fork(after_in_child=gc.collect)  # runs before the hooks of what is imported later
import conceptloader as cl
from conceptloader.storage.handles import HANDLES
gc.disable()
dataset = cl.open_dataset(sys.argv[1])
dataset.tokens(0, 5)
dataset.itself = dataset
del dataset
held = threading.Event()
def hold():
    with HANDLES.lock:
        held.set()
        time.sleep(0.5)
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    cl.open_dataset(sys.argv[1]).tokens(0, 5)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_that_collects_garbage_before_all_else_closes_its_files(data):
    """A thread that held the lock of the descriptors does not exist there to give it back."""
    subprocess.run([sys.executable, "-c", _COLLECTS, str(data)], check=True, timeout=40)


@contextmanager
def read_only(path):
    """Nothing below `path` may be written; root is asked through the effective user id, which the kernel checks."""
    modes = {p: p.stat().st_mode for p in (path, *path.rglob("*"))}
    for p, mode in modes.items():
        p.chmod(mode & 0o555)
    user = os.geteuid()
    if not user:
        for parent in path.parents[:-2]:
            parent.chmod(parent.stat().st_mode | 0o055)
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        for p, mode in modes.items():
            p.chmod(mode)


def test_a_read_only_file_system(data, truth):
    with read_only(data):
        with pytest.raises(PermissionError):
            (data / "x").touch()
        with cl.make_dataloader(configuration(data), micro_batch_size=200) as loader:
            assert next(iter(loader))["input_ids"].tolist() == truth
        assert cl.verify(data, full=True) == []
        with pytest.raises(cl.errors.ConceptloaderError):
            cl.writing.create_writer(data / "new", cl.writing.BuildOptions())
    assert resource.getrlimit(resource.RLIMIT_NOFILE)
    assert multiprocessing.active_children() == []


def test_threads_that_need_a_lazy_value_at_the_same_time_have_one():
    """The table of open files of a dataset is one."""
    together = Barrier(4)

    class Thing:
        @lazy
        def table(self):
            together.wait(60)
            return object()

    thing = Thing()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: thing.table, range(4)))
    assert {*map(id, found)} == {id(thing.table)}
