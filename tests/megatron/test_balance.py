"""`loader.balance` under an unmodified pretrain_gpt.py (MEGATRON_SRC): equal steps, losses, and work of ranks."""

import numpy as np
import pytest

from tests.corpora.for_megatron import write_config
from tests.megatron.pretraining import BATCH, SAVED, STEPS, Layout, needs_checkout, same_losses

pytestmark = needs_checkout
PIPELINE = ("--pipeline-model-parallel-size", "2")
LAYOUTS = {
    "dp2": (),
    "pp2": PIPELINE,
    "cp2": ("--context-parallel-size", "2"),
    "vpp": (*PIPELINE, "--num-layers", "4", "--num-layers-per-virtual-pipeline-stage", "1"),
}
MASKED = ("--dataloader-inter-document-masking", "--no-create-attention-mask-in-dataloader",
          "--calculate-per-token-loss")  # fmt: skip


def by_step(run, rank, key="sample_index"):
    lines = [line[key] for line in run.taken[rank]]
    each = len(lines) // STEPS
    return [lines[step * each : (step + 1) * each] for step in range(STEPS)]


def work(step):
    return sum(int((np.diff(np.unique(line)) ** 2).sum()) for line in step)


@pytest.mark.parametrize("name", LAYOUTS)
def test_balance(pretrain, name, data):
    if not pretrain.has("inter_document_masking", "core/datasets/gpt_dataset.py"):
        pytest.skip("--dataloader-inter-document-masking is of core 0.19")
    readers = (0, 1, 2, 3) if LAYOUTS[name] else (0, 1)
    layout = Layout(LAYOUTS[name], processes=len(readers), dp_size=2, micro_batch=1, readers=readers)
    configs = {
        key: write_config(data / f"{key}.yaml", packing={"bins": 4}, loader={"balance": key == "on"})
        for key in ("off", "on")
    }
    runs = {key: pretrain(key, layout, *MASKED, save=key, config=config) for key, config in configs.items()}
    first = (0, 2) if name == "cp2" else (0, 1)  # one process of each data-parallel rank, in the first stage
    for step in range(STEPS):
        # A rank with several virtual stages takes each of them for each.
        samples = [sample for rank in first for line in by_step(runs["on"], rank)[step] for sample in line]
        assert sorted({*samples}) == list(range(step * BATCH, (step + 1) * BATCH))
    spread = {
        key: np.mean([
            2 * max(pair) / sum(pair)
            for pair in ([work(by_step(run, rank, "cu_seqlens")[step]) for rank in first] for step in range(STEPS))
        ])
        for key, run in runs.items()
    }  # fmt: skip
    assert spread["on"] < 1.03 < spread["off"], spread
    # Sums of the same losses over the same tokens, in another sequence.
    same_losses(runs["on"], runs["off"], first=1, rounding=1e-4)
    resumed = pretrain("rest", layout, *MASKED, "--ckpt-step", SAVED, save="rest", load="on", config=configs["on"])
    for rank in readers:
        samples = runs["on"].samples(rank)  # stages of one model take the same ones
        assert samples == runs["on"].samples(rank - rank % 2 if name == "cp2" else rank % 2)
        assert resumed.samples(rank) == samples[len(samples) * SAVED // STEPS :]
    refused = "loader.balance: found true without --dataloader-inter-document-masking"
    pretrain("refused", layout, config=configs["on"], refused=refused)
