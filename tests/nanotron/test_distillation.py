"""The student of docs/distillation.md: the page's own loss, on the last stage of the unmodified run_train.py. Needs
NANOTRON_SRC."""

import re

import numpy as np
import pytest

import conceptloader as cl
from tests.corpora.columns import add_column
from tests.nanotron import support
from tests.nanotron.conftest import WEIGHTS
from tests.nanotron.plan import Layout, Oracle, assert_seen

pytestmark = [pytest.mark.usefixtures("nanotron_src"), pytest.mark.timeout(500), pytest.mark.slow]
STEPS, TOP = 4, 4


@pytest.fixture(scope="module")
def columns(data):
    """Values that are a function of the dataset and the token's place."""
    found = {}
    for number, (name, path) in enumerate(data.items()):
        places = np.arange(cl.open_dataset(path).num_tokens)
        ids = (places[:, None] * 31 + np.arange(TOP) * 7 + number * 11) % support.VOCABULARY
        logprobs = -2.0 - (places[:, None] % 5 + np.arange(TOP)) / 4
        found[name] = {"teacher_ids": ids.astype("u2"), "teacher_logprobs": logprobs.astype("f2")}
        for column, items in found[name].items():
            add_column(path, column, items)
    return found


# Appended to the recipe: each loss is compared with that of the whole vocabulary in one process.
COMPARED = """
from tests.columns.plain_loss import compare, plain_losses

stock = DistillLoss.forward


def forward(self, sharded_logits, label_ids, label_mask, **columns):
    def divided(logits):
        return stock(self, logits, label_ids, label_mask, **columns)["loss"]

    def whole(logits):
        logits = logits.view(*label_ids.T.shape, -1).transpose(0, 1)
        return (plain_losses(logits, label_ids, **columns) * label_mask).sum() / label_mask.sum()

    compare(divided, whole, sharded_logits, self.tp_pg)
    assert stock(self, sharded_logits, label_ids, torch.zeros_like(label_mask), **columns)["loss"] == 0
    print("COMPARED")
    return {"loss": divided(sharded_logits)}


DistillLoss.forward = forward
"""
# As the page says for Qwen2.
QWEN2 = {
    "nanotron.models.llama": "nanotron.models.qwen",
    "Llama": "Qwen2",
    "input_mask": "position_ids",
    ".view(*label_ids.T.shape, -1).transpose(0, 1)": ".view(*label_ids.shape, -1)",
}


@pytest.mark.parametrize(
    ("layout", "model"), [(Layout(pp=2), "llama"), (Layout(tp=2, pp=2), "llama"), (Layout(cp=2), "qwen2")]
)
def test_the_values_are_those_of_the_labels(tmp_path, dataset, data, columns, checkout, layout, model):
    page = (checkout / "docs/distillation.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    code = ["import os\n\nos.environ['CUDA_DEVICE_MAX_CONNECTIONS'] = '1'  # for tp"]
    code = "\n\n".join(
        [*code, *(block for block in blocks if "megatron" not in block and "transformers" not in block), COMPARED]
    )
    for old, new in QWEN2.items() if model == "qwen2" else ():
        code = code.replace(old, new)
    (tmp_path / "distill.py").write_text(code)
    options = {"model_inputs": dict.fromkeys(("teacher_ids", "teacher_logprobs"), "last")}
    outputs = {"columns": dict.fromkeys(options["model_inputs"], "labels")}

    def run(steps, **more):
        config = support.config(
            tmp_path / "c",
            {**dataset, "outputs": outputs, "nanotron": options},
            model=model,
            steps=steps,
            interval=1,
            **{**vars(layout), **more},
        )
        result = support.run_train(tmp_path, config, launch=["--import", "distill"], path=tmp_path)
        assert result.returncode == 0, result.output[-4000:]
        return result

    first = 1
    if layout.cp > 1:  # nanotron cannot initialize a model under context parallelism
        run(1, cp=1)
        first = 2
    result = run(STEPS, resume=first > 1)
    assert result.output.count("COMPARED") == layout.tp * layout.cp * (STEPS + 1 - first) * 2
    oracle, start = Oracle(data, WEIGHTS, support.SEQ_LEN), (first - 1) * 4
    assert_seen(result, oracle, layout, range(first, STEPS + 1), micro_batch=2, micro_batches=2, start=start)
    part = support.SEQ_LEN // layout.cp
    for rank, steps in enumerate(result.steps):
        pp, _, cp = layout.coordinates(rank)
        for step, recorded in steps.items():
            for m, batch in enumerate(recorded["batches"]):
                samples = oracle.samples(range(((step - 1) * 2 + m) * 2, ((step - 1) * 2 + m) * 2 + 2))
                for column in options["model_inputs"]:
                    wanted = {"owner": layout.pp - 1}
                    if pp == layout.pp - 1:
                        begins = [(name, window * support.SEQ_LEN + 1 + cp * part) for name, _, window in samples]
                        wanted = [columns[name][column][begin : begin + part].tolist() for name, begin in begins]
                    assert batch[column] == wanted, (rank, step, column)
