"""Counts of Lightning's Trainer that are not what they seem: no sample is trained twice for them."""

import pytest
import torch
import yaml

from conceptloader.errors import ConfigError
from tests.raises import cells, raises

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed: `make test-trainers` has it")
from conceptloader.integrations.lightning_lm import ConceptDataModule  # noqa: E402

MICRO = 4

# Of a data module without validation data.
pytestmark = pytest.mark.filterwarnings("error:You passed in a `val_dataloader`")


class Model(pl.LightningModule):
    """manual: two optimizers, whose steps global_step counts. changed_at: the batch that changes the accumulation."""

    def __init__(self, manual=False, changed_at=-1):
        super().__init__()
        self.layers, self.seen = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]), []
        self.automatic_optimization, self.changed_at = not manual, changed_at

    def training_step(self, batch, index):
        self.seen += batch["sample_index"].tolist()
        if index == self.changed_at:
            self.trainer.accumulate_grad_batches = 4
        loss = sum(layer(torch.ones(1)).sum() for layer in self.layers)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def configure_optimizers(self):
        if self.automatic_optimization:
            return torch.optim.SGD(self.parameters(), lr=0.1)
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers]


def trainer(**options):
    common = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    return pl.Trainer(enable_progress_bar=False, enable_model_summary=False, **{**common, **options})


@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_loaders_made_in_every_epoch_go_on(config, manual):
    model, epoch = Model(manual), 2 * MICRO
    data = ConceptDataModule(config, micro_batch_size=MICRO, global_batch_size=MICRO, epoch_samples=epoch)
    made = trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1)
    made.fit(model, datamodule=data)
    made.fit_loop.max_epochs = 4
    made.fit(model, datamodule=data)
    assert model.seen == list(range(4 * epoch))
    assert data.loader.consumed_samples == 4 * epoch


def test_accumulation_that_changes(config):
    model = Model(changed_at=4)
    data = ConceptDataModule(config, micro_batch_size=MICRO, global_batch_size=2 * MICRO)
    with raises(ConfigError, "Trainer(accumulate_grad_batches=...)", "4", "2"):
        trainer(max_steps=4, accumulate_grad_batches=2).fit(model, datamodule=data)
    assert data.loader.consumed_samples == 4 * MICRO


class Validated(Model):
    def __init__(self):
        super().__init__()
        self.validated_at = []

    def validation_step(self, batch, index):
        self.validated_at.append(self.trainer.global_step)


# The third one's last epoch is a half.
ENDS = yaml.safe_load("""
- [2, null, {}, [3]]
- [1, 8, {}, [2, 4, 6]]
- [1, 16, {}, [4, 6]]
- [1, null, {every_n_train_steps: 4}, [6]]
""")


@pytest.mark.parametrize(("accumulate", "epoch", "saves", "validated_at"), ENDS)
def test_num_samples_ends_the_run(config, tmp_path, caplog, accumulate, epoch, saves, validated_at):
    """With the Trainer's defaults, checkpoints at the end of epochs among them; once more, and with more samples."""
    held_out = {"seq_len": 16, "order": "sequential", "datasets": {"code": {"path": str(tmp_path / "code")}}}

    def fit(num_samples, ckpt=None):
        model, saver = Validated(), pl.callbacks.ModelCheckpoint(tmp_path, save_last=True, **saves)
        made = trainer(
            enable_checkpointing=True, callbacks=[saver], accumulate_grad_batches=accumulate, num_sanity_val_steps=0
        )
        data = ConceptDataModule(
            config, micro_batch_size=MICRO, global_batch_size=MICRO * accumulate, num_samples=num_samples,
            epoch_samples=epoch, val=held_out, val_options={"num_samples": MICRO},
        )  # fmt: skip
        made.fit(model, datamodule=data, ckpt_path=ckpt)
        data.loader.check_step(made.global_step)
        return model, torch.load(saver.last_model_path or str(ckpt), weights_only=False)["global_step"]

    model, saved = fit(24)
    assert (model.seen, model.validated_at) == (list(range(24)), validated_at)
    assert f"ends this run after {6 // accumulate} steps, and the Trainer plans" in caplog.text
    last = str(tmp_path / "last.ckpt")
    if not saves:
        assert saved == 6 // accumulate
        assert fit(24, last)[0].seen == []
    assert fit(48, last)[0].seen == list(range(MICRO * accumulate * saved, 48))


CUTS = """
{limit_train_batches: 4} | epochs of 4 micro batches | set epoch_samples=16
{limit_train_batches: 0.67} | epochs of 4 micro batches | set epoch_samples=16
{overfit_batches: 2} | 2 | split
{overfit_batches: 0.5} | 0.5 | split
"""


@pytest.mark.parametrize(("options", "found", "fix"), cells(CUTS))
def test_epochs_that_the_trainer_cuts_are_refused(config, options, found, fix):
    """Silently, an epoch would have fewer steps than planned, or each epoch other samples than those to overfit."""
    options = yaml.safe_load(options)
    data = ConceptDataModule(config, micro_batch_size=MICRO, global_batch_size=2 * MICRO, epoch_samples=6 * MICRO)
    made = trainer(max_epochs=3, accumulate_grad_batches=2, **options)
    with raises(ConfigError, f"Trainer({next(iter(options))}=...)", found, fix=fix):
        made.fit(model := Model(), datamodule=data)
    assert model.seen == []


def test_steps_that_the_run_does_not_have(config):
    data = ConceptDataModule(config, micro_batch_size=MICRO, global_batch_size=MICRO, num_samples=24)
    for name, most in (("min_steps", 6), ("min_epochs", 1)):
        with raises(ConfigError, f"Trainer({name}=...)", str(most + 1), f"at most {most}"):
            trainer(**{name: most + 1}).fit(Model(), datamodule=data)
