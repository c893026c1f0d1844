"""Megatron and nanotron over files in an object store: a run of Megatron's own loader taken over; no forked workers."""

import uuid
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from conceptloader.blend import load_config, open_blend
from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm.data import MegatronData
from conceptloader.integrations.megatron_lm.dataset import data_loader
from conceptloader.integrations.nanotron_lm.batches import make_dataloader
from conceptloader.integrations.nanotron_lm.data import open_stage
from conceptloader.integrations.nanotron_lm.options import NanotronOptions
from conceptloader.testing import random_documents, write_dataset
from tests.megatron.conftest import one_process
from tests.megatron.stock import adopted, assert_equal_samples, build_stock, dataset_config
from tests.nanotron.support import context
from tests.nanotron.test_collator import pointers
from tests.remote.conftest import Server

__all__ = ["one_process", "pointers"]  # fixtures
pytestmark = pytest.mark.usefixtures("one_process")
LENGTH, SIZES = 13, [60, 8, 0]


def test_the_samples_are_those_of_megatron(tmp_path: Path, server: Server) -> None:
    """Also that another place of the same files is refused at the start."""
    (tmp_path / "files").mkdir()
    path, prefixes = adopted(tmp_path / "files", "ab", order={"megatron": str(tmp_path / "cache")})
    url = server.upload(tmp_path / "files", f"b{uuid.uuid4().hex}")
    options: dict[str, Any] = {
        "blend": ([f"{url}/{Path(prefix).name}" for prefix in prefixes], [0.6, 0.4]),
        "split": "90,10,0",
        "path_to_cache": str(tmp_path / "cache"),
        "object_storage_cache_path": str(tmp_path / "idx"),
        "mmap_bin_files": False,
    }
    stock = build_stock(dataset_config(LENGTH, **options), SIZES)
    there = {**yaml.safe_load(path.read_text()), "datasets": {name: {"path": f"{url}/{name}"} for name in "ab"}}
    (tmp_path / "there.yaml").write_text(yaml.safe_dump(there))
    config = dataset_config(LENGTH, **options)
    data = MegatronData(tmp_path / "there.yaml", config, SIZES, micro_batch_size=1, consumed=20)
    train, valid, _ = data.datasets()
    assert train is not None
    for theirs, mine in zip((stock[0], stock[1]), (train, valid), strict=True):
        indices = range(0, len(mine), 4)
        for index, sample in zip(indices, mine.__getitems__(indices), strict=True):
            assert_equal_samples(sample, theirs[index], ignore=["sample_index"])

    with pytest.raises(ConfigError, match=rf"reads all of {url}/a_text\.bin .*/files/a_text\.bin"):
        MegatronData(path, config, SIZES, micro_batch_size=1)


@pytest.fixture
def places(tmp_path: Path, server: Server) -> dict[str, str]:
    """A dataset in the store, and on this machine."""
    near = tmp_path / "up" / "ds"
    write_dataset(near, random_documents(60, seed=3, mean_length=40), encoding="spans")
    return {"far": server.upload(near.parent, f"b{uuid.uuid4().hex}") + "/ds", "near": str(near)}


def assert_equal(found: dict[str, list[Any]], batches: int) -> None:
    assert len(found["far"]) == batches
    for mine, theirs in zip(found["far"], found["near"], strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


FORKED = (
    r"s3://.+: found a process that was forked.*set num_workers=0 \(Megatron-LM: --num-workers 0, nanotron: num_load"
)


def test_workers_of_megatron(tmp_path: Path, places: dict[str, str]) -> None:
    """--num-workers above 0 forks a process that has read the store."""
    found = {}
    for name, place in places.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"datasets": {"a": {"path": place}}, "tracks": {"concepts": {}}}))
        data = MegatronData(file, dataset_config(LENGTH), [24, 0, 0], micro_batch_size=2)
        train = data.datasets()[0]
        assert train is not None
        if name == "far":
            with pytest.raises(Exception, match=FORKED):
                next(iter(data_loader(train, 2, 4, num_workers=2)))
        found[name] = list(data_loader(train, 2, 4, num_workers=0))
    assert_equal(found, 10)


@pytest.mark.usefixtures("pointers")
def test_workers_of_nanotron(places: dict[str, str]) -> None:
    """num_loading_workers above 0, likewise."""
    found = {}
    for name, place in places.items():
        blend = open_blend(load_config({"seq_len": 16, "datasets": {"a": {"path": place}}}))
        sizes = {"step": 0, "micro_batch_size": 2, "global_batch_size": 2}

        def loader(workers: int, blend: Any = blend, sizes: Any = sizes) -> Any:
            return make_dataloader(
                open_stage(blend, NanotronOptions(), context(), **sizes),
                parallel_context=context(),
                input_pp_rank=0,
                output_pp_rank=0,
                num_workers=workers,
                dataloader_pin_memory=False,
            )

        if name == "far":
            with pytest.raises(Exception, match=FORKED):
                next(iter(loader(1)))
        found[name] = list(islice(loader(0), 5))
    assert_equal(found, 5)
