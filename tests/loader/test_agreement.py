"""Ranks that are about to read different data are told so at the start, in real processes."""

import copy
import logging
import re
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.testing._internal.distributed.fake_pg import FakeStore

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.loader.torch.agreement import require_same
from tests.raises import cells, raises

RANKS = 3


def read(config, rank, **options):
    """Samples consumed after two micro batches."""
    sizes = {"dp_size": RANKS, "micro_batch_size": 2, "check_ranks": True}
    with cl.make_dataloader(config, dp_rank=rank, **{**sizes, **options}) as loader:
        for _, _batch in zip(range(2), loader, strict=False):
            pass
        return loader.consumed_samples


def alone_differs(rank, config, change):
    if rank == 1:
        change(config)
    return config


def weigh(config):
    config["datasets"]["a"]["weight"] = 0.6


def put_another_dataset_there(config):
    config["datasets"]["b"]["path"] = config["datasets"]["b"]["path"].removesuffix("b") + "a"


def mask(config):
    config["outputs"]["mask_document_boundaries"] = True


def read_elsewhere(config):
    """What may differ: threads, and where the files of the same dataset are."""
    config["loader"]["num_threads"] = 1
    config["allowed_roots"] = [entry["path"] for entry in config["datasets"].values()]
    config["datasets"]["a"]["path"] += "/."


def come_late(rank):
    if rank == 1:
        time.sleep(2)
    require_same("late", {}, warn_after_s=0.5)
    return 0


def half(rank, config):
    """Groups are apart from each other."""
    group = [dist.new_group([0, 2]), dist.new_group([1])][rank == 1]
    return read(alone_differs(rank, config, weigh), rank // 2, dp_size=2 - rank % 2, check_ranks=group)


def changed(change):
    return lambda rank, config: read(alone_differs(rank, config, change), rank)


def given(name, alike, other):
    return lambda rank, config: read(config, rank, **{name: other if rank == 1 else alike})


CASES = {
    "alike": lambda rank, config: read(config, rank),
    "elsewhere": changed(read_elsewhere),
    "group": half,
    "weight": changed(weigh),
    "dataset": changed(put_another_dataset_there),
    "outputs": changed(mask),
    "position": given("consumed_samples", 0, 6),
    "size": given("global_batch_size", 6, 12),
    "epoch": given("epoch_samples", 12, 24),
    "late": lambda rank, config: come_late(rank),
    "nobody": lambda rank, config: read(config, min(rank, 1)),
    "missing": lambda rank, config: time.sleep(8) if rank == 1 else read(config, rank),
}


def run(rank, config, folder):
    logging.basicConfig(filename=f"{folder}/log.{rank}", force=True)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS, timeout=timeout)
    for name, case in CASES.items():
        if name == "missing":
            dist.distributed_c10d._get_default_store().set_timeout(timedelta(seconds=2))
        try:
            outcome = f"read {case(rank, copy.deepcopy(config))}"
        except ConfigError as error:
            outcome = str(error)
        Path(folder, f"{name}.{rank}").write_text(outcome)


