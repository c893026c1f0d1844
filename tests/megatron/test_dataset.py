"""Datasets of ours, over Megatron's own files, return what Megatron's own return."""

import itertools

import pytest
import torch

from conceptloader.errors import ConfigError
from conceptloader.order.progress.state import OrderState
from tests.corpora.for_megatron import write_config, write_datasets
from tests.corpora.token_files import random_corpus
from tests.megatron.stock import adopted, assert_equal_samples, build_stock, data_of, dataset_config, in_order
from tests.raises import raises

pytestmark = pytest.mark.usefixtures("one_process")
OURS = ("sample_index", "dataset_id")
FLAGS = [dict(zip(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), bits, strict=True))
         for bits in itertools.product((False, True), repeat=3)]  # fmt: skip
LENGTH = 13


@pytest.mark.parametrize("pad", [None, 5])
@pytest.mark.parametrize("flags", [*FLAGS, {"create_attention_mask": False}])
def test_same_window_same_sample(tmp_path, flags, pad):
    path, prefixes = adopted(tmp_path, "a", order="sequential")
    stock_config = dataset_config(LENGTH, pad, blend=(prefixes, None), split="1,0,0", **flags)
    stock = in_order(build_stock(stock_config, [1, 0, 0])[0], LENGTH)
    data = data_of(path, dataset_config(LENGTH, pad, **flags), [len(stock), 0, 0], split="1,0,0")
    ours = data.datasets()[0]
    assert len(ours) == len(stock)
    for w in range(len(stock)):
        assert_equal_samples(ours[w], stock[w], ignore=OURS)
    batch = torch.utils.data.default_collate(ours.__getitems__([0, 3]))
    assert batch["tokens"].shape == (2, LENGTH)
    padding = ours[None]
    assert torch.equal(padding["tokens"], ours[0]["tokens"])
    assert not padding["loss_mask"].any()


@pytest.mark.parametrize("weights", [[0.5, 0.2, 0.3], None])
@pytest.mark.parametrize("flags", FLAGS[::7])
def test_taking_over_a_run(tmp_path, weights, flags):
    """The trainer goes on with Megatron's own samples, in its own order, from its own files, which stay as they are."""
    cache = tmp_path / "cache"
    path, prefixes = adopted(tmp_path, "abc", order={"megatron": "cache"})
    options = {"blend": (prefixes, weights), "split": "90,10,0", "path_to_cache": str(cache), **flags}
    sizes = [90, 8, 0]
    stock = build_stock(dataset_config(LENGTH, **options), sizes)
    before = {file: file.stat().st_mtime_ns for file in cache.iterdir()}
    config = dataset_config(LENGTH, **{**options, "path_to_cache": None})
    data = data_of(path, config, sizes, consumed=40)
    ours = data.datasets()
    for theirs, mine in zip(stock[:2], ours[:2], strict=True):
        assert len(mine) == len(theirs)  # more than was asked for, where the index of a single corpus ends later
        for t in range(len(mine)):
            assert_equal_samples(mine[t], theirs[t], ignore=["sample_index"])
    assert {file: file.stat().st_mtime_ns for file in cache.iterdir()} == before
    assert OrderState.read(data.state(40), "state").spec.order == "megatron"

    with raises(ConfigError, expected="index files hold"):
        data.datasets(first=10**6)
    with pytest.raises(ConfigError, match=r"expected the index files of the run; files for other arguments: .*train"):
        data_of(path, config, [91, 8, 0])


def test_splits(tmp_path):
    """--split cuts by document, --full-validation reads every window once, several sets come as a list."""
    path = write_config(write_datasets(tmp_path) / "data.yaml")
    config = dataset_config(16)
    data = data_of(path, config, [100, 20, 0], split="80,20,0")
    train, valid, test = data.datasets()
    assert (len(train), len(valid), test) == (100, 20, None)
    assert train.index_split.name == "train"
    full = data_of(path, config, [100, None, 0], split="80,20,0").datasets()[1]
    windows = [full[k]["tokens"] for k in range(len(full))]
    ranges = {name: d.split_documents(0.8, 1.0, (0, d.num_tokens)) for name, d in data.train.blend.datasets.items()}
    assert len(full) == sum((stop - start - 1) // 16 for start, stop in ranges.values())
    code = data.train.blend.datasets["code"]
    start = ranges["code"][0]
    assert torch.equal(windows[0], torch.from_numpy(code.tokens(start, start + 16)))
    assert len({tuple(window.tolist()) for window in windows}) == len(full)

    names = {name: {"path": name} for name in ("code", "web")}
    path = write_config(path, order="sequential", datasets=names)
    whole = data_of(path, config, [100, 10**6, 0], split="80,20,0").datasets()[1]  # begins again, as Megatron's data do
    for k in (3, len(full) + 3):
        assert torch.equal(whole[k]["tokens"], windows[3])

    config.multiple_validation_sets = True
    sets = data_of(path, config, [100, None, 0], split="80,20,0").datasets()[1]
    assert [len(one) for one in sets] == [(ranges[name][1] - ranges[name][0] - 1) // 16 for name in ("code", "web")]


def test_what_is_asked_for_must_be_there(tmp_path):
    path = write_config(write_datasets(tmp_path) / "data.yaml")
    with raises(ConfigError, fix="--eval-iters 0"):
        data_of(path, dataset_config(16), [100, 20, 0])
    with raises(ConfigError, fix="omit"):
        data_of(path, dataset_config(16), valid=path, split="80,20,0")
    with raises(ConfigError, "--data-path"):
        data_of(path, dataset_config(16, blend=(["x"], None), split="1,0,0"))
    limited = {"code": {"path": "code", "weight": 1.0, "max_epochs": 1}}
    data = data_of(write_config(path, datasets=limited), dataset_config(16), [10**5, 0, 0])
    with raises(ConfigError, "max_epochs"):
        data.datasets()
    path = write_config(path, order="sequential", datasets={"code": {"path": "code"}})
    with raises(ConfigError, "num_samples", "100000"):
        data_of(path, dataset_config(16), [10**5, 0, 0]).datasets()


def test_take_over_wants_all_of_each_file_in_place(tmp_path):
    path, _ = adopted(tmp_path, "ab", order={"megatron": "cache"})
    other = random_corpus(tmp_path / "c_text", 9)
    options = {"blend": ([other], None), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
    config = dataset_config(LENGTH, **options)
    build_stock(config, [30, 0, 0])
    with pytest.raises(ConfigError, match=r"no dataset of the configuration that reads all of .*c_text.bin"):
        data_of(path, config, [30, 0, 0])
