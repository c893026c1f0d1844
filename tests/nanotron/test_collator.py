"""Micro batches for every position in a parallel layout, without processes."""

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.integrations.nanotron_lm.batches import Collator, Place, make_dataloader, micro_batch_keys
from conceptloader.integrations.nanotron_lm.data import StageDataset
from conceptloader.integrations.nanotron_lm.losses import LossPerDataset
from conceptloader.integrations.nanotron_lm.options import NanotronOptions
from conceptloader.order.partition import Partition
from conceptloader.testing import random_documents, write_dataset
from conceptloader.torch.samplers import MicroBatches

torch = pytest.importorskip("torch")


@dataclass
class Pointer:
    group_rank: int


@pytest.fixture(autouse=True)
def pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    """nanotron's TensorPointer without nanotron, whose wheel cannot be imported as it is."""
    name = "nanotron.parallel.pipeline_parallel.tensor_pointer"
    for package in ("nanotron", "nanotron.parallel", "nanotron.parallel.pipeline_parallel"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[name].TensorPointer = Pointer  # type: ignore[attr-defined]


def batch() -> dict[str, Any]:
    tokens = np.arange(2 * 9).reshape(2, 9)
    mask = np.ones((2, 8), np.float32)
    mask[0, 3] = 0
    return {
        "input_ids": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "loss_mask": mask,
        "position_ids": np.tile(np.arange(8), (2, 1)),
        "concepts_ids": np.arange(2 * 3 * 4).reshape(2, 3, 4),
        "concepts_span_index": np.zeros((2, 8), np.int32),
        "max_seqlen": 8,
    }


def collator(pp_rank: int, pp_size: int, position_ids: bool = False, consume: Any = None, **cp: int) -> Collator:
    place = Place(pp_rank=pp_rank, pp_size=pp_size, input_pp_rank=0, output_pp_rank=pp_size - 1, **cp)
    keys = micro_batch_keys(place, position_ids, consume or {})
    cut = frozenset({"input_ids", "labels", "loss_mask", "document_ids", "concepts_span_index"})
    return Collator(keys=keys, place=place, cut=cut)


@pytest.mark.parametrize("pp_size", [1, 2, 3])
@pytest.mark.parametrize("position_ids", [False, True])
def test_exactly_one_rank_holds_each_key(pp_size: int, position_ids: bool) -> None:
    """The same keys in the same order everywhere; every pointer names the rank that has the tensor."""
    consume = {"concepts_ids": "last", "concepts_span_index": str(pp_size - 1), "document_ids": "first"}
    source = {**batch(), "document_ids": batch()["input_ids"]}
    ranks = [collator(rank, pp_size, position_ids, consume) for rank in range(pp_size)]
    made = [c(None if c.owns_nothing else source) for c in ranks]
    assert [c.owns_nothing for c in ranks] == [0 < rank < pp_size - 1 for rank in range(pp_size)]
    third = "position_ids" if position_ids else "input_mask"
    for key in made[0]:
        owners = [rank for rank, micro_batch in enumerate(made) if isinstance(micro_batch[key], torch.Tensor)]
        assert len(owners) == 1
        assert {m[key].group_rank for m in made if isinstance(m[key], Pointer)} <= set(owners)
    assert all(list(m) == ["input_ids", third, "label_ids", "label_mask", *consume] for m in made)


def test_values_and_types() -> None:
    made = collator(0, 1)(batch())
    source = batch()
    assert made["input_ids"].tolist() == source["input_ids"].tolist()
    assert made["label_ids"].tolist() == source["labels"].tolist()
    assert made["label_mask"].dtype == made["input_mask"].dtype == torch.bool
    assert made["label_mask"].tolist() == (source["loss_mask"] != 0).tolist()
    assert bool(made["input_mask"].all())
    assert all(value.is_contiguous() for value in made.values())


def test_context_parallel_ranks_take_their_part_of_the_tokens() -> None:
    """Everything per token is cut, and together whole; position ids and concepts stay global."""
    consume = {"concepts_ids": "last", "concepts_span_index": "last"}
    parts = [collator(0, 1, True, consume, cp_rank=rank, cp_size=2)(batch()) for rank in range(2)]
    whole = collator(0, 1, True, consume)(batch())
    for key in ("input_ids", "label_ids", "label_mask", "concepts_span_index"):
        assert torch.equal(torch.cat([part[key] for part in parts], 1), whole[key])
    for key in ("position_ids", "concepts_ids"):
        assert all(torch.equal(part[key], whole[key]) for part in parts)


@pytest.mark.parametrize("shared_labels", [False, True])
def test_what_is_cut_follows_from_the_configuration(tmp_path: Path, shared_labels: bool) -> None:
    """Tokens and labels too where they are views of one tensor."""
    path = write_dataset(tmp_path / "ds", random_documents(40, seed=1))
    outputs = {"shared_labels": shared_labels, "document_ids": True}
    blend = cl.open_blend({"seq_len": 16, "datasets": {"a": {"path": path}}, "outputs": outputs})

    def group(rank: int = 0, size: int = 1) -> Any:
        return types.SimpleNamespace(rank=lambda: rank, size=lambda: size)

    def micro_batch(rank: int, size: int) -> dict[str, Any]:
        context = types.SimpleNamespace(dp_pg=group(), pp_pg=group(), tp_pg=group(), cp_pg=group(rank, size))
        stage = StageDataset(blend, NanotronOptions(consume={"document_ids": "first"}, loss_per_dataset=False))
        ranks = {"input_pp_rank": 0, "output_pp_rank": 0, "num_workers": 0, "dataloader_pin_memory": False}
        return next(iter(make_dataloader(stage, micro_batch_size=2, parallel_context=context, **ranks)))

    whole, parts = micro_batch(0, 1), [micro_batch(rank, 2) for rank in range(2)]
    for key in ("input_ids", "label_ids", "label_mask", "document_ids"):
        assert torch.equal(torch.cat([part[key] for part in parts], 1), whole[key]), key


@pytest.mark.parametrize(
    ("consume", "message"),
    [
        ({"concept_ids": "last"}, "found an unknown key of a batch 'concept_ids', .*; did you mean concepts_ids"),
        ({"max_seqlen": "last"}, "holds a int, nanotron moves only tensors"),
        ({"concepts_ids": "3"}, "found pipeline rank 3, this run has 0 to 0"),
    ],
)
def test_wrong_keys_are_refused(consume: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        collator(0, 1, consume=consume)(batch())


def test_micro_batches_cover_the_order() -> None:
    """From any position on, the ranks together are given every sample once and in order."""
    partition = Partition(micro_batch_size=3, dp_size=2)
    ranks = [iter(MicroBatches(partition, rank, 11)) for rank in range(2)]
    assert [sample for _ in range(5) for rank in ranks for sample in next(rank)] == list(range(11, 41))


def test_loss_per_dataset_is_weighted_by_the_mask() -> None:
    losses = LossPerDataset(["code", "web"], group=None, logs=False)
    loss = torch.tensor([[1.0, 5.0], [2.0, 4.0], [7.0, 7.0]])
    losses.observe(loss, torch.tensor([[True, False], [True, True], [False, False]]))
    losses.observe(loss[:1], torch.tensor([[True, True]]))
    assert losses.finish_step([[0, 1, 1], [0]], 4) == {"code": pytest.approx(7 / 3), "web": pytest.approx(3.0)}
    assert losses.finish_step([], 4) == {}
