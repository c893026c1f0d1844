"""`loader.balance` under an unmodified pretrain_gpt.py (MEGATRON_SRC): equal steps, losses, and work of ranks."""

import numpy as np
import pytest

from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.pretraining import (
    BATCH,
    SAVED,
    STEPS,
    Layout,
    each_checkout,
    ended,
    needs_checkout,
    pretrain,
    same_losses,
    saving,
)

pytestmark = needs_checkout
PIPELINE = ("--pipeline-model-parallel-size", "2")
LAYOUTS = {
    "dp2": Layout(dp_size=2, micro_batch=1, readers=(0, 1)),
    "pp2": Layout(PIPELINE, processes=4, dp_size=2, micro_batch=1, readers=(0, 1, 2, 3)),
    "cp2": Layout(
        ("--context-parallel-size", "2"), processes=4, dp_size=2, micro_batch=1, readers=(0, 1, 2, 3)
    ),
    "vpp": Layout(
        (*PIPELINE, "--num-layers", "4", "--num-layers-per-virtual-pipeline-stage", "1"),
        processes=4, dp_size=2, micro_batch=1, readers=(0, 1, 2, 3),
    ),
}  # fmt: skip
MASKED = (
    *("--dataloader-inter-document-masking", "--no-create-attention-mask-in-dataloader"),
    "--calculate-per-token-loss",
)


def by_step(run, rank, key="sample_index"):
    lines = [line[key] for line in run.taken[rank]]
    each = len(lines) // STEPS
    return [lines[step * each : (step + 1) * each] for step in range(STEPS)]


def work(step):
    return sum(int((np.diff(np.unique(line)) ** 2).sum()) for line in step)


@each_checkout
@pytest.mark.parametrize("name", LAYOUTS)
def test_balance(checkout, name, tmp_path):
    if "inter_document_masking" not in (checkout / "megatron/core/datasets/gpt_dataset.py").read_text():
        pytest.skip("--dataloader-inter-document-masking is of core 0.19")
    layout = LAYOUTS[name]
    folder = write_datasets(tmp_path / "data")
    packing = {"packing": {"bins": 4}}
    off = write_config(folder / "off.yaml", **packing)
    on = write_config(folder / "on.yaml", **packing, loader={"balance": True})
    runs = {
        key: ended(pretrain(checkout, tmp_path / key, layout, *MASKED, *more, config=config))
        for key, config, more in (("off", off, []), ("on", on, saving(tmp_path / "a")))
    }
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
    for rank in layout.readers:  # stages of one model take the same samples
        assert runs["on"].samples(rank) == runs["on"].samples(rank - rank % 2 if name == "cp2" else rank % 2)
    resumed = ended(pretrain(checkout, tmp_path / "rest", layout, *MASKED, *saving(tmp_path / "b", tmp_path / "a"),
                             "--ckpt-step", str(SAVED), config=on))  # fmt: skip
    for rank in layout.readers:
        assert resumed.samples(rank) == runs["on"].samples(rank)[len(runs["on"].samples(rank)) * SAVED // STEPS :]
    refused = pretrain(checkout, tmp_path / "refused", layout, config=on)
    assert "loader.balance: found true without --dataloader-inter-document-masking" in refused.output
