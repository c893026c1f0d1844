"""Faults of the reads of batches, injected below its machine code, under a whole loader."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.storage import reads as io
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.two_shards import write_corpus
from tests.faults import scenarios
from tests.faults.below import Fails, Interrupted, Random, Remounted, Short, Stale
from tests.faults.scenarios import block, train

Below = Callable[..., Any]

FILES = ["stream.bin", "documents.bin", "concepts.index", "concepts.data", "concepts.spans"]
PASSING = [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT]


@pytest.fixture(scope="module")
def below() -> Iterator[Below]:
    """Runs a function of scenarios.py in a process whose preads are ours."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=scenarios.preads) as executor:
        yield lambda function, *args, **options: executor.submit(function, *args, **options).result(100)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    write_corpus(path / "spans")
    write_corpus(path / "dense", "dense")
    write_dataset(path / "shards", random_documents(60, seed=2, mean_length=40), shards=20)
    return path


def make_config(path: Path, layout: str = "padded", **loader: Any) -> dict[str, Any]:
    return {
        "seq_len": 16,
        "datasets": {"a": {"path": str(path)}},
        "outputs": {"document_ids": True, "cu_seqlens": True, "position_ids": "document"},
        "concepts": {"concepts": {"layout": layout}},
        "loader": loader,
    }


@pytest.fixture(params=["spans, padded", "spans, ragged", "dense, padded", "dense, ragged", "shared labels"])
def config(request: pytest.FixtureRequest, data: Path) -> dict[str, Any]:
    if request.param == "shared labels":
        config = make_config(data / "spans", threads=3, prefetch=4)
        config["outputs"]["shared_labels"] = True
        return config
    encoding, layout = request.param.split(", ")
    return make_config(data / encoding, layout, threads=3, prefetch=4)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_the_reads_are_those_of_the_kernels_and_a_wrong_byte_is_noticed(
    below: Below, data: Path, prefetch: int
) -> None:
    config = make_config(data / "spans", prefetch=prefetch)
    right, wrong = below(train, config), below(train, config, damage=True)
    assert right.reads > 30
    assert len(right.batches) == len(wrong.batches) == 6
    for found, wanted in zip(wrong.batches, right.batches, strict=True):
        assert found["input_ids"] != wanted["input_ids"]


@pytest.mark.parametrize("times", [1, 20])
def test_interruptions_are_not_noticed(below: Below, config: dict[str, Any], times: int) -> None:
    wanted = below(train, config)
    found = below(train, config, [partial(Interrupted, times)])
    assert found.batches == wanted.batches
    assert len(found.failed) >= 6 * times
    assert (found.log, found.waited) == ([], [])


@pytest.mark.parametrize("most", [1, 3, 8])
def test_short_reads_are_put_together(below: Below, config: dict[str, Any], most: int) -> None:
    wanted = below(train, config)
    found = below(train, config, [partial(Short, most)])
    assert found.batches == wanted.batches
    assert found.short > 10
    assert (found.log, found.waited) == ([], [])


@pytest.mark.parametrize("layout", ["padded", "ragged"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("times", [1, len(io.BACKOFF_S)])
def test_a_fault_that_passes_costs_time_and_nothing_else(
    below: Below, data: Path, layout: str, file: str, code: int, times: int
) -> None:
    config = make_config(data / "spans", layout, prefetch=0)
    wanted = below(train, config)
    found = below(train, config, [partial(Fails, code, times, file)], undisturbed=2)
    assert found.batches == wanted.batches
    assert [failed for _, failed in found.failed] == [code] * times
    assert found.waited == list(io.BACKOFF_S[:times])
    read = found.failed[0][0]
    assert f"cannot read {read.size} bytes at offset {read.offset} of {read.path}, sample " in found.log[0]
    assert f"dp_rank 1: {os.strerror(code)}; trying again in 0.01 s" in found.log[0]


def test_stale_handles_are_opened_anew(below: Below, config: dict[str, Any]) -> None:
    wanted = below(train, config, steps=12)
    found = below(train, config, [Stale], steps=12, undisturbed=2)
    assert found.batches == wanted.batches
    assert found.failed
    assert set(found.waited) <= set(io.BACKOFF_S[:2])


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.ENOTCONN, errno.ESTALE], ids=errno.errorcode.get)
def test_a_remount_heals(below: Below, tmp_path: Path, code: int) -> None:
    config = make_config(write_corpus(tmp_path / "ds"), prefetch=0)
    wanted = below(train, config, steps=12)
    found = below(train, config, [partial(Remounted, tmp_path / "ds", code)], steps=12, undisturbed=2)
    assert (found.error, found.batches) == ("", wanted.batches)
    assert {failed for _, failed in found.failed} == {code}


