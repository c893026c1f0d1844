"""The student of docs/distillation.md: the page's own loss, on the last stage of the unmodified run_train.py. Needs
NANOTRON_SRC."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from tests.corpora.columns import add_column
from tests.nanotron import support
from tests.nanotron.conftest import WEIGHTS
from tests.nanotron.plan import Layout, Oracle, assert_seen

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(500), pytest.mark.slow]
STEPS, TOP = 8, 4


@pytest.fixture(scope="module")
def columns(data: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Values that are a function of the dataset and the token's place."""
    found: dict[str, dict[str, Any]] = {}
    for number, (name, path) in enumerate(data.items()):
        places = np.arange(cl.open_dataset(path).num_tokens)
        ids = (places[:, None] * 31 + np.arange(TOP) * 7 + number * 11) % support.VOCABULARY
        logprobs = -2.0 - (places[:, None] % 5 + np.arange(TOP)) / 4
        found[name] = {"teacher_ids": ids.astype("u2"), "teacher_logprobs": logprobs.astype("f2")}
        for column, items in found[name].items():
            add_column(path, column, items)
    return found


def test_the_values_are_those_of_the_labels(
    tmp_path: Path, dataset: dict[str, Any], data: dict[str, Path], columns: dict[str, Any], checkout: Path
) -> None:
    """And each layout has the same losses: with a vocabulary on one rank, and on two."""
    blocks = re.findall(
        r"^```py\n(.*?)^```$", (checkout / "docs/distillation.md").read_text(), re.MULTILINE | re.DOTALL
    )
    code = ["import os\n\nos.environ['CUDA_DEVICE_MAX_CONNECTIONS'] = '1'  # for tp"]
    code += [block for block in blocks if "megatron" not in block]
    outputs = {"columns": dict.fromkeys(("teacher_ids", "teacher_logprobs"), "labels")}
    options = {"model_inputs": dict.fromkeys(outputs["columns"], "last")}
    losses = {}
    for layout, tp in ((Layout(pp=2), 1), (Layout(), 2)):
        folder = tmp_path / f"pp{layout.pp}-tp{tp}"
        folder.mkdir()
        (folder / "distill_llama.py").write_text("\n\n".join(code))
        config = support.config(
            folder / "c",
            {**dataset, "outputs": outputs, "nanotron": options},
            pp=layout.pp,
            tp=tp,
            steps=STEPS,
            interval=100,
        )
        result = support.run_train(folder, config, launch=["--import", "distill_llama"], path=folder)
        assert result.returncode == 0, result.output[-4000:]
        losses[tp] = result.losses()
        oracle = Oracle(data, WEIGHTS, support.SEQ_LEN)
        if tp == 1:
            assert_seen(result, oracle, layout, range(1, STEPS + 1), micro_batch=2, micro_batches=2, start=0)
            assert all(
                batch[name] == {"owner": 1}
                for step in result.steps[0].values()
                for batch in step["batches"]
                for name in options["model_inputs"]
            )
        for step, recorded in result.steps[-1].items():
            for m, batch in enumerate(recorded["batches"]):
                first = ((step - 1) * 2 + m) * 2
                for row, (name, _, window) in enumerate(oracle.samples(range(first, first + 2))):
                    place = slice(window * support.SEQ_LEN + 1, (window + 1) * support.SEQ_LEN + 1)
                    for column in options["model_inputs"]:
                        assert batch[column][row] == columns[name][column][place].tolist(), (step, column)
    assert len(losses[1]) == STEPS
    assert losses[2][1] == pytest.approx(losses[1][1], abs=0.2)  # weights of other random numbers
