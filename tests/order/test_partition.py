import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule
from tests.raises import cells, raises

from .test_schedule import schedules


@st.composite
def plans(draw):
    scheme = draw(st.sampled_from(["contiguous", "strided"]))
    partition = Partition(micro_batch_size=draw(st.integers(1, 6)), dp_size=draw(st.integers(1, 64)), scheme=scheme)
    return Plan(partition=partition, schedule=draw(schedules(multiple=partition.group)))


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


LATER = Plan(partition=Partition(micro_batch_size=2, dp_size=2), schedule=BatchSchedule(((0, 8), (16, 10))))
BAD = """
Partition(micro_batch_size=0, dp_size=1) | micro_batch_size: found 0
Partition(micro_batch_size=1, dp_size=0) | dp_size: found 0
Partition(micro_batch_size=1, dp_size=2, scheme="random") | scheme: found 'random'
Partition(micro_batch_size=1, dp_size=2).offsets(2) | dp_rank: found 2, expected 0 to 1
Partition(micro_batch_size=2, dp_size=2).samples(0, 6, 0) | size: found 6, expected a multiple
Plan(partition=LATER.partition, schedule=BatchSchedule.constant(6)) | global batch size: found 6, expected a multiple
Plan(partition=LATER.partition, schedule=LATER.schedule.at(1, 8), num_samples=7) | num_samples: found 7, expected an integer from 8
LATER.place(16) | global batch size: found 10, expected a multiple
LATER.places(np.array([0, 16], np.uint64)) | global batch size: found 10, expected a multiple
LATER.micro_batches(2, 0) | global batch size: found 10, expected a multiple
"""  # noqa: E501


@pytest.mark.parametrize(("expression", "text"), cells(BAD))
def test_bad_arguments(expression, text):
    with pytest.raises(ConfigError, match=text):
        eval(expression)


def test_ranks_take_turns_unless_told_otherwise():
    """As docs/order.md says."""
    assert Partition(micro_batch_size=2, dp_size=2).samples(0, 4, 1).tolist() == [[1, 3]]


def test_what_a_run_leaves_out_has_no_place():
    partition = Partition(micro_batch_size=2, dp_size=2)
    plan = Plan(partition=partition, schedule=BatchSchedule.constant(8), num_samples=13)
    assert plan.place(12) is None
    assert plan.places(np.array([7, 12], np.uint64)).step.tolist() == [0, -1]
    with raises(ConfigError, found="ends before step"):
        plan.micro_batches(1, 0)