@pytest.mark.parametrize(("seq_len", "micro_batch_size"), [(16, 40), (1100, 1)], ids=["samples", "shards of a sample"])
def test_a_batch_of_more_stale_shards_than_attempts(
    below: Below, data: Path, seq_len: int, micro_batch_size: int
) -> None:
    """After a restart of the server the handles of each shard fail once, and each of them passes."""
    config = {**make_config(data / "shards", prefetch=0), "seq_len": seq_len}
    wanted = below(train, config, micro_batch_size=micro_batch_size)
    found = below(train, config, [Stale], undisturbed=2, micro_batch_size=micro_batch_size)
    assert len({read.path for read, _ in found.failed}) > len(io.BACKOFF_S)
    assert found.error == ""
    assert found.batches == wanted.batches
    assert set(found.waited) == {io.BACKOFF_S[0]}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_fault_that_stays_is_an_error_that_says_where(below: Below, data: Path, file: str, prefetch: int) -> None:
    config = make_config(data / "spans", prefetch=prefetch, threads=1)
    wanted = below(train, config)
    found = below(train, config, [partial(Fails, errno.EIO, None, f"00001.{file}")])
    assert found.errno == errno.EIO
    read = found.failed[0][0]
    where = f"cannot read {read.size} bytes at offset {read.offset} of {data / 'spans'}/00001.{file}, sample "
    assert found.error.startswith(where)
    assert found.error.endswith("dp_rank 1: Input/output error; it failed 8 times in 43 s; check the file system")
    assert found.waited[:7] == list(io.BACKOFF_S)
    assert found.batches == wanted.batches[: len(found.batches)]
    sample = int(found.error.partition("sample ")[2].partition(",")[0])
    assert sample in wanted.batches[len(found.batches)]["sample_index"]
    if file == "stream.bin":
        assert covers(config, sample, read.path, read.offset, read.size)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EBADF], ids=errno.errorcode.get)
def test_what_cannot_pass_is_not_retried(below: Below, config: dict[str, Any], code: int) -> None:
    found = below(train, config, [partial(Fails, code)])
    assert (found.errno, found.waited, found.batches) == (code, [], [])
    assert os.strerror(code) in found.error


@pytest.mark.parametrize("seed", range(3))
def test_random_faults_under_8_threads_never_change_a_token(below: Below, config: dict[str, Any], seed: int) -> None:
    config["loader"] = {"threads": 8, "prefetch": 16}
    wanted = below(train, config, steps=100)
    found = below(train, config, [partial(Random, seed, [*PASSING, errno.EINTR], 0.05)], steps=100)
    assert found.error == ""
    assert found.batches == wanted.batches
    assert len(found.failed) > 50
    assert found.short > 50
    assert found.waited


@pytest.mark.parametrize("seed", range(3))
def test_random_faults_that_also_stay_end_before_a_wrong_token(below: Below, config: dict[str, Any], seed: int) -> None:
    config["loader"] = {"threads": 8, "prefetch": 16}
    wanted = below(train, config, steps=100)
    codes = [*PASSING * 5, errno.EACCES]
    found = below(train, config, [partial(Random, seed, codes, 0.1)], steps=100)
    assert "dp_rank 1" in found.error
    assert found.batches == wanted.batches[: len(found.batches)]


SLOW = [(0, 2), (4, 2), (1, 1)]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("prefetch", "threads"), SLOW)
def test_a_slow_read_is_logged(below: Below, data: Path, file: str, prefetch: int, threads: int) -> None:
    config = make_config(data / "spans", prefetch=prefetch, threads=threads, warn_after_s=0.1, timeout_s=10)
    wanted = below(train, config)
    found, read = below(block, config, file, 5, steps=6, until_logged=True)
    assert found.error == ""
    assert found.batches == wanted.batches
    where = f" s for {read.size} bytes at offset {read.offset} of {read.path}, sample "
    message = next(message for message in found.log if where in message)
    assert message.startswith("conceptloader, dp_rank 1: has waited ")
    sample = int(message.partition("sample ")[2].partition(",")[0])
    assert sample in [sample for batch in wanted.batches for sample in batch["sample_index"]]
    if file == "stream.bin":
        assert covers(config, sample, read.path, read.offset, read.size)


@pytest.mark.parametrize(("prefetch", "threads"), SLOW)
def test_a_read_that_stays_away_is_ended(below: Below, data: Path, prefetch: int, threads: int) -> None:
    config = make_config(data / "spans", prefetch=prefetch, threads=threads, warn_after_s=0.5, timeout_s=2)
    wanted = below(train, config)
    found, read = below(block, config, "stream.bin", 5, steps=6, until_logged=False)
    assert found.errno == errno.ETIMEDOUT
    assert f" s for {read.size} bytes at offset {read.offset} of {read.path}, sample " in found.error
    assert found.error.endswith("dp_rank 1; the limit is 2 s (loader.timeout_s): check the file system")
    assert found.log, "it was logged before"
    assert found.batches == wanted.batches, "the loader goes on where it was"


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


@pytest.mark.parametrize("prefetch", [0, 4])
def test_an_interrupt_waits_for_no_read(checkout: Path, data: Path, prefetch: int) -> None:
    command = [sys.executable, "-c", BLOCKED, json.dumps(make_config(data / "spans", prefetch=prefetch))]
    with subprocess.Popen(command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"blocked\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert errors.strip().endswith(b"KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


def covers(config: dict[str, Any], sample: int, path: str, offset: int, size: int) -> bool:
    """Whether a sample's tokens are what these bytes of a stream of 2 bytes a token hold."""
    blend = cl.open_blend(cl.load_config(config))
    (dataset,) = blend.datasets.values()
    _, _, window = blend.order.sample(sample)
    start = int(window) * 16
    base = int(dataset.shard_starts[int(Path(path).name.partition(".")[0])])
    return max(start, base) == base + offset // 2 and base + (offset + size) // 2 <= start + 17
