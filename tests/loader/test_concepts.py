"""Concept tensors for a head: equal to plain loops over batches of a real loader, and never waiting for a device."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import conceptloader as cl
from conceptloader import concepts as heads
from conceptloader.errors import ConfigError
from tests.raises import raises

NUM = 64


@pytest.fixture(params=["padded", "ragged"])
def batches(config, request):
    config["tracks"]["concepts"]["layout"] = request.param
    found = [small(batch) for batch in cl.make_dataloader(config, micro_batch_size=5, num_samples=40)]
    assert any((batch["concepts_span_index"] < 0).any() for batch in found)
    assert max(count for batch in found for spans in lists(batch) for count in map(len, spans)) > 2
    return found


def small(batch):
    """The batch with concepts below NUM."""
    for name in {"concepts_ids", "concepts_values"} & batch.keys():
        batch[name] = torch.where(batch[name] >= 0, batch[name] % NUM, -1)
    return batch


def lists(batch):
    """Concepts of each slot of each sample."""
    samples, slots = batch["concepts_spans"].shape[:2]
    if "concepts_ids" in batch:
        counts = batch["concepts_counts"].flatten().tolist()
        found = [ids[:n].tolist() for ids, n in zip(batch["concepts_ids"].flatten(0, 1), counts, strict=True)]
    else:
        borders = itertools.pairwise(batch["concepts_offsets"].tolist())
        found = [batch["concepts_values"][a:b].tolist() for a, b in borders]
    return [found[b * slots : (b + 1) * slots] for b in range(samples)]


def rows(found):
    """The concepts of each entry; masks and places agree."""
    assert ((found.ids >= 0) == found.mask).all()
    assert (found.ids.dtype, found.mask.dtype) == (torch.int64, torch.bool)
    ids, mask = found.ids.flatten(0, -2), found.mask.flatten(0, -2)
    return [one[here].tolist() for one, here in zip(ids, mask, strict=True)]


RANK = torch.randperm(NUM + 100, generator=torch.Generator().manual_seed(1))


def kept(ids, k, rank):
    """The first k; of ranked ones, the rarest."""
    return (ids if rank is None else sorted(ids, key=lambda i: int(rank[i])))[:k]


@pytest.mark.parametrize("rank", [None, RANK], ids=["first", "rarest"])
@pytest.mark.parametrize("k", [1, 2, 16])
def test_concepts_of_spans_and_tokens(batches, k, rank):
    for batch in batches:
        if rank is not None and "concepts_offsets" in batch:
            with raises(ConfigError, fix="padded"):
                heads.span_concepts(batch, "concepts", k, rank=rank)
            continue
        wanted = lists(batch)
        spans = heads.span_concepts(batch, "concepts", k, rank=rank)
        assert spans.ids.shape == (*batch["concepts_spans"].shape[:2], k)
        assert rows(spans) == [kept(ids, k, rank) for sample in wanted for ids in sample]
        assert spans.cut.tolist() == [[max(0, len(ids) - k) for ids in sample] for sample in wanted]
        tokens = heads.token_concepts(batch, "concepts", k, rank=rank)
        index = batch["concepts_span_index"].tolist()
        of_tokens = [wanted[b][i] if i >= 0 else [] for b, row in enumerate(index) for i in row]
        assert tokens.ids.shape == (*batch["input_ids"].shape, k)
        assert rows(tokens) == [kept(ids, k, rank) for ids in of_tokens]
        assert tokens.cut.flatten().tolist() == [max(0, len(ids) - k) for ids in of_tokens]
        twice = heads.token_concepts(batch, ["concepts", "concepts"], k, rank=rank)
        assert twice.ids.equal(torch.cat([tokens.ids, tokens.ids], -1))
        assert twice.cut.equal(2 * tokens.cut)
        merged = heads.token_concepts(batch, ["concepts", "concepts"], k, merged=[0, 100], rank=rank)
        both = [(ids if rank is not None else ids[:k]) + [one + 100 for one in ids] for ids in of_tokens]
        assert rows(merged) == [kept(ids, k, rank) for ids in both]
        assert merged.cut.flatten().tolist() == [max(0, 2 * len(ids) - k) for ids in of_tokens]


def test_what_is_annotated(batches):
    seen = set()
    for batch in batches:
        wanted = lists(batch)
        found = heads.annotation_status(batch, "concepts")
        for b, i in itertools.product(*map(range, batch["input_ids"].shape)):
            slot = int(batch["concepts_span_index"][b, i])
            kind = heads.NOT_ANNOTATED if slot < 0 else heads.ANNOTATED if wanted[b][slot] else heads.NO_CONCEPT
            assert int(found[b, i]) == kind
            seen.add(kind)
        mask = heads.span_mask(batch, "concepts")
        assert mask.sum(1).tolist() == batch["concepts_num_spans"].tolist()
    assert seen == {heads.NOT_ANNOTATED, heads.NO_CONCEPT, heads.ANNOTATED}


@pytest.mark.parametrize("first", [0, 3])
def test_targets_of_spans(batches, first):
    for batch in batches:
        found = heads.span_targets(batch, "concepts", NUM - first - 2, first_id=first)
        for b, sample in enumerate(lists(batch)):
            for m, ids in enumerate(sample):
                inside = sorted({i - first for i in ids if first <= i < NUM - 2})
                assert found[b, m].nonzero().flatten().tolist() == inside
        assert set(found.unique().tolist()) <= {0.0, 1.0}


def test_no_shape_depends_on_what_was_read(batches):
    """Tensors without values: whatever would have to wait for a device to know a value raises."""
    with FakeTensorMode() as mode:
        batch = {key: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for key, v in batches[0].items()}
        spans = heads.span_concepts(batch, "concepts", 4)
        heads.token_concepts(batch, "concepts", 4)
        heads.annotation_status(batch, "concepts")
        heads.span_mask(batch, "concepts")
        heads.span_targets(batch, "concepts", NUM)
        assert spans.ids.shape[-1] == 4


def test_what_is_refused(batches):
    with raises(ConfigError, found="'topics'", expected="['concepts']"):
        heads.span_concepts(batches[0], "topics", 4)
    with raises(ConfigError, "track 'concept'", "no such track", "one of concepts"):
        heads.track(batches[0], "concept")
    with raises(ConfigError, "k", "0"):
        heads.token_concepts(batches[0], "concepts", 0)
    with raises(ConfigError, expected="at least one"):
        heads.token_concepts(batches[0], [], 4)
    with raises(ConfigError, "merged", "1 numbers", "a number for each of 2"):
        heads.token_concepts(batches[0], ["concepts", "concepts"], 2, merged=[0])


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_what_was_cut_off_is_told_apart(config, layout):
    config["tracks"]["concepts"] = {"layout": layout}
    whole = next(iter(cl.make_dataloader(config, micro_batch_size=20)))
    config["tracks"]["concepts"] |= {"max_spans": 1, "overflow": "mark"}
    batch = next(iter(cl.make_dataloader(config, micro_batch_size=20)))
    beyond = whole["concepts_span_index"] >= 1
    wanted = torch.where(beyond, heads.TRUNCATED, heads.annotation_status(whole, "concepts"))
    assert torch.equal(heads.annotation_status(batch, "concepts"), wanted.to(torch.uint8))
    assert bool(beyond.any())
    assert not heads.token_concepts(batch, "concepts", 2).mask[beyond].any()
