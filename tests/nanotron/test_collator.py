"""Micro batches for every position in a parallel layout, without processes."""

import sys
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.integrations.nanotron_lm.batches import Collator, make_dataloader, micro_batch_keys
from conceptloader.integrations.nanotron_lm.data import open_stage
from conceptloader.integrations.nanotron_lm.options import NanotronOptions
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.columns import add_column, random_items
from tests.nanotron.support import context
from tests.raises import cells, raises


@dataclass
class Pointer:
    group_rank: int


@pytest.fixture(autouse=True)
def pointers(monkeypatch):
    """nanotron's TensorPointer without nanotron, whose wheel cannot be imported as it is."""
    name = "nanotron.parallel.pipeline_parallel.tensor_pointer"
    for package in ("nanotron", "nanotron.parallel", "nanotron.parallel.pipeline_parallel", name):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    sys.modules[name].TensorPointer = Pointer


def batch():
    names = "input_ids", "labels", "position_ids", "document_ids", "concepts_span_index"
    arrays = {name: np.arange(16).reshape(2, 8) + k for k, name in enumerate(names)}
    mask, ids = np.arange(16, dtype=np.float32).reshape(2, 8) % 5, np.arange(24).reshape(2, 3, 4)
    return {**arrays, "loss_mask": mask, "concepts_ids": ids, "max_seqlen": 8}


def collator(rank, stages, position_ids, model_inputs):
    return Collator(keys=micro_batch_keys(0, stages - 1, stages, position_ids, model_inputs), pp_rank=rank)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("position_ids", [False, True])
def test_exactly_one_rank_holds_each_key(stages, position_ids):
    """The same keys in the same order everywhere; every pointer names the rank that has the tensor; values."""
    model_inputs = {"concepts_ids": "last", "concepts_span_index": str(stages - 1), "document_ids": "first"}
    ranks = [collator(rank, stages, position_ids, model_inputs) for rank in range(stages)]
    assert [c.owns_nothing for c in ranks] == [0 < rank < stages - 1 for rank in range(stages)]
    made = [c(None if c.owns_nothing else batch()) for c in ranks]
    third = "position_ids" if position_ids else "input_mask"
    assert all(list(m) == ["input_ids", third, "label_ids", "label_mask", *model_inputs] for m in made)
    wanted = {**batch(), "label_ids": batch()["labels"], "label_mask": batch()["loss_mask"] != 0}
    wanted["input_mask"] = np.ones((2, 8), bool)
    for key in made[0]:
        (owner,) = (rank for rank, micro_batch in enumerate(made) if isinstance(micro_batch[key], torch.Tensor))
        assert owner == (stages - 1 if key.startswith(("label", "concepts")) else 0)
        assert {m[key].group_rank for m in made if isinstance(m[key], Pointer)} <= {owner}
        value = made[owner][key]
        assert value.is_contiguous()
        assert value.tolist() == wanted[key].tolist()
        assert (value.dtype == torch.bool) == key.endswith("mask")


@pytest.mark.parametrize("shared_labels", [False, True])
def test_context_parallel_ranks_take_their_part_of_the_tokens(tmp_path, shared_labels):
    """Everything per token is cut, and together whole, views as well; position ids and concepts are not."""
    path = write_dataset(tmp_path / "ds", random_documents(40, seed=1))
    rng, tokens = np.random.default_rng(1), cl.open_dataset(path).num_tokens
    for name, (dtype, shape) in {"teacher": ("u4", (3,)), "halves": ("bf16", ())}.items():
        add_column(Path(path), name, random_items(rng, tokens, dtype, shape), dtype)
    columns = {"teacher": "labels", "halves": {"at": "inputs", "dtype": "stored"}}
    outputs = {"shared_labels": shared_labels, "document_ids": True, "columns": columns}
    config = {"datasets": {"a": {"path": path}}, "outputs": outputs, "tracks": {"concepts": {"layout": "padded"}}}
    model_inputs = dict.fromkeys(("document_ids", "concepts_ids", "concepts_span_index", *columns), "first")

    def micro_batch(rank, size, seq_len=16):
        place, options = context(cp=(rank, size)), NanotronOptions(model_inputs=model_inputs)
        blend = cl.open_blend({**config, "seq_len": seq_len})
        stage = open_stage(blend, options, place, step=0, micro_batch_size=2, global_batch_size=2)
        ranks = {"input_pp_rank": 0, "output_pp_rank": 0, "num_workers": 0, "dataloader_pin_memory": False}
        return next(iter(make_dataloader(stage, parallel_context=place, use_position_ids=True, **ranks)))

    whole, parts = micro_batch(0, 1), [micro_batch(rank, 2) for rank in range(2)]
    for key in ("input_ids", "label_ids", "label_mask", "document_ids", "concepts_span_index", *columns):
        assert torch.equal(torch.cat([part[key] for part in parts], 1), whole[key]), key
    assert (parts[0]["teacher"].shape, parts[0]["halves"].dtype) == ((2, 8, 3), torch.bfloat16)
    for key in ("position_ids", "concepts_ids"):
        assert all(torch.equal(part[key], whole[key]) for part in parts)
    with raises(ConfigError, "seq_len", "18", "a multiple of 2 * context_parallel_size = 4"):
        micro_batch(0, 2, seq_len=18)


REFUSED = """
{concept_ids: last} | nanotron.model_inputs.concept_ids | unknown key of a batch 'concept_ids'
{max_seqlen: last} | nanotron.model_inputs.max_seqlen | a int
{concepts_ids: '3'} | nanotron.model_inputs | pipeline rank 3
"""


@pytest.mark.parametrize(("model_inputs", "path", "found"), cells(REFUSED))
def test_wrong_keys_are_refused(model_inputs, path, found):
    model_inputs = yaml.safe_load(model_inputs)
    with raises(ConfigError, path, found):
        collator(0, 1, False, model_inputs)(batch())
