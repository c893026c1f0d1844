"""Faults of the reads of batches, injected below its machine code, under a whole loader."""

import errno
import json
import multiprocessing
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.storage import reads as io
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.two_shards import write_corpus
from tests.faults import scenarios
from tests.faults.below import Fails, Random, Remounted, Stale
from tests.faults.scenarios import block, train

FILES = ["stream.bin", "documents.bin", "concepts.index", "concepts.data", "concepts.spans"]
PASSING = [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR]


class Below:
    """Runs functions of scenarios.py in a process whose preads are ours."""

    def __init__(self, executor):
        self._executor, self._undisturbed = executor, {}

    def __call__(self, function, *args, **options):
        return self._executor.submit(function, *args, **options).result(100)

    def wanted(self, config, **options):
        """The batches of a training without faults."""
        key = repr((config, options))
        if key not in self._undisturbed:
            self._undisturbed[key] = self(train, config, **options)
        return self._undisturbed[key].batches


@pytest.fixture(scope="module")
def below():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=scenarios.preads) as executor:
        yield Below(executor)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_corpus(path / "spans")
    write_corpus(path / "dense", "dense")
    write_dataset(path / "shards", random_documents(60, seed=2, mean_length=40), shards=20)
    return path


def make_config(path, layout="padded", **loader):
    return {
        "seq_len": 16,
        "datasets": {"a": {"path": str(path)}},
        "outputs": {"document_ids": True, "cu_seqlens": True, "position_ids": "document"},
        "tracks": {"concepts": {"layout": layout}},
        "loader": loader,
    }


@pytest.fixture(params=["spans, padded", "dense, ragged", "shared labels"])
def config(request, data):
    if request.param == "shared labels":
        config = make_config(data / "spans", "ragged", num_threads=3, prefetch_batches=4)
        config["outputs"]["shared_labels"] = True
        return config
    encoding, layout = request.param.split(", ")
    return make_config(data / encoding, layout, num_threads=3, prefetch_batches=4)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_the_reads_are_those_of_the_kernels_and_a_wrong_byte_is_noticed(below, data, prefetch):
    config = make_config(data / "spans", prefetch_batches=prefetch)
    right, wrong = below(train, config), below(train, config, damage=True)
    assert right.reads > 30
    assert len(right.batches) == len(wrong.batches) == 6
    for found, wanted in zip(wrong.batches, right.batches, strict=True):
        assert found["input_ids"] != wanted["input_ids"]


@pytest.mark.parametrize("code", [errno.ENOTCONN, errno.ESTALE], ids=errno.errorcode.get)
def test_a_remount_heals(below, tmp_path, code):
    config = make_config(write_corpus(tmp_path / "ds"), prefetch_batches=0)
    wanted = below.wanted(config, steps=12)
    found = below(train, config, [partial(Remounted, tmp_path / "ds", code)], steps=12, undisturbed=2)
    assert (found.error, found.batches) == ("", wanted)
    assert {failed for _, failed in found.failed} == {code}


@pytest.mark.parametrize(("seq_len", "micro_batch_size"), [(16, 40), (1100, 1)], ids=["samples", "shards of a sample"])
def test_a_batch_of_more_stale_shards_than_attempts(below, data, seq_len, micro_batch_size):
    """After a restart of the server the handles of each shard fail once, and each of them passes."""
    config = {**make_config(data / "shards", prefetch_batches=0), "seq_len": seq_len}
    found = below(train, config, [Stale], undisturbed=2, micro_batch_size=micro_batch_size)
    assert len({read.path for read, _ in found.failed}) > len(io.BACKOFF_S)
    assert (found.error, found.batches) == ("", below.wanted(config, micro_batch_size=micro_batch_size))
    assert set(found.waited) == {io.BACKOFF_S[0]}


@pytest.mark.parametrize(("file", "prefetch"), list(zip(FILES, [0, 4, 0, 4, 0], strict=True)))
def test_a_fault_that_stays_is_an_error_that_says_where(below, data, file, prefetch):
    config = make_config(data / "spans", prefetch_batches=prefetch, num_threads=1)
    found, wanted = below(train, config, [partial(Fails, errno.EIO, None, f"00001.{file}")]), below.wanted(config)
    assert found.errno == errno.EIO
    read = found.failed[0][0]
    where = f"cannot read {read.size} bytes at offset {read.offset} of {data / 'spans'}/00001.{file}, sample "
    assert found.error.startswith(where)
    assert "dp_rank 1: Input/output error; it failed 8 times in 43 s" in found.error
    assert found.waited[:7] == list(io.BACKOFF_S)
    check_end(found, wanted, config)