@pytest.fixture(scope="module")
def outcomes(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outcomes")
    datasets = {name: {"path": str(data / name), "weight": 0.5} for name in "ab"}
    config = {"seq_len": 16, "datasets": datasets, "tracks": {"concepts": {}}, "outputs": {}, "loader": {}}
    mp.start_processes(run, (config, str(folder)), nprocs=RANKS, start_method="fork")
    return folder


def texts(outcomes, case):
    return [(outcomes / f"{case}.{rank}").read_text() for rank in range(RANKS)]


@pytest.mark.slow
def test_ranks_that_agree_read(outcomes):
    assert texts(outcomes, "alike") == texts(outcomes, "elsewhere") == ["read 12"] * RANKS
    assert texts(outcomes, "group") == ["read 8", "read 4", "read 8"]
    assert texts(outcomes, "late") == ["read 0"] * RANKS


DIFFER = r"""
weight | configuration\.datasets\.a\.weight: rank\(s\) 0, 2: 0\.5; rank\(s\) 1: 0\.6
dataset | order\.members\.b\.stream_fingerprint: rank\(s\) 0, 2: \"\w+\"; rank\(s\) 1: \"\w+\"
outputs | configuration\.outputs\.mask_document_boundaries: rank\(s\) 0, 2: false; rank\(s\) 1: true
position | consumed_samples: rank\(s\) 0, 2: 0; rank\(s\) 1: 6
size | global_batch_size: rank\(s\) 0, 2: \[\[0,6\]\]; rank\(s\) 1: \[\[0,12\]\]
epoch | epoch_samples: rank\(s\) 0, 2: 12; rank\(s\) 1: 24
"""


@pytest.mark.slow
@pytest.mark.parametrize(("case", "path"), cells(DIFFER))
def test_every_rank_says_which_ranks_differ_in_what(outcomes, case, path):
    for text in texts(outcomes, case):
        assert text.startswith("training data: found values that differ between the ranks")
        assert re.search(path, text)


@pytest.mark.slow
def test_samples_that_no_rank_would_read_are_an_error(outcomes):
    for text in texts(outcomes, "nobody"):
        assert "found no dp_rank 2 of 3 among 3 ranks" in text


@pytest.mark.slow
def test_ranks_that_do_not_come_are_named(outcomes):
    assert "late: waiting for rank(s) 1\n" in (outcomes / "log.0").read_text()
    assert "late" not in (outcomes / "log.2").read_text()
    found = texts(outcomes, "missing")
    assert found[0] == found[2]
    assert "training data: found no call within 2 s on rank(s) 1" in found[0]


def test_ranks_need_a_process_group(config):
    with raises(ConfigError, "check_ranks", "no process group with dp_size 3"):
        read(config, 0)
    assert read(config, 0, dp_size=1) == 4


@contextmanager
def group_of(size):
    """A process group of dry runs, in which this is rank 1."""
    dist.init_process_group("fake", rank=1, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_the_fake_backend_of_dry_runs_has_no_other_ranks(config):
    with group_of(3):
        assert read(config, 1) == 12


@pytest.mark.parametrize("given", [{}, {"dp_rank": 0}])
@pytest.mark.parametrize("make", [cl.make_dataloader, cl.batches])
def test_under_torchrun_nobody_reads_as_the_only_rank_by_mistake(config, make, given, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with raises(ConfigError, "dp_rank, dp_size", "one of 2 processes"):
        next(iter(make(config, micro_batch_size=2, **given)))
    assert len(next(iter(make(config, micro_batch_size=2, dp_rank=1, dp_size=2)))["labels"]) == 2


def test_a_sampler_is_not_that_of_the_only_rank_by_mistake(monkeypatch):
    for ranks, given in ((3, {"num_replicas": 3}), (2, {}), (2, {"rank": 0}), (2, {"num_replicas": 1})):
        with raises(ConfigError, "rank, num_replicas", f"one of {ranks} processes"):
            cl.EpochSampler(12, **given)
        monkeypatch.setenv("WORLD_SIZE", "2")
    with group_of(2):
        assert [*cl.EpochSampler(6)] == [*cl.EpochSampler(6, 2, 1)] == [1, 3, 5]
    assert [*cl.EpochSampler(3, 1, 0)] == [0, 1, 2]


@pytest.mark.parametrize("given", [{}, {"dp_rank": 0}])
def test_in_a_group_nobody_reads_as_the_only_rank_by_mistake(config, given):
    before = cl.make_dataloader(config, micro_batch_size=2, **given)
    with group_of(2):
        with raises(ConfigError, "dp_rank, dp_size", "one of 2 processes", fix="dp_rank=0 and dp_size=1"):
            cl.make_dataloader(config, micro_batch_size=2, **given)
        cl.make_dataloader(config, micro_batch_size=2, dp_rank=0, dp_size=1).close()
        with raises(ConfigError, "dp_rank, dp_size", "one of 2 processes"):
            next(iter(before))


def test_a_size_without_a_rank_is_not_that_of_the_first_one(config):
    with raises(ConfigError, "dp_rank", "none, with dp_size 2"):
        cl.batches(config, micro_batch_size=2, dp_size=2)
