"""Counts of Lightning's Trainer that are not what they seem: no sample is trained twice for them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from conceptloader.errors import ConfigError
from tests.corpora.for_megatron import write_config, write_datasets
from tests.raises import raises

pl = pytest.importorskip("lightning.pytorch")
from conceptloader.integrations.lightning_lm import ConceptDataModule  # noqa: E402

MICRO = 4


class Model(pl.LightningModule):  # type: ignore[name-defined,misc]
    """manual: two optimizers, whose steps global_step counts. changed_at: the batch that changes the accumulation."""

    def __init__(self, manual: bool = False, changed_at: int = -1) -> None:
        super().__init__()
        self.layers, self.seen = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]), list[int]()
        self.automatic_optimization, self.changed_at = not manual, changed_at

    def training_step(self, batch: dict[str, Any], index: int) -> Any:
        self.seen += batch["sample_index"].tolist()
        if index == self.changed_at:
            self.trainer.accumulate_grad_batches = 4
        loss = sum(layer(torch.ones(1)).sum() for layer in self.layers)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        if self.automatic_optimization:
            return torch.optim.SGD(self.parameters(), lr=0.1)
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers]


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(write_config(write_datasets(tmp_path) / "run.yaml", seq_len=16, outputs={"sample_index": True}))


def trainer(**options: Any) -> Any:
    common = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    return pl.Trainer(**common, enable_progress_bar=False, enable_model_summary=False, **options)


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_loaders_made_in_every_epoch_go_on(config: str, manual: bool) -> None:
    model, epoch = Model(manual), 2 * MICRO
    data = ConceptDataModule(config, micro_batch_size=MICRO, global_batch_size=MICRO, epoch_samples=epoch)
    made = trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1)
    made.fit(model, datamodule=data)
    made.fit_loop.max_epochs = 4
    made.fit(model, datamodule=data)
    assert model.seen == list(range(4 * epoch))
    assert data.loader is not None
    assert data.loader.consumed_samples == 4 * epoch


def test_accumulation_that_changes(config: str) -> None:
    model = Model(changed_at=4)
    data = ConceptDataModule(config, micro_batch_size=MICRO, global_batch_size=2 * MICRO)
    with raises(ConfigError, "Trainer(accumulate_grad_batches=...)", "4", "2"):
        trainer(max_steps=4, accumulate_grad_batches=2).fit(model, datamodule=data)
    assert data.loader is not None
    assert data.loader.consumed_samples == 4 * MICRO