def check_end(found, wanted, config):
    """The batches before the error are right, and its sample is one of the next batch."""
    assert found.batches == wanted[: len(found.batches)]
    sample, read = sample_of(found.error), found.failed[0][0]
    assert sample in wanted[len(found.batches)]["sample_index"]
    assert not read.path.endswith("stream.bin") or covers(config, sample, read)


@pytest.mark.parametrize("staying", [False, True])
def test_random_faults_under_8_threads_never_change_a_token(below, config, staying):
    """Those that stay end the training before a wrong token."""
    config["loader"] = {"num_threads": 8, "prefetch_batches": 16}
    codes = [*PASSING * 5, errno.EACCES] if staying else [*PASSING, errno.EINTR]
    found = below(train, config, [partial(Random, 0, codes, 0.1 if staying else 0.05)], steps=100)
    wanted = below.wanted(config, steps=100)
    if staying:
        assert "dp_rank 1" in found.error
        assert found.batches == wanted[: len(found.batches)]
        return
    assert (found.error, found.batches) == ("", wanted)
    assert len(found.failed) > 50
    assert found.short > 50
    assert found.waited


SLOW = [(0, 2), (4, 2), (1, 1)]


@pytest.mark.parametrize(("file", "how"), [*zip(["stream.bin", "concepts.data", "documents.bin"], SLOW, strict=True)])
def test_a_slow_read_is_logged(below, data, file, how):
    config = make_config(data / "spans", prefetch_batches=how[0], num_threads=how[1], warn_after_s=0.1, timeout_s=10)
    wanted = below.wanted(config)
    found, read = below(block, config, file, 5, steps=6, until_logged=True)
    assert (found.error, found.batches) == ("", wanted)
    where = f" s for {read.size} bytes at offset {read.offset} of {read.path}, sample "
    message = next(message for message in found.log if where in message)
    assert message.startswith("conceptloader, dp_rank 1: has waited ")
    assert sample_of(message) in [sample for batch in wanted for sample in batch["sample_index"]]
    assert file != "stream.bin" or covers(config, sample_of(message), read)


@pytest.mark.parametrize(("prefetch", "threads"), SLOW)
def test_a_read_that_stays_away_is_ended(below, data, prefetch, threads):
    config = make_config(data / "spans", prefetch_batches=prefetch, num_threads=threads, warn_after_s=0.2, timeout_s=1)
    found, read = below(block, config, "stream.bin", 5, steps=6, until_logged=False)
    assert found.errno == errno.ETIMEDOUT
    assert f" s for {read.size} bytes at offset {read.offset} of {read.path}, sample " in found.error
    assert "dp_rank 1; the limit is 1 s (loader.timeout_s)" in found.error
    assert found.log, "it was logged before"
    assert found.batches == below.wanted(config), "the loader goes on where it was"


BLOCKED = """
import json, sys, threading, time
from tests.faults.below import Blocks
from tests.faults.scenarios import preads
fault = Blocks("stream.bin", 5)
preads().begin([fault])
import conceptloader as cl
def tell():
    while fault.blocked is None:
        time.sleep(0.01)
    print("blocked", flush=True)
threading.Thread(target=tell, daemon=True).start()
for batch in cl.make_dataloader(json.loads(sys.argv[1]), micro_batch_size=4):
    pass
"""


def test_an_interrupt_waits_for_no_read(checkout, data):
    configs = [json.dumps(make_config(data / "spans", prefetch_batches=prefetch)) for prefetch in (0, 4)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": checkout}
    processes = [subprocess.Popen([sys.executable, "-c", BLOCKED, config], **pipes) for config in configs]
    for process in processes:
        with process:
            assert process.stdout.readline() == b"blocked\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert errors.strip().endswith(b"KeyboardInterrupt")
        assert process.returncode == -signal.SIGINT


def sample_of(message):
    return int(message.partition("sample ")[2].partition(",")[0])


def covers(config, sample, read):
    """Whether a sample's tokens are what these bytes of a stream of 2 bytes a token hold."""
    blend = cl.open_blend(cl.load_config(config))
    (dataset,) = blend.datasets.values()
    _, _, window = blend.order.sample(sample)
    start = int(window) * 16
    base = int(dataset.shard_starts[int(Path(read.path).name.partition(".")[0])])
    return max(start, base) == base + read.offset // 2 and base + (read.offset + read.size) // 2 <= start + 17
