"""No rank raises on its own where the others wait for it: real processes, of which one is given something else."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.distributed_c10d import _get_default_store

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.order.progress.runlog import FILE_NAME
from tests.run.conftest import config_of

RANKS = 3
TIMEOUT_S = 60
HERE = "weights.yaml"


CASES = {
    "unknown dataset": None,
    "other weights, with a log": None,
    "log that cannot be written": None,
    "losses": {"odm": {}},
    "losses of one rank": {"odm": {}},
    "second call": {"odm": {}},
    "second call of the first rank": {"file": HERE},
    "omitted by one rank": None,
    "look of the first rank": {"tests.mixing.test_loader:Watching": "nowhere"},
}


def one_differs(rank, folder, config):
    """In each case each rank writes its error, and how long it took."""
    store, limit = dist.FileStore(f"{folder}/store", RANKS), timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=limit)
    for case, mixing in CASES.items():
        own = {} if mixing is None else {"mixing": {"file": f"{folder}/{HERE}"} if "file" in mixing else mixing}
        differ(rank, f"{folder}/{case}", {**config, **own}, case)


def differ(rank, folder, config, case):
    loader = cl.make_dataloader(config, dp_rank=rank, dp_size=RANKS, micro_batch_size=2)
    batches = iter(loader)
    next(batches)
    begun = time.monotonic()
    try:
        if case == "unknown dataset":
            loader.set_weights({"books": 1} if rank else {"bogs": 1})
        elif case == "other weights, with a log":
            loader.log_start(f"{folder}/log", 0)
            loader.set_weights({"books": 1 + rank, "web": 1})
        elif case == "log that cannot be written":
            loader.log_start(f"{folder}/log", 0)
            if not rank:
                Path(folder, "log", FILE_NAME).write_text("another process\n" * 9)
            loader.set_weights({"books": 1})
        elif case == "losses of one rank":  # as with pipeline stages, of which one knows them
            if rank == 1:
                loss = torch.tensor([float("nan")])
                loader.losses.add(loss, {"dataset_id": torch.tensor([0]), "loss_mask": torch.ones(1)})
            loader.observe_step()
        elif case == "losses":
            loader.observe({"books": 1.0} if rank != 1 else {"books": float("nan")})
        elif case == "second call":
            loader.observe({"books": 1.0})
            if rank != 1:
                next(batches)
            loader.observe({"books": 1.0})
        elif case == "omitted by one rank":
            _get_default_store().set_timeout(timedelta(seconds=2))
            if rank != 1:
                loader.set_weights({"books": 1})
        else:  # the first rank reads the file for all, and is the one that must not raise before
            loader.observe()
            if rank:
                next(batches)
            loader.observe()
        text = "no error"
    except ConfigError as error:
        text = str(error)
    _get_default_store().set_timeout(timedelta(seconds=TIMEOUT_S))
    Path(folder, str(rank)).write_text(f"{time.monotonic() - begun:.3f} {text}")
    dist.barrier()
    loader.close()


@pytest.fixture(scope="module")
def outcomes(data, tmp_path_factory):
    """One group of processes for all cases."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / HERE).write_text("books: 1\nweb: 1\n")
    for case in CASES:
        (folder / case).mkdir()
    mp.start_processes(one_differs, (str(folder), config_of(data)), nprocs=RANKS, start_method="fork")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_all_raise_when_one_does(outcomes, case):
    found = [(outcomes / case / str(rank)).read_text().split(" ", 1) for rank in range(RANKS)]
    expected = "differ between the ranks"
    if case == "losses of one rank":
        expected = "losses.books: found nan"
    elif case == "omitted by one rank":  # which trains on, to the next collective of its trainer
        expected = "found no call within 2 s on rank(s) 1"
        assert found.pop(1)[1] == "no error"
    assert all(expected in text for _, text in found), found
    if case == "other weights, with a log":  # nothing was done, so that the log says nothing
        assert '"kind":"weights"' not in (outcomes / case / "log" / FILE_NAME).read_text()
    assert all(float(seconds) < TIMEOUT_S / 2 for seconds, _ in found), found
