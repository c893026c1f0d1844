"""Concept tensors between the data iterator and the model: kept aside, broadcast, cut; samplers; patches."""

import dataclasses
import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core import parallel_state
from megatron.core.utils import get_batch_on_this_cp_rank

from conceptloader.config import Outputs
from conceptloader.errors import ConfigError
from conceptloader.integrations.megatron_lm import launch
from conceptloader.integrations.megatron_lm.batches import SplitIterator, context_slice, merge_samples
from conceptloader.integrations.megatron_lm.dataset import fields_of
from conceptloader.integrations.megatron_lm.options import Stage
from conceptloader.loader.batch.layout import BatchLayout, TrackLayout
from tests.raises import raises

LENGTH, SPANS, CONCEPTS = 8, 3, 2
TRACK = TrackLayout(name="topic", ragged=False, max_spans=SPANS, max_concepts=CONCEPTS)
LAYOUT = BatchLayout(seq_len=LENGTH, outputs=Outputs(document_ids=True), tracks=(TRACK,))
FIELDS = fields_of(LAYOUT)


def random_batch(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {f.name: torch.randint(0, 100, (size, *f.shape), generator=generator).to(f.dtype) for f in FIELDS}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_context_slices_are_megatrons(size, monkeypatch):
    tokens = torch.arange(2 * 16).view(2, 16)
    mask = torch.arange(2 * 16 * 16).view(2, 1, 16, 16)
    newer = {"is_hybrid_cp", "is_dynamic_cp"} & inspect.signature(get_batch_on_this_cp_rank).parameters.keys()
    more = {"cu_seqlens": None} if newer else {}
    for rank in range(size):
        monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: size)
        monkeypatch.setattr(parallel_state, "get_context_parallel_rank", lambda rank=rank: rank)
        monkeypatch.setattr(parallel_state, "get_context_parallel_group", lambda *_, **__: None)  # newer ones ask torch
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: size)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda *_, rank=rank: rank)
        given = {"tokens": tokens, "attention_mask": mask, **more}
        theirs = get_batch_on_this_cp_rank(given, **dict.fromkeys(newer, False))
        assert torch.equal(context_slice(tokens, 1, rank, size), theirs["tokens"])
        assert torch.equal(context_slice(mask, 2, rank, size), theirs["attention_mask"])
    with raises(ConfigError, expected="multiple of 2"):
        context_slice(tokens[:, :15], 1, 0, 2)


def micro_batches(tokens=True):
    for k in range(100):
        stock = {"tokens": torch.full((1, 4), k), "labels": torch.full((1, 4), k + 1)} if tokens else {}
        yield {**stock, "topic_ids": torch.full((1, 2), k), "dataset_id": torch.tensor([k])}


@pytest.mark.usefixtures("one_process")
@given(asks=st.lists(st.booleans(), max_size=12))
def test_concepts_belong_to_the_micro_batch(asks):
    """Also after micro batches for which nobody asked: evaluation, or iterations that are passed over."""
    iterator = SplitIterator(micro_batches())
    for k, asked in enumerate(asks):
        batch = next(iterator)
        assert set(batch) == {"tokens", "labels", "dataset_id"}
        assert int(batch["tokens"][0, 0]) == k
        if asked:
            assert int(iterator.take_concepts()["topic_ids"][0, 0]) == k
    if asks and not asks[-1]:
        iterator.take_concepts()
    with raises(ConfigError, expected="after get_batch"):
        iterator.take_concepts()


@pytest.mark.usefixtures("one_process")
def test_weights_that_nobody_takes_are_heard(caplog):
    """Megatron's own forward step trains as if all of them were 1; an evaluation trains nothing."""
    iterator = SplitIterator({**batch, "loss_weight": torch.ones(2, 4)} for batch in micro_batches())
    with torch.no_grad():
        for _ in range(3):
            next(iterator)
    iterator.take_concepts()
    for _ in range(2):
        next(iterator)
        iterator.take_concepts()
    next(iterator)

    def said():  # Megatron logs, too
        return [record.getMessage().split(":")[0] for record in caplog.records if "conceptloader" in record.name]

    assert not said()
    for _ in range(3):
        next(iterator)
    assert said() == ["outputs.loss_weight"]


