"""Dealing the samples of a step: a permutation, equal on all ranks, close to the best there is."""

from dataclasses import replace
from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.order.balance import Balance, deal, imbalance
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule


@given(st.data())
def test_every_sample_of_a_step_is_dealt_once_and_found_where_it_is(data):
    micro, ranks, groups = (data.draw(st.integers(1, 4)) for _ in range(3))
    scheme = data.draw(st.sampled_from(["strided", "contiguous"]))
    size, steps = micro * ranks * groups, 3
    partial = data.draw(st.integers(0, size - 1))
    every = size * steps + size
    most = data.draw(st.sampled_from([0, 2, 50]))  # equal ones are dealt too
    costs = np.array(data.draw(st.lists(st.integers(0, most), min_size=every, max_size=every)))
    plan = Plan(
        partition=Partition(micro_batch_size=micro, dp_size=ranks, scheme=scheme),
        schedule=BatchSchedule.constant(size),
        num_samples=size * steps + partial or None,
        last_batch="partial",
        balance=Balance(lambda samples: costs[samples.astype(int)]),
    )
    for step in range(steps + (partial > 0)):
        start, stop = step * size, min((step + 1) * size, size * steps + partial)
        found = [plan.micro_batches(step, rank) for rank in range(ranks)]
        samples = np.concatenate([np.concatenate(mine) for mine in found]).astype(int)
        assert sorted(samples.tolist()) == list(range(start, stop))
        if stop - start < size:  # which is not dealt
            plain = [replace(plan, balance=None).micro_batches(step, rank) for rank in range(ranks)]
            assert [[*map(list, mine)] for mine in found] == [[*map(list, mine)] for mine in plain]
        for rank, mine in enumerate(found):
            for number, one in enumerate(mine):
                for slot, sample in enumerate(one.tolist()):
                    place = plan.place(sample)
                    assert place is not None
                    assert place[:3] == (step, number, rank)
                    assert stop - start < size or place.slot == slot
                    assert [int(part[0]) for part in plan.places(np.array([sample], np.uint64))] == list(place)
    positions = np.arange(size, dtype=np.uint64)
    assert (plan.position(plan.dealt(positions)) == positions).all()


@given(st.lists(st.integers(0, 30), min_size=6, max_size=6), st.sampled_from([2, 3]))
def test_no_rank_has_more_than_four_thirds_of_the_best(costs, ranks):
    best = min(max(sum(one[k::ranks]) for k in range(ranks)) for one in permutations(costs))
    heaviest = max(sum(costs[sample] for one in mine for sample in one) for mine in deal(costs, 1, ranks))
    assert 3 * heaviest <= 4 * best


def test_the_definition_by_hand():
    # 9 to the first of two equal ranks, 8 and 7 to the other, 5 and 4 to the first, 3 to the other; then both have 18,
    # and 2 goes to the first. In a rank the lightest begins, the next one ends, and so on inwards.
    costs = [1, 9, 3, 8, 2, 7, 4, 5]
    ranks = [[costs[sample] for (sample,) in mine] for mine in deal(costs, micro_batch_size=1, dp_size=2)]
    assert ranks == [[2, 5, 9, 4], [1, 7, 8, 3]]


def test_the_imbalance_is_that_of_the_scheme():
    costs = [9, 9, 1, 1]  # contiguous: 18 and 2; strided: 10 each
    for scheme, expected in (("contiguous", 1.8), ("strided", 1.0)):
        share = Partition(micro_batch_size=2, dp_size=2, scheme=scheme)
        assert imbalance(costs, share) == (expected, 1.0)
