import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule
from tests.order import plain
from tests.raises import raises

from .test_schedule import schedules


def partitions(max_micro_batch=6, max_dp=64):
    return st.builds(
        Partition,
        micro_batch_size=st.integers(1, max_micro_batch),
        dp_size=st.integers(1, max_dp),
        scheme=st.sampled_from(["contiguous", "strided"]),
    )


@st.composite
def plans(draw, **end):
    partition = draw(partitions())
    return Plan(partition=partition, schedule=draw(schedules(multiple=partition.group)), **end)


@given(plans(), st.integers(0, 30))
def test_every_sample_of_a_step_has_one_place_and_back(plan, steps):
    step = plan.schedule.step + steps
    start, stop = plan.range_of(step)
    seen = []
    for dp_rank in range(plan.partition.dp_size):
        for m, micro_batch in enumerate(plan.micro_batches(step, dp_rank)):
            assert len(micro_batch) == plan.partition.micro_batch_size
            for slot in (0, len(micro_batch) - 1):
                assert plan.place(int(micro_batch[slot])) == (step, m, dp_rank, slot)
            seen.extend(micro_batch.tolist())
    assert sorted(seen) == list(range(start, stop))


@given(plans(), st.integers(0, 5), st.data())
def test_ranks_equal_the_reference(plan, steps, data):
    start, stop = plan.range_of(plan.schedule.step + steps)
    p = plan.partition
    dp_rank = data.draw(st.integers(0, p.dp_size - 1))
    expected = plain.rank_samples(start, stop, p.micro_batch_size, p.dp_size, dp_rank, p.scheme == "strided")
    assert [row.tolist() for row in plan.micro_batches(plan.schedule.step + steps, dp_rank)] == expected
    assert p.samples(start, stop, dp_rank).tolist() == expected


@given(plans(), st.integers(0, 5))
def test_arrays_equal_scalars(plan, steps):
    start, stop = plan.range_of(plan.schedule.step + steps)
    positions = np.arange(start, stop, dtype=np.uint64)
    places = np.stack(plan.places(positions), axis=1)
    assert places.tolist() == [list(plan.place(int(p))) for p in positions]


@given(st.integers(1, 60), st.integers(1, 6), st.booleans())
def test_strided_is_pytorchs_distributed_sampler(n, dp_size, drop_last):
    data = pytest.importorskip("torch.utils.data")
    plan = Plan(
        partition=Partition(micro_batch_size=1, dp_size=dp_size, scheme="strided"),
        schedule=BatchSchedule.constant(dp_size),
        num_samples=n,
        last_batch="drop" if drop_last else "wrap",
    )
    for rank in range(dp_size):
        theirs = data.DistributedSampler(range(n), dp_size, rank, shuffle=False, drop_last=drop_last)
        ours = [t for step in range(plan.stop_step) for row in plan.micro_batches(step, rank) for t in row.tolist()]
        assert ours == list(theirs)


@given(st.data())
def test_end_of_a_finite_run(data):
    partition = data.draw(partitions(max_dp=5))
    schedule = data.draw(schedules(multiple=partition.group))
    n = data.draw(st.integers(max(1, schedule.consumed), schedule.consumed + 600))

    def run(tail):
        plan = Plan(partition=partition, schedule=schedule, num_samples=n, last_batch=tail)
        batches = [
            (plan.micro_batches(step, rank), partition.samples(*plan.range_of(step), rank) >= n)
            for step in range(plan.schedule.step, plan.stop_step)
            for rank in range(partition.dp_size)
        ]
        with raises(ConfigError, found="ends before step"):
            plan.micro_batches(plan.stop_step, 0)
        return plan, batches

    remaining = set(range(schedule.consumed, n))
    plan, batches = run("drop")
    kept = [t for rows, _ in batches for row in rows for t in row.tolist()]
    assert sorted(kept) == list(range(schedule.consumed, schedule.consumed + len(kept)))
    assert 0 <= len(remaining) - len(kept) < schedule.batch_size(schedule.consumed + len(kept))
    dropped = np.array(sorted(remaining - set(kept)), dtype=np.uint64)
    assert all(plan.place(int(t)) is None for t in dropped)
    assert (plan.places(dropped).step == -1).all()

    _, batches = run("partial")
    assert sorted(t for rows, _ in batches for row in rows for t in row.tolist()) == sorted(remaining)

    plan, batches = run("wrap")
    rows = [row.tolist() for rows, _ in batches for row in rows]
    padding = [pad.tolist() for _, pads in batches for pad in pads]
    assert all(len(row) == partition.micro_batch_size for row in rows)
    flat = [(t, pad) for row, pads in zip(rows, padding, strict=True) for t, pad in zip(row, pads, strict=True)]
    assert sorted(t for t, pad in flat if not pad) == sorted(remaining)
    assert sorted(t for t, pad in flat if pad) == sorted(k % n for k in range(sum(pad for _, pad in flat)))
    assert all(plan.place(t) is not None for t in remaining)


def test_later_batch_sizes_are_checked_when_they_are_asked_for():
    plan = Plan(partition=Partition(micro_batch_size=2, dp_size=2), schedule=BatchSchedule(((0, 8), (16, 10))))
    assert plan.place(15) == (1, 1, 1, 1)
    refused = pytest.raises(ConfigError, match=r"global batch size: found 10, expected a multiple")
    with refused:
        plan.place(16)
    with refused:
        plan.places(np.array([0, 16], np.uint64))
    with refused:
        plan.micro_batches(2, 0)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Partition(micro_batch_size=0, dp_size=1), "micro_batch_size: found 0"),
        (lambda: Partition(micro_batch_size=1, dp_size=0), "dp_size: found 0"),
        (lambda: Partition(micro_batch_size=1, dp_size=2, scheme="random"), "scheme: found 'random'"),
        (lambda: Partition(micro_batch_size=1, dp_size=2).offsets(2), "dp_rank: found 2, expected 0 to 1"),
        (lambda: Partition(micro_batch_size=2, dp_size=2).samples(0, 6, 0), "size: found 6, expected a multiple"),
        (
            lambda: Plan(partition=Partition(micro_batch_size=2, dp_size=3), schedule=BatchSchedule.constant(8)),
            "global batch size: found 8, expected a multiple",
        ),
        (
            lambda: Plan(
                partition=Partition(micro_batch_size=1, dp_size=1),
                schedule=BatchSchedule.constant(8).at(1, 8),
                num_samples=7,
            ),
            "num_samples: found 7, expected an integer from 8",
        ),
    ],
)
def test_bad_arguments(build, text):
    with pytest.raises(ConfigError, match=text):
        build()


def test_the_specification_says_which_scheme_is_the_default() -> None:
    page = (Path(__file__).parents[2] / "docs/order.md").read_text("utf-8")
    found = re.findall(r"^ {4}(strided|contiguous): +sample (.+?) {2,}\((.*)\)$", page, re.M)
    assert [scheme for scheme, _, _ in found] == ["strided", "contiguous"]
    for scheme, formula, whose in found:
        default = {} if "unless told otherwise" in whose else {"scheme": scheme}
        for micro_batch_size, dp_size in [(1, 4), (3, 2), (4, 1)]:
            partition = Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, **default)
            sizes = {"micro_batch_size": micro_batch_size, "dp_size": dp_size, "f": 24}
            for k in range(dp_size):
                wanted = [eval(formula, {}, {**sizes, "k": k, "s": s}) for s in range(micro_batch_size)]
                assert partition.samples(24, 24 + partition.group, k).tolist() == [wanted]
