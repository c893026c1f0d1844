"""16,384 ranks, 1,000 steps, 1,024 datasets of 1e15 tokens, 100 phases: who trains what, without the machines."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule

RANKS, STEPS, MICRO, GROUP = 16_384, 1_000, 2, 2 * 16_384
# 1, 2 and 3 micro batches a step: 400 steps, 350 steps and the rest.
SCHEDULE = BatchSchedule(((0, GROUP), (400 * GROUP, 2 * GROUP), (1100 * GROUP, 3 * GROUP)), step=7, consumed=0)


def make_plan(scheme, num_samples=None, last_batch="drop"):
    partition = Partition(micro_batch_size=MICRO, dp_size=RANKS, scheme=scheme)
    return Plan(partition=partition, schedule=SCHEDULE, num_samples=num_samples, last_batch=last_batch)


@pytest.mark.parametrize("scheme", ["contiguous", "strided"])
def test_every_sample_once_by_sampling(scheme):
    """Whole steps, from the samplers of all ranks; and samples drawn at random, asked of the rank that has them."""
    plan = make_plan(scheme)
    for step in (7, 6 + STEPS):
        start, stop = plan.range_of(step)
        taken = np.concatenate([np.concatenate(plan.micro_batches(step, rank)) for rank in range(RANKS)])
        assert np.array_equal(np.sort(taken), np.arange(start, stop))
    total = plan.range_of(6 + STEPS)[1]
    positions = np.random.default_rng(1).integers(0, total, 2000).astype(np.uint64)
    found = plan.places(positions)
    for position, step, micro_batch, rank, slot in zip(positions.tolist(), *map(np.ndarray.tolist, found), strict=True):
        assert plan.micro_batches(step, rank)[micro_batch][slot] == position
        assert plan.place(position) == (step, micro_batch, rank, slot)


@pytest.mark.parametrize("tail", ["drop", "partial", "wrap"])
def test_the_last_step_of_a_finite_run(tail):
    end = 5 * GROUP + 12_345
    plan = make_plan("strided", num_samples=end, last_batch=tail)
    assert plan.stop_step == 7 + 5 + (tail != "drop")
    if tail != "drop":
        last = np.concatenate([np.concatenate(plan.micro_batches(12, rank)) for rank in range(RANKS)])
        rest = np.arange(5 * GROUP, end)
        wanted = rest if tail == "partial" else np.concatenate([np.arange(GROUP - 12_345), rest])
        assert np.array_equal(np.sort(last), wanted)


def test_the_blend_of_1024_datasets_in_100_phases():
    """The samples of whole steps are draws that nobody else has: of each dataset those from its count before the step
    up to its count behind it; and every sample is found again from its window."""
    rng = np.random.default_rng(2)
    names = [f"d{k:04d}" for k in range(1024)]
    sizes = rng.integers(1, 2 * 10**15 // 4096 // 1024, 1024).tolist()  # windows of 4,096 tokens: 1e15 tokens in all
    total = 2050 * GROUP
    segments = []
    for k in range(100):
        count = int(rng.integers(1, 60)) if k else 1024
        chosen = sorted(rng.choice(1024, count, replace=False).tolist())
        weights = {names[c]: int(w) for c, w in zip(chosen, rng.integers(1, 1000, len(chosen)), strict=True)}
        segments.append(cl.Segment(at=k * total // 100, weights=weights))
    blend = cl.Mixture(sizes, names=names, segments=segments)
    plan = make_plan("contiguous")
    for step in (7, 300, 500, 6 + STEPS):
        start, stop = plan.range_of(step)
        datasets, draws = blend.locate_many(np.arange(start, stop, dtype=np.uint64))
        before, behind = np.array(blend.counts(start)), np.array(blend.counts(stop))
        assert behind.sum() - before.sum() == stop - start
        assert np.array_equal(np.bincount(datasets, minlength=1024), behind - before)
        order = np.lexsort((draws, datasets))
        wanted = np.concatenate([np.arange(a, b) for a, b in zip(before, behind, strict=True)])
        assert np.array_equal(draws[order], wanted)
    for position in rng.integers(0, total, 50).tolist():
        dataset, epoch, window = blend.sample(position)
        assert 0 <= window < sizes[dataset]
        assert blend.index_of_window(dataset, epoch, window) == position
