"""The student of docs/distillation.md in the Hugging Face Trainer, against a loop by hand: accumulation, ranks, batches
without labels, in training and evaluation."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.columns import COLUMNS, add_column
from tests.ranks.launch import forked
from tests.trainers import values

pytest.importorskip("transformers")
from tests.trainers.run_transformers import Llama, settings

MICRO, ACCUMULATE, STEPS, HELD_OUT = 2, 3, 3, 7
PAGE = Path(__file__).resolve().parents[2] / "docs/distillation.md"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "data"
    write_dataset(path, random_documents(30, seed=1, vocab_size=50), vocab_size=50)
    tokens = cl.open_dataset(path).num_tokens
    rng = np.random.default_rng(0)
    add_column(path, "teacher_ids", rng.permuted(np.tile(np.arange(50, dtype="u2"), (tokens, 1)), axis=1)[:, :4])
    add_column(path, "teacher_logprobs", np.log(rng.dirichlet(np.ones(5), tokens)[:, :4]).clip(-30).astype("f2"))
    columns = {name: {"at": "labels", "missing": 0} for name in COLUMNS}
    excluded = [{"dataset": "a", "tokens": [40, tokens // 2]}]  # so that some batches have no label that counts
    return {
        "seq_len": 16, "datasets": {"a": {"path": str(path)}}, "outputs": {"columns": columns}, "exclude": excluded,
    }  # fmt: skip


def recipe():
    """The page's definitions of the loss and of the trainer."""
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = [block for block in blocks if "def distillation_losses" in block or "class Student" in block]
    defined = re.compile(r"^(?:from |COLUMNS = |def |class ).*\n(?:(?: {4}.*)?\n)*", re.MULTILINE)
    space = {"torch": torch, "cl": cl}
    exec("".join(defined.findall("\n".join(code))), space)
    return space


def train(rank, ranks, config, out):
    space, student = recipe(), Llama()
    sizes = {"per_device_train_batch_size": MICRO // ranks, "gradient_accumulation_steps": ACCUMULATE,
        "max_steps": STEPS, "eval_strategy": "steps", "eval_steps": STEPS, "per_device_eval_batch_size": 2}  # fmt: skip
    trainer = space["Student"](
        student, settings(out, **sizes), train_dataset=cl.SampleDataset(config), model_inputs=space["COLUMNS"],
        eval_dataset=cl.SampleDataset({**config, "order": "sequential"}, HELD_OUT),
        optimizers=(torch.optim.SGD(student.parameters(), lr=values.RATE), None),
    )  # fmt: skip
    trainer.train()
    if rank == 0:
        log = trainer.state.log_history
        found = {name: [line[name] for line in log if name in line] for name in ("loss", "eval_loss")}
        (out / "found.json").write_text(json.dumps(found))
        torch.save([p.detach() for p in student.parameters()], out / "student.pt")


@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_and_parameters_are_those_of_a_loop_by_hand(tmp_path, config, ranks):
    (out := tmp_path / "out").mkdir()
    forked(train, ranks, ranks, config, out)
    losses_of, hand = recipe()["distillation_losses"], Llama()

    def mean(batch):
        """Over all labels that count, of which there are some."""
        losses = losses_of(hand(input_ids=batch["input_ids"], use_cache=False).logits, batch)
        return losses[batch["loss_mask"] == 1].mean()

    data, size = cl.SampleDataset(config), MICRO * ACCUMULATE
    counts = [int(data[i]["loss_mask"].sum()) for i in range(size * STEPS)]
    assert any(not sum(counts[i : i + MICRO]) for i in range(0, len(counts), MICRO)), counts
    steps = (mean(values.rows(data, range(step * size, step * size + size))) for step in range(STEPS))
    found = json.loads((out / "found.json").read_text())
    assert found["loss"] == pytest.approx([*values.sgd(hand, steps)], rel=1e-4)
    with torch.no_grad():
        valid = cl.SampleDataset({**config, "order": "sequential"}, HELD_OUT)
        counted = [i for i in range(HELD_OUT) if valid[i]["loss_mask"].any()]
        assert found["eval_loss"] == pytest.approx([mean(values.rows(valid, counted)).item()], rel=1e-4)
    for ours, theirs in zip(torch.load(out / "student.pt"), hand.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_step_without_labels_trains_nothing(tmp_path, config):
    """In the model's own loss: transformers would divide by the labels of the step, 0."""
    from conceptloader.integrations.transformers_lm import ConceptTrainer

    tokens = cl.open_dataset(config["datasets"]["a"]["path"]).num_tokens
    data = cl.SampleDataset({**config, "exclude": [{"dataset": "a", "tokens": [0, tokens]}]})
    student, before = Llama(), [p.detach().clone() for p in Llama().parameters()]
    given = settings(tmp_path / "out", max_steps=1, gradient_accumulation_steps=2, logging_nan_inf_filter=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=values.RATE)
    trainer = ConceptTrainer(student, given, train_dataset=data, optimizers=(optimizer, None))
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == 0
    assert all(torch.equal(old, p) for old, p in zip(before, student.parameters(), strict=True))
