"""Megatron over files in an object store: a run of its own loader taken over."""

import uuid
from pathlib import Path

import pytest
import yaml

from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm.data import MegatronData
from tests.megatron.conftest import one_process
from tests.megatron.stock import adopted, assert_equal_samples, build_stock, dataset_config

__all__ = ["one_process"]  # the fixture
pytestmark = pytest.mark.usefixtures("one_process")
LENGTH, SIZES = 13, [60, 8, 0]


def test_the_samples_are_those_of_megatron(tmp_path, server):
    """Also that another place of the same files is refused at the start."""
    (tmp_path / "files").mkdir()
    path, prefixes = adopted(tmp_path / "files", "ab", order={"megatron": str(tmp_path / "cache")})
    url = server.upload(tmp_path / "files", f"b{uuid.uuid4().hex}")
    options = {
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
