"""Mixtures that learn in trainers: broken off and resumed from a checkpoint, they train the planned samples."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.mixing.training import BATCH, configuration
from tests.raises import raises

STEPS, SAVED = 10, 4
Trained = tuple[list[Any], dict[str, Any]]  # rows of samples, and the loader's state


def mixing_of(state: dict[str, Any]) -> dict[str, Any]:
    fields = json.loads(state["conceptloader"])
    return {key: fields[key] for key in ("mixing", "spec", "consumed_samples")}


def compare(train: Any, folder: Path) -> None:
    """train(folder, steps, resume) -> Trained. Whole; and broken off after SAVED + 2 steps, resumed from SAVED."""
    for name in ("whole", "broken"):
        (folder / name).mkdir()
    expected, at_end = train(folder / "whole", STEPS, False)
    train(folder / "broken", SAVED + 2, False)
    samples, state = train(folder / "broken", STEPS, True)
    assert samples == expected[-len(samples) :]
    assert len(samples) == (STEPS - SAVED) * 2
    assert mixing_of(state) == mixing_of(at_end)
    assert mixing_of(state)["mixing"]["steps"] == STEPS
    assert json.loads(state["conceptloader"])["spec"]["segments"][-1]["drawn"]


def tiny() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000))


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from conceptloader.integrations.lightning_lm import ConceptDataModule

    config = configuration(tmp_path, {"odm": {}})

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.seen = tiny(), list[Any]()

        def training_step(self, batch: Any, index: int) -> Any:
            losses = cross_entropy(self.layers(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
            self.trainer.datamodule.losses.add(batch["dataset_id"], losses, batch["loss_mask"])
            self.seen.append([*batch["sample_index"].tolist(), *batch["dataset_id"].tolist()])
            return (losses * batch["loss_mask"]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    def train(folder: Path, steps: int, resume: bool) -> Trained:
        saver = pl.callbacks.ModelCheckpoint(folder, "saved", every_n_train_steps=SAVED, save_top_k=-1)
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, accumulate_grad_batches=2, max_steps=steps, max_epochs=-1, logger=False,
            callbacks=[saver], enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        data, model = ConceptDataModule(config, micro_batch_size=BATCH // 2, global_batch_size=BATCH), Model()
        trainer.fit(model, datamodule=data, ckpt_path=str(folder / "saved.ckpt") if resume else None)
        assert data.loader is not None
        return model.seen, data.loader.state_dict()

    compare(train, tmp_path)


@pytest.mark.slow
def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from conceptloader.integrations.transformers_lm import ConceptTrainer

    config = configuration(tmp_path, {"odm": {}})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.seen, self.logits = tiny(), list[Any](), True

        def forward(self, input_ids: Any, shift_labels: Any, sample_index: Any, **_: Any) -> dict[str, Any]:
            self.seen.append([*sample_index.tolist(), *input_ids[:, 0].tolist()])
            logits = self.layers(input_ids)
            loss = cross_entropy(logits.flatten(0, 1), shift_labels.flatten())
            return {"loss": loss, "logits": logits} if self.logits else {"loss": loss}

    def make(folder: Path, steps: int, config: Any = config) -> Any:
        arguments = transformers.TrainingArguments(
            str(folder), use_cpu=True, per_device_train_batch_size=BATCH // 2, gradient_accumulation_steps=2,
            report_to=[], disable_tqdm=True, save_steps=SAVED, max_steps=steps, logging_steps=99,
            lr_scheduler_type="constant", learning_rate=0.01,
        )  # fmt: skip
        return ConceptTrainer(Model(), arguments, train_dataset=cl.SampleDataset(config), model_inputs=["sample_index"])

    def train(folder: Path, steps: int, resume: bool) -> Trained:
        trainer = make(folder, steps)
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}") if resume else None)
        return trainer.model.seen, trainer._loader.state_dict()

    compare(train, tmp_path)
    without = make(tmp_path / "without", 3)
    without.model.logits = False
    with raises(ConfigError, "mixing", "logits"):
        without.train()
    (tmp_path / "weights.yaml").write_text("{easy: 1, hard: 2, middle: 3}")
    given = make(tmp_path / "given", 3, configuration(tmp_path, {"file": str(tmp_path / "weights.yaml")}))
    given.model.logits = False  # which nobody needs
    given.train()
    assert dict(given._loader.blend.order.segments[-1].weights) == {"easy": 1, "hard": 2, "middle": 3}
    with raises(ConfigError, "set_weights"):
        make(tmp_path / "before", 3).set_weights({"easy": 1})


@pytest.mark.slow
def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from conceptloader.integrations.accelerate_lm import AcceleratedLoader

    config = configuration(tmp_path, {"odm": {}})

    def train(folder: Path, steps: int, resume: bool) -> Trained:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = tiny()
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
        loader = accelerator.prepare(AcceleratedLoader(accelerator, config, micro_batch_size=BATCH // 2))
        if resume:
            accelerator.load_state(folder / "state")
        losses, seen = cl.DatasetLosses(loader.blend.config.names), []
        for batch in loader:
            with accelerator.accumulate(model):
                every = cross_entropy(model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none")
                losses.add(batch["dataset_id"], every, batch["loss_mask"])
                accelerator.backward((every * batch["loss_mask"]).mean())
                optimizer.step()
                optimizer.zero_grad()
            seen.append([*batch["sample_index"].tolist(), *batch["dataset_id"].tolist()])
            if not accelerator.sync_gradients:
                continue
            loader.observe(losses.finish())
            if loader.steps == SAVED:
                accelerator.save_state(folder / "state")
            if loader.steps == steps:
                break
        return seen, loader.state_dict()

    compare(train, tmp_path)