@pytest.mark.usefixtures("one_process")
def test_a_stage_without_tokens_reads_only_concepts():
    iterator = SplitIterator(micro_batches(tokens=False))
    assert [int(iterator.take_concepts()["topic_ids"][0, 0]) for _ in range(3)] == [0, 1, 2]
    assert next(iterator) == {}  # Megatron passes over an iteration (--iterations-to-skip)
    assert int(iterator.take_concepts()["topic_ids"][0, 0]) == 4


@pytest.mark.usefixtures("one_process")
def test_replays_get_the_same_concepts():
    from megatron.core.rerun_state_machine import RerunMode, destroy_rerun_state_machine, initialize_rerun_state_machine

    destroy_rerun_state_machine()
    initialize_rerun_state_machine(mode=RerunMode.VALIDATE_RESULTS)
    try:
        iterator = SplitIterator(micro_batches())

        def step():
            taken = []
            for _ in range(3):
                batch = next(iterator)
                batch["labels"] = None  # as Megatron does on the first stage
                taken.append((int(batch["tokens"][0, 0]), int(iterator.take_concepts()["topic_ids"][0, 0])))
            return taken

        first = step()
        iterator.rewind()
        assert step() == first == [(0, 0), (1, 1), (2, 2)]
        saved = iterator.state_dict()
        iterator.advance()
        assert step() == [(3, 3), (4, 4), (5, 5)]
        restarted = SplitIterator(micro_batches())
        restarted.load_state_dict(saved)
        restarted.rewind()
        iterator = restarted
        assert step() == first
    finally:
        destroy_rerun_state_machine()


@pytest.mark.parametrize(
    ("name", "ranks"), [("first", [0]), ("last", [5]), ("all", range(6)), ("none", []), ("3", [3])]
)
def test_stages(name, ranks, monkeypatch):
    """Three pipeline ranks with two virtual stages each."""
    monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_world_size", lambda: 3)
    monkeypatch.setattr(parallel_state, "get_virtual_pipeline_model_parallel_world_size", lambda: 2)
    found = []
    for rank in range(3):
        monkeypatch.setattr(parallel_state, "get_pipeline_model_parallel_rank", lambda rank=rank: rank)
        found += [v * 3 + rank for v in range(2) if Stage(name).here(v)]
    assert sorted(found) == list(ranks)
    with raises(ConfigError, expected="6 stages"):
        Stage("6").here(0)
    with raises(ConfigError, "--conceptloader-concept-stage"):
        Stage("middle")


def test_patches_find_their_lines():
    build, *_ = launch.patches(launch.Run({}))
    assert launch.MEGATRON.original(build)[1].__name__ == "build"
    with raises(ConfigError, found="`return None` was not found in BlendedMegatronDatasetBuilder.build"):
        launch.MEGATRON.apply([dataclasses.replace(build, line="return None")])


def test_merged_samples_point_to_the_same_spans():
    batch = random_batch(3)
    batch["topic_span_index"] = torch.randint(-1, SPANS, (3, LENGTH)).int()
    merged = merge_samples(dict(batch), FIELDS, LENGTH)
    assert merged["topic_span_index"].shape == (1, 3 * LENGTH)
    assert merged["topic_ids"].shape == (1, 3 * SPANS, CONCEPTS)
    for b in range(3):
        for j in range(LENGTH):
            k, flat = int(batch["topic_span_index"][b, j]), int(merged["topic_span_index"][0, b * LENGTH + j])
            assert (k < 0) == (flat < 0)
            if k >= 0:
                assert torch.equal(merged["topic_ids"][0, flat], batch["topic_ids"][b, k])
                assert torch.equal(merged["topic_spans"][0, flat], batch["topic_spans"][b, k] + b * LENGTH)
