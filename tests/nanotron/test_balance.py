"""`loader.balance` under the unmodified run_train.py (NANOTRON_SRC): steps keep their samples, ranks get equal work."""

import numpy as np
import pytest

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(900), pytest.mark.slow]
STEPS, RANKS, MICRO_BATCHES = 4, 2, 8


def rows(result, step, key):
    """By rank, of a step, of what the recorded batches hold."""
    return [[row for batch in rank[step]["batches"] for row in batch[key]] for rank in result.steps]


def work(positions):
    """The sum of squares of the lengths of documents, which begin where positions are 0."""
    starts = [np.append(np.flatnonzero(np.array(row) == 0), len(row)) for row in positions]
    return sum(int((np.diff(one) ** 2).sum()) for one in starts)


def test_balance(train, dataset):
    packed = {**dataset, "packing": {"bins": 4}}
    balanced = {**packed, "loader": {"balance": True}}

    def trained(name, section, **more):
        shape = {"model": "qwen2", "dp": RANKS, "steps": STEPS, "micro_batch": 1, "micro_batches": MICRO_BATCHES}
        # They compare position_ids of ranks, which are equal for two packs of one document each.
        changes, folder = {"general.ignore_sanity_checks": True}, f"{section is packed}"
        return train(name, dataset=section, checkpoints=folder, interval=2, changes=changes, **{**shape, **more})

    found = {"off": trained("off", packed), "on": trained("on", balanced)}
    spread = {"on": [], "off": []}
    for step in range(1, STEPS + 1):
        for name, result in found.items():
            each = [work(mine) for mine in rows(result, step, "position_ids")]
            spread[name].append(max(each) * RANKS / sum(each))
        on, off = (sorted(row for mine in rows(found[name], step, "input_ids") for row in mine) for name in found)
        assert on == off
    assert np.mean(spread["on"]) < 1.02 < np.mean(spread["off"]), spread
    resumed = trained("resumed", balanced, resume=True, steps=STEPS + 1)
    assert sum(map(len, rows(resumed, STEPS + 1, "input_ids"))) == RANKS * MICRO_BATCHES
