import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule
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
    places = np.stack(plan.places(np.arange(start, stop, dtype=np.uint64)), axis=1)
    assert places.tolist() == [list(plan.place(position)) for position in range(start, stop)]


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


def test_the_specification_says_which_scheme_is_the_default():
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


def test_what_a_run_leaves_out_has_no_place():
    partition = Partition(micro_batch_size=2, dp_size=2)
    plan = Plan(partition=partition, schedule=BatchSchedule.constant(8), num_samples=13)
    assert plan.place(12) is None
    assert plan.places(np.array([7, 12], np.uint64)).step.tolist() == [0, -1]
    with raises(ConfigError, found="ends before step"):
        plan.micro_batches(1, 0)
