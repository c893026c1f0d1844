"""Trainers that are not there: their contracts, with stand-ins for the classes that our adapters derive from."""

import dataclasses
import importlib
import itertools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import conceptloader as cl
from conceptloader.errors import ConfigError, MissingPackageError, ResumeError
from tests.corpora.for_megatron import write_config, write_datasets
from tests.trainers.matrix import configs


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return configs(tmp_path_factory.mktemp("trainers") / "data")


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, adapter: str, **names: Any) -> Any:
    """The adapter, imported over a module that has only these names."""
    parts = module.split(".")
    for k in range(1, len(parts) + 1):
        name = ".".join(parts[:k])
        made = types.ModuleType(name)
        made.__path__ = []
        made.__dict__.update(names if k == len(parts) else {})
        monkeypatch.setitem(sys.modules, name, made)
    for name in [name for name in sys.modules if f".{adapter}" in name]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(f"conceptloader.integrations.{adapter}.data")


class TitanBase:
    """components/data/loader.py: BaseDataLoader."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        pass


@pytest.fixture
def titan(monkeypatch: pytest.MonkeyPatch, paths: tuple[str, str]) -> Any:
    module = stand_in(monkeypatch, "torchtitan.components.data.loader", "torchtitan_lm", BaseDataLoader=TitanBase)

    def make(path: str = paths[0], rank: int = 0, ranks: int = 2, rows: int = 3, **options: Any) -> Any:
        config = module.ConceptDataLoader.Config(config=path, **{"tensors": ("sample_index",), **options})
        return module.ConceptDataLoader(
            config, dp_world_size=ranks, dp_rank=rank, tokenizer=None, max_context_length=16,
            num_tokens_per_batch=rows * 16,
        )  # fmt: skip

    return make


def titan_samples(loader: Any, count: int) -> list[list[int]]:
    return [inputs["sample_index"].tolist() for inputs, _ in itertools.islice(loader, count)]


def test_torchtitan_states_are_equal_on_all_ranks_and_go_on_on_others(titan: Any) -> None:
    loaders = [titan(rank=rank) for rank in range(2)]
    assert [titan_samples(loader, 2) for loader in loaders] == [[[0, 2, 4], [6, 8, 10]], [[1, 3, 5], [7, 9, 11]]]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    assert [type(value) for value in states[0].values()] == [str], "one leaf: DCP loads leaf by leaf"
    one = titan(ranks=1, rows=6)
    one.load_state_dict({})
    one.load_state_dict(states[1])
    assert titan_samples(one, 1) == [[12, 13, 14, 15, 16, 17]]


def test_torchtitan_batches_are_flat(titan: Any) -> None:
    inputs, labels = next(iter(titan(tensors=("concepts_span_index", "concepts_ids"))))
    assert inputs["input"].shape == inputs["positions"].shape == inputs["concepts_span_index"].shape == (48,)
    assert inputs["positions"].view(3, 16).tolist() == [list(range(16))] * 3
    assert inputs["concepts_ids"].shape[0] == 3
    assert torch.equal(labels.view(3, 16)[:, :-1], inputs["input"].view(3, 16)[:, 1:])


def test_torchtitan_validates_every_window_once_on_any_number_of_ranks(titan: Any, paths: tuple[str, str]) -> None:
    """The last microbatch is full on all ranks, and what fills it has no loss."""
    size = len(cl.SampleDataset(paths[1]))
    for ranks, rows, batch in [(1, 1, 0), (2, 4, 0), (3, 5, 0), (2, 2, 16)]:
        trained: list[int] = []
        batches = []
        for rank in range(ranks):
            passes = [
                list(titan(paths[1], rank=rank, ranks=ranks, rows=rows, repeat=False, global_batch_size=batch))
                for _ in range(2)
            ]
            assert len(passes[0]) == len(passes[1])
            batches.append(len(passes[0]))
            for inputs, labels in passes[0]:
                assert len(labels) == rows * 16
                kept = (labels.view(rows, 16) != -100).any(1)
                trained += inputs["sample_index"][kept].tolist()
        assert len(set(batches)) == 1
        assert sorted(trained) == list(range(size))
    again = titan_samples(titan(paths[1], rank=0, ranks=1, rows=1), size + 3)
    assert again[size:] == again[:3], "a validator with a number of steps repeats"


def test_torchtitan_refusals(titan: Any, paths: tuple[str, str], tmp_path: Path) -> None:
    def written(**changes: Any) -> str:
        content = yaml.safe_load(Path(paths[0]).read_text())
        content["datasets"]["data"]["path"] = str(Path(paths[0]).parent / "data")
        path = tmp_path / f"{'-'.join(changes)}.yaml"
        path.write_text(yaml.safe_dump({**content, **changes}))
        return str(path)

    for options, message in [
        ({"repeat": False}, "shuffled data have no end"),
        ({"tensors": ("concept_ids",)}, "no tensor 'concept_ids' in a batch; did you mean concepts_ids"),
        ({"path": ""}, "dataloader.config: missing"),
        ({"path": written(seq_len=32)}, "seq_len: found 32, but the framework's is 16"),
        ({"path": written(outputs={"position_ids": "off"})}, "torchtitan needs positions"),
    ]:
        with pytest.raises(ConfigError, match=message):
            next(iter(titan(**options)))
    state = titan().state_dict()
    loader = titan()
    titan_samples(loader, 2)
    with pytest.raises(ResumeError, match="seed"):
        titan(path=written(seed=9)).load_state_dict(loader.state_dict())
    titan(path=written(seed=9)).load_state_dict(state)  # nothing is behind
    titan(path=written(seed=9), allow_changed=("seed",)).load_state_dict(loader.state_dict())


def test_torchtitan_weights_need_a_model_that_gets_them(titan: Any, tmp_path: Path) -> None:
    path = str(write_config(write_datasets(tmp_path) / "run.yaml", outputs={"loss_weight": "weight"}))
    with pytest.raises(ConfigError, match=r"outputs\.loss_weight: found weights, .* dataloader\.tensors does not name"):
        titan(path=path, tensors=())
    inputs, labels = next(iter(titan(path=path, tensors=("loss_weight",))))
    assert torch.equal(inputs["loss_weight"], (labels % 5).float())


def test_torchtitan_of_another_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingPackageError, match="needs the main branch of 2026-08-20"):
        stand_in(monkeypatch, "torchtitan.components.data.loader", "torchtitan_lm")


def test_torchtitan_logs_its_starts(titan: Any, tmp_path: Path) -> None:
    loader = titan(run_log=str(tmp_path), global_batch_size=12)
    titan_samples(loader, 4)
    resumed = titan(run_log=str(tmp_path), global_batch_size=12, ranks=1, rows=4)
    resumed.load_state_dict(loader.state_dict())
    titan_samples(resumed, 1)
    assert [(start.step, start.consumed) for start in cl.RunLog(tmp_path).starts] == [(0, 0), (2, 24)]


@dataclasses.dataclass
class BridgeBase:
    """data/base.py: DatasetProvider."""

    dataloader_type: str | None = None
    num_workers: int = 2


@dataclasses.dataclass
class Context:
    train_samples: int
    valid_samples: int
    test_samples: int = 0


def single(dataset: Any, consumed: int, rank: int, ranks: int, micro: int) -> Iterator[Any]:
    """Bridge's loader of type "single": consecutive samples, dealt out in runs."""
    runs = range(consumed + rank * micro, len(dataset) - micro + 1, micro * ranks)
    sampler = [list(range(first, first + micro)) for first in runs]
    return iter(DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate_fn))  # type: ignore[arg-type]


