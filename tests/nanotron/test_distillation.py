"""The student of docs/distillation.md: the page's own loss, on the last stage of the unmodified run_train.py. Needs
NANOTRON_SRC."""

import re
from functools import partial

import pytest

from tests.corpora.columns import COLUMNS, add_teacher
from tests.nanotron import support
from tests.nanotron.plan import assert_seen

pytestmark = [pytest.mark.timeout(500), pytest.mark.slow]
STEPS = 4


@pytest.fixture(scope="module")
def columns(data):
    return {name: add_teacher(path, number, support.VOCABULARY) for number, (name, path) in enumerate(data.items())}


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
    "shape", [{"pp": 2}, {"tp": 2, "pp": 2}, {"cp": 2, "model": "qwen2"}], ids=["pp2", "tp2 pp2", "cp2"]
)
def test_the_values_are_those_of_the_labels(train, tmp_path, dataset, oracle, columns, checkout, shape):
    page = (checkout / "docs/distillation.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    code = ["import os\n\nos.environ['CUDA_DEVICE_MAX_CONNECTIONS'] = '1'  # for tp"]
    code += [block for block in blocks if "megatron" not in block and "transformers" not in block]
    code = "\n\n".join([*code, COMPARED])
    for old, new in QWEN2.items() if "model" in shape else ():
        code = code.replace(old, new)
    (tmp_path / "distill.py").write_text(code)
    section = {**dataset, "outputs": {"columns": dict.fromkeys(COLUMNS, "labels")}}
    section["nanotron"] = {"model_inputs": dict.fromkeys(COLUMNS, "last")}
    run = partial(train, dataset=section, interval=1, launch=["--import", "distill"], path=tmp_path)
    first = 1
    if "cp" in shape:  # nanotron cannot initialize a model under context parallelism
        run("begin", steps=1, **{**shape, "cp": 1})
        first = 2
    result = run("run", steps=STEPS, resume=first > 1, **shape)
    layout = result.layout
    assert result.output.count("COMPARED") == layout.tp * layout.cp * (STEPS + 1 - first) * 2
    assert_seen(result, oracle, range(first, STEPS + 1))
    part = support.SEQ_LEN // layout.cp
    for rank, steps in enumerate(result.steps):
        pp, _, cp = layout.coordinates(rank)
        for step, recorded in steps.items():
            for m, batch in enumerate(recorded["batches"]):
                samples = oracle.samples(range(((step - 1) * 2 + m) * 2, ((step - 1) * 2 + m) * 2 + 2))
                for column in COLUMNS:
                    wanted = {"owner": layout.pp - 1}
                    if pp == layout.pp - 1:
                        begins = [(name, window * support.SEQ_LEN + 1 + cp * part) for name, _, window in samples]
                        wanted = [columns[name][column][begin : begin + part].tolist() for name, begin in begins]
                    assert batch[column] == wanted, (rank, step, column)
