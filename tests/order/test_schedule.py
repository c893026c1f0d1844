import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import ConfigError
from conceptloader.order.schedule import BatchSchedule
from tests.order import plain
from tests.raises import cells


@st.composite
def schedules(draw, multiple=1):
    """Any rule whose sizes are multiples of `multiple`, started at any position."""
    starts = sorted(draw(st.sets(st.integers(1, 3000), max_size=6)))
    sizes = [multiple * draw(st.integers(1, 40)) for _ in range(len(starts) + 1)]
    rule = tuple(zip([0, *starts], sizes, strict=True))
    return BatchSchedule(rule).at(draw(st.integers(0, 50)), draw(st.integers(0, 4000)))


def walk(schedule, steps):
    """Reference: take the batches one after the other."""
    batches = plain.steps(schedule.rule, schedule.consumed)
    return [(step, *next(batches)) for step in range(schedule.step, schedule.step + steps)]


@given(schedules(), st.lists(st.integers(0, 9000), max_size=30))
def test_equals_taking_the_batches_one_by_one(schedule, offsets):
    for step, start, stop in walk(schedule, 60):
        assert schedule.range_of(step) == (start, stop)
        assert schedule.consumed_at(step) == start
        assert schedule.batch_size(start) == stop - start
        assert schedule.step_of(start) == schedule.step_of(stop - 1) == step
    samples = np.array([schedule.consumed + k for k in offsets], dtype=np.uint64)
    steps, firsts, sizes = schedule.steps_of(samples)
    assert steps.tolist() == [schedule.step_of(int(t)) for t in samples]
    assert list(zip(firsts, firsts + sizes, strict=True)) == [schedule.range_of(int(s)) for s in steps]


@given(st.integers(1, 64), st.integers(1, 16), st.integers(0, 12), st.integers(1, 5000), st.sampled_from([1, 6]))
def test_ramp_up_equals_megatrons_calculator(start, increment, increments, ramp_samples, multiple):
    """Also rounded down, so that micro batches of all ranks divide it."""
    module = pytest.importorskip("megatron.core.num_microbatches_calculator")
    start, final = max(start, multiple), max(start, multiple) + increments * increment
    ours = BatchSchedule.ramp_up(start, increment, ramp_samples, final).rounded_down(multiple)
    if increments == 0:  # theirs divides by zero
        assert ours == BatchSchedule.constant(final // multiple * multiple)
        return
    sizes = {1: (1, 1, False), 6: (2, 3, True)}[multiple]  # of micro batches, ranks
    theirs = module.RampupBatchsizeNumMicroBatchesCalculator(final, *sizes, 1, start, increment, ramp_samples)
    consumed = 0
    for step in range(300):
        theirs.update(consumed, consistency_check=True)
        size = theirs.get_current_running_global_batch_size()
        assert ours.range_of(step) == (consumed, consumed + size)
        consumed += size


BAD = """
BatchSchedule(()) | expected the first at 0
BatchSchedule(((1, 8),)) | expected the first at 0
BatchSchedule(((0, 8), (5, 9), (5, 10))) | each later one after
BatchSchedule.constant(0) | batch size: found 0
BatchSchedule.constant(8.0) | batch size: found 8.0
BatchSchedule.ramp_up(8, 3, 100, 16) | whole number of increments
BatchSchedule.ramp_up(8, 8, 0, 16) | ramp-up: samples: found 0
BatchSchedule.constant(4).rounded_down(8) | at least
BatchSchedule.constant(8).at(3, 24).range_of(2) | step 2: found a step before .* expected step 3
BatchSchedule.constant(8).at(3, 24).step_of(23) | sample 23: .* expected sample 24
BatchSchedule.constant(8).at(3, 24).steps_of(np.array([99, 23], np.uint64)) | sample 23
BatchSchedule([[0, 8, 9]]) | expected
BatchSchedule(8) | expected
"""


@pytest.mark.parametrize(("expression", "text"), cells(BAD))
def test_bad_arguments(expression, text):
    with pytest.raises(ConfigError, match=text):
        eval(expression)