def test_bridge(monkeypatch: pytest.MonkeyPatch, paths: tuple[str, str], tmp_path: Path) -> None:
    module = stand_in(monkeypatch, "megatron.bridge.data.base", "bridge_lm", DatasetProvider=BridgeBase)

    def provider(**options: Any) -> Any:
        return module.ConceptProvider(
            **{"config": paths[0], "valid": paths[1], "seq_length": 16, "state": str(tmp_path / "run"), **options}
        )

    train, valid, test = provider().build_datasets(Context(train_samples=240, valid_samples=20))
    assert (len(train), len(valid), test) == (240, 20, None)
    batch = next(single(train, 0, rank=1, ranks=2, micro=3))
    assert {"tokens", "labels", "loss_mask", "position_ids"} <= set(batch)
    assert batch["tokens"].shape == (3, 16)
    seen = [
        i
        for rank in range(2)
        for _, b in zip(range(3), single(train, 0, rank, 2, 6), strict=False)
        for i in b["sample_index"].tolist()
    ]
    resumed, *_ = provider().build_datasets(Context(train_samples=240, valid_samples=20))
    seen += [
        i for _, b in zip(range(2), single(resumed, 36, 0, 1, 12), strict=False) for i in b["sample_index"].tolist()
    ]
    assert sorted(seen) == list(range(60))

    for options, error, message in [
        ({"dataloader_type": "external"}, ConfigError, "external starts at the first one after each restart"),
        ({"seq_length": 0}, ConfigError, "config, seq_length and state are needed"),
        ({"seq_length": 32}, ConfigError, "seq_len: found 16, but the framework's is 32"),
        ({"config": paths[1]}, ResumeError, "order: saved shuffled, now sequential"),
    ]:
        with pytest.raises(error, match=message):
            provider(**options).build_datasets(Context(train_samples=20, valid_samples=20))
    (tmp_path / "run" / module.FILE_NAME).write_text("{")
    with pytest.raises(ResumeError, match=f"{module.FILE_NAME}: damaged .*, expected what the run's first start wrote"):
        provider().build_datasets(Context(train_samples=20, valid_samples=20))


AUTOMODEL = """
dataset:
  _target_: conceptloader.SampleDataset
  config: CONFIG
  num_samples: 48
dataloader:
  _target_: torchdata.stateful_dataloader.StatefulDataLoader
  collate_fn: conceptloader.collate_fn
  shuffle: false
"""


def resolved(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_automodel_by_target(paths: tuple[str, str]) -> None:
    """What its build_dataloader does: the dataset by its target, a distributed sampler, the loader by its target."""

    def build(rank: int) -> Any:
        content = yaml.safe_load(AUTOMODEL.replace("CONFIG", paths[0]))
        target = resolved(content["dataset"].pop("_target_"))
        dataset = target(**content["dataset"])
        options = content["dataloader"]
        sampler = StatefulDistributedSampler(
            dataset, num_replicas=2, rank=rank, shuffle=options.pop("shuffle"), seed=1, drop_last=True
        )
        make, collate = resolved(options.pop("_target_")), resolved(options.pop("collate_fn"))
        return make(dataset=dataset, sampler=sampler, batch_size=3, collate_fn=collate)

    seen = []
    for rank in range(2):
        loader = build(rank)
        seen += [int(i) for batch in itertools.islice(loader, 4) for i in batch["sample_index"]]
        resumed = build(rank)
        resumed.load_state_dict(loader.state_dict())
        seen += [int(i) for batch in resumed for i in batch["sample_index"]]
    assert sorted(seen) == list(range(48))
