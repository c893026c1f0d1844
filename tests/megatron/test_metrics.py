"""`metrics: true` under an unmodified pretrain_gpt.py (MEGATRON_SRC): what Megatron's TensorBoard files then hold."""

from itertools import islice
from pathlib import Path

import pytest
import torch

import conceptloader as cl
from conceptloader.config import load_config
from tests.corpora.for_megatron import write_config, write_datasets
from tests.megatron.pretraining import (
    BATCH,
    DP2,
    SAVED,
    STEPS,
    Layout,
    each_checkout,
    ended,
    needs_checkout,
    pretrain,
    saving,
)

pytestmark = needs_checkout
LAYOUTS = {
    "dp2": DP2,
    "pp2": Layout(("--pipeline-model-parallel-size", "2")),
    "tp2": Layout(("--tensor-model-parallel-size", "2")),
}


@each_checkout
@pytest.mark.parametrize("name", LAYOUTS)
def test_tensorboard_has_the_data(checkout: Path, name: str, tmp_path: Path) -> None:
    """By step, over a resume: the counts of the order, and of the masks that the last rank, which writes, trained on.

    A tensor-parallel one is told them by the rank that reads.
    """
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    layout, masks = LAYOUTS[name], [{"dataset": "web", "tokens": [0, 2000]}]
    config = write_config(write_datasets(tmp_path) / "data.yaml", metrics=True, exclude=masks)
    more = [*saving(tmp_path / "a"), "--tensorboard-dir", str(tmp_path / "board")]
    ended(pretrain(checkout, tmp_path / "run", layout, *more, "--exit-interval", str(SAVED), config=config))
    ended(pretrain(checkout, tmp_path / "rest", layout, *more, config=config))
    events = accumulator.EventAccumulator(str(tmp_path / "board")).Reload()

    def of(tag: str) -> list[float]:
        assert [event.step for event in events.Scalars(f"data/{tag}")] == list(range(1, STEPS + 1))
        return [event.value for event in events.Scalars(f"data/{tag}")]

    plain = cl.make_dataloader(
        load_config(config).with_seq_len(64), micro_batch_size=layout.micro_batch, global_batch_size=BATCH,
        dp_rank=layout.dp_size - 1, dp_size=layout.dp_size, scheme="contiguous",
    )  # fmt: skip
    order, ends = plain.blend.order, range(BATCH, STEPS * BATCH + 1, BATCH)
    for k, dataset in enumerate(order.names):
        assert of(f"tokens/{dataset}") == [64 * order.counts(end)[k] for end in ends]
        assert of(f"epochs/{dataset}") == pytest.approx([order.counts(end)[k] / order.sizes[k] for end in ends])
    steps = [
        torch.cat([batch["loss_mask"] for batch in islice(batches, layout.micro_batches)])
        for batches in [iter(plain)]
        for _ in ends
    ]
    assert of("masked") == pytest.approx([1 - float(mask.mean()) for mask in steps], abs=1e-6)
    assert of("without_loss") == [int((mask.sum(1) == 0).sum()) for mask in steps]
    assert sum(of("without_loss"))
    assert all(0 <= waited <= took for waited, took in zip(of("waited_seconds"), of("seconds"), strict=True))
