"""A change of what determined consumed samples: each trainer refuses it, and what the error says to do is accepted."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.errors import ResumeError
from tests.corpora.for_megatron import write_config, write_datasets

BATCH, SAVED, STEPS = 8, 2, 4
Seen = list[list[list[int]]]  # by step


def lightning(config: str, folder: Path, resume: bool, **options: Any) -> Seen:
    pl = pytest.importorskip("lightning.pytorch")
    from conceptloader.integrations.lightning_lm import ConceptDataModule

    class Model(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), Seen()

        def training_step(self, batch: dict[str, Any], index: int) -> Any:
            self.seen.append(batch["input_ids"].tolist())
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    saver = pl.callbacks.ModelCheckpoint(folder, "saved", every_n_train_steps=SAVED)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS if resume else SAVED, max_epochs=-1, logger=False,
        callbacks=[saver], enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data, model = ConceptDataModule(config, micro_batch_size=BATCH, global_batch_size=BATCH, **options), Model()
    trainer.fit(model, datamodule=data, ckpt_path=str(folder / "saved.ckpt") if resume else None)
    return model.seen


def transformers(config: str, folder: Path, resume: bool, **options: Any) -> Seen:
    package = pytest.importorskip("transformers")
    from conceptloader.integrations.transformers_lm import ConceptTrainer

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), Seen()

        def forward(self, input_ids: Any, **_: Any) -> dict[str, Any]:
            self.seen.append(input_ids.tolist())
            return {"loss": self.layer(torch.ones(1)).sum()}

    arguments = package.TrainingArguments(
        str(folder), use_cpu=True, report_to=[], max_steps=STEPS if resume else SAVED, save_steps=SAVED,
        per_device_train_batch_size=BATCH, disable_tqdm=True,
    )  # fmt: skip
    model = Model()
    trainer = ConceptTrainer(model, arguments, train_dataset=cl.SampleDataset(config), **options)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}") if resume else None)
    return model.seen


def accelerate(config: str, folder: Path, resume: bool, **options: Any) -> Seen:
    package = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState

    from conceptloader.integrations.accelerate_lm import AcceleratedLoader

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator, seen = package.Accelerator(cpu=True), Seen()
    model = accelerator.prepare(torch.nn.Embedding(256, 256))
    loader = AcceleratedLoader(accelerator, config, micro_batch_size=BATCH, **options)
    if resume:
        accelerator.load_state(folder / "state")
    for batch in loader:
        with accelerator.accumulate(model):
            seen.append(batch["input_ids"].tolist())
            accelerator.backward(cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten()))
        if loader.steps == (STEPS if resume else SAVED):
            break
    accelerator.save_state(folder / "state")
    return seen


@pytest.mark.parametrize("train", [lightning, transformers, accelerate])
def test_changed_seed(train: Callable[..., Seen], tmp_path: Path) -> None:
    def planned(config: str, first: int, stop: int) -> Seen:
        loader = cl.make_dataloader(config, micro_batch_size=BATCH, consumed_samples=first * BATCH)
        with loader:
            return [batch["input_ids"].tolist() for batch, _ in zip(loader, range(first, stop), strict=False)]

    config = str(write_config(write_datasets(tmp_path) / "run.yaml", seq_len=16))
    assert train(config, tmp_path, False) == planned(config, 0, SAVED)
    changed = str(tmp_path / "changed.yaml")
    Path(changed).write_text(yaml.safe_dump({**yaml.safe_load(Path(config).read_text()), "seed": 12}))
    with pytest.raises(ResumeError, match="seed: ") as caught:
        train(changed, tmp_path, True)
    name, value = str(caught.value).rpartition(": ")[2].split("=")
    assert train(changed, tmp_path, True, **{name: ast.literal_eval(value)}) == planned(changed, SAVED, STEPS)
