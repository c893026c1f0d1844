"""Documented losses are finite, and so are the parameters that they train, where batches have no label that counts."""

import re

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from conceptloader.loader.batch.reader import BatchReader
from tests.docs.test_code_blocks import ROOT, everything, find_spec, run
from tests.soak.builds import child

TRAIN = re.compile(r"AdamW|TrainingArguments|jax\.grad")  # parts that train a model


@pytest.mark.parametrize(
    "part", [part for part in everything() if any(TRAIN.search(block.code) for block in part.blocks)],
    ids=lambda p: f"{p.page.name} {p.needs}",
)  # fmt: skip
def test_pages_train_on_batches_without_labels(part, tmp_path, monkeypatch):
    if part.needs and find_spec(part.needs) is None:
        pytest.skip(f"{part.needs} is not installed: `make test-trainers` or `make trainers` has it")
    monkeypatch.chdir(tmp_path)
    assert child(lambda: run_masked(part))


def run_masked(part):
    """With every second batch of each reader masked. Losses have to be finite, and parameters after each step."""
    read, backward, stepped, reads = BatchReader.read, torch.Tensor.backward, [0], {}

    def masked(self, *args, **options):
        batch = read(self, *args, **options)
        reads[id(self)] = reads.get(id(self), -1) + 1
        if reads[id(self)] % 2 == 0 and "loss_mask" in batch:
            batch["loss_mask"][...] = 0
            if self.layout.outputs.ignore_index is not None:
                batch["labels"][...] = self.layout.outputs.ignore_index
        return batch

    def check(optimizer, *args):
        stepped[0] += 1
        assert all(p.isfinite().all() for group in optimizer.param_groups for p in group["params"]), stepped

    def checked(loss, *args, **options):
        assert loss.isfinite()
        backward(loss, *args, **options)

    BatchReader.read, torch.Tensor.backward = masked, checked
    register_optimizer_step_post_hook(check)
    space = run(part)
    assert stepped[0] or np.isfinite(space["table"]).all()


LOSSES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.py"))]
# A division by the sum of a mask, or the mean that cross_entropy takes of the labels that count.
NAN = re.compile(r'/ [\w.\["]*(mask|w)[\w"\]]*\.sum\(\)(?!\.clamp)|(?<!_)cross_entropy\((?!.*reduction="none").*labels')


def test_no_documented_mean_divides_by_a_count_of_0():
    lines = [f"{file.relative_to(ROOT)}: {line.strip()}" for file in LOSSES for line in file.read_text().splitlines()]
    assert [line for line in lines if NAN.search(line)] == []
