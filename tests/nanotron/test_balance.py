"""`loader.balance` under the unmodified run_train.py (NANOTRON_SRC): steps keep their samples, ranks get equal work."""

import numpy as np
import pytest

from tests.nanotron import support

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(900), pytest.mark.slow]
STEPS, RANKS, MICRO_BATCHES = 4, 2, 8


def rows(result, step, key):
    """By rank, of a step, of what the recorded batches hold."""
    return [[row for batch in rank[step]["batches"] for row in batch[key]] for rank in result.steps]


def work(positions):
    """The sum of squares of the lengths of documents, which begin where positions are 0."""
    starts = [np.append(np.flatnonzero(np.array(row) == 0), len(row)) for row in positions]
    return sum(int((np.diff(one) ** 2).sum()) for one in starts)


def test_balance(tmp_path, dataset):
    shape = {"model": "qwen2", "dp": RANKS, "steps": STEPS, "micro_batch": 1, "micro_batches": MICRO_BATCHES}
    packed = {**dataset, "packing": {"bins": 4}}
    balanced = {**packed, "loader": {"balance": True}}

    def trained(name, section, **more):
        config = support.config(tmp_path / f"{section is packed}", section, interval=2, **{**shape, **more})
        # They compare position_ids of ranks, which are equal for two packs of one document each.
        config["general"]["ignore_sanity_checks"] = True
        result = support.run_train(tmp_path / name, config)
        assert result.returncode == 0, result.output[-4000:]
        return result

    found = {"off": trained("off", packed), "on": trained("on", balanced)}
    spread = {"on": [], "off": []}
    for step in range(1, STEPS + 1):
        for name, result in found.items():
            each = [work(mine) for mine in rows(result, step, "position_ids")]
            spread[name].append(max(each) * RANKS / sum(each))
        of_step = {
            name: sorted(row for mine in rows(one, step, "input_ids") for row in mine) for name, one in found.items()
        }
        assert of_step["on"] == of_step["off"]
    assert np.mean(spread["on"]) < 1.02 < np.mean(spread["off"]), spread
    resumed = trained("resumed", balanced, resume=True, steps=STEPS + 1)
    again = sorted(row for mine in rows(resumed, STEPS + 1, "input_ids") for row in mine)
    assert len(again) == RANKS * MICRO_BATCHES
