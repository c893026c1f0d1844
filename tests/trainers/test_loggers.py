"""`metrics: true`: what each trainer's own logger then has, beside the counts of the order."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

import conceptloader as cl
from conceptloader.config import open_blend
from tests.corpora.for_megatron import write_config, write_datasets

STEPS, BATCH, S = 5, 4, 16


@pytest.fixture
def config(tmp_path: Path) -> str:
    outputs = {"loss_on_eos": False}
    return str(write_config(write_datasets(tmp_path) / "run.yaml", seq_len=S, metrics=True, outputs=outputs))


def assert_are_the_data(rows: list[dict[str, float]], config: str) -> None:
    """rows: by step, as a logger has them, without prefixes of its own."""
    order = open_blend(config).order
    plain = cl.make_dataloader(config, micro_batch_size=BATCH, num_samples=STEPS * BATCH)
    masks = [float(batch["loss_mask"].mean()) for batch in plain]
    assert len(rows) == STEPS
    for step, row in enumerate(rows):
        counts = order.counts((step + 1) * BATCH)
        assert [row[f"data/tokens/{name}"] for name in order.names] == [S * count for count in counts]
        epochs = [count / size for count, size in zip(counts, order.sizes, strict=True)]
        assert [row[f"data/epochs/{name}"] for name in order.names] == pytest.approx(epochs)
        assert row["data/masked"] == pytest.approx(1 - masks[step])
        assert 0 <= row["data/waited_seconds"] <= row["data/seconds"]
    assert 0 < min(masks) < 1


def test_lightning(config: str, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from conceptloader.integrations.lightning_lm import ConceptDataModule

    class Model(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: dict[str, Any], index: int) -> Any:
            return self.layer(batch["loss_mask"].mean()[None]).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, logger=CSVLogger(tmp_path), enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(Model(), datamodule=ConceptDataModule(config, micro_batch_size=2, global_batch_size=BATCH))
    (path,) = tmp_path.rglob("metrics.csv")
    rows = list(csv.DictReader(path.open()))
    assert [row["step"] for row in rows] == [str(step) for step in range(STEPS)]
    assert_are_the_data([{k: float(v) for k, v in row.items() if k.startswith("data/")} for row in rows], config)


def test_transformers(config: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from conceptloader.integrations.transformers_lm import ConceptTrainer

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, input_ids: Any, position_ids: Any, labels: Any, shift_labels: Any) -> Any:
            return {"loss": self.layer(labels.float().mean()[None]).sum()}

    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], max_steps=STEPS, disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=1,
    )  # fmt: skip
    trainer = ConceptTrainer(Model(), arguments, train_dataset=cl.SampleDataset(config, 100))
    trainer.train()
    rows = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in rows] == list(range(1, STEPS + 1))
    assert_are_the_data(rows, config)


def test_accelerate(config: str) -> None:
    pytest.importorskip("accelerate")
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    from conceptloader.integrations.accelerate_lm import AcceleratedLoader

    class Tracker(GeneralTracker):  # type: ignore[misc]
        name, requires_logging_directory, tracker = "own", False, None

        def __init__(self) -> None:
            super().__init__()
            self.rows: dict[int, dict[str, float]] = {}

        def store_init_configuration(self, values: dict[str, Any]) -> None: ...

        def log(self, values: dict[str, float], step: int | None, **kwargs: Any) -> None:
            self.rows[step or 0] = values

    own = Tracker()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=own)
    accelerator.init_trackers("run")
    loader = AcceleratedLoader(accelerator, config, micro_batch_size=2)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    for _ in loader:
        with accelerator.accumulate(model):
            pass
        if loader.steps == STEPS:
            break
    assert list(own.rows) == list(range(STEPS))
    assert_are_the_data([*own.rows.values()], config)
