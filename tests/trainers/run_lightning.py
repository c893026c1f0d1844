"""A run of Lightning, for tests.ranks."""

import logging
import os
import warnings

import torch
import torch._dynamo  # which optimizers import; here, once for all launches

import conceptloader as cl
from conceptloader.integrations.lightning_lm import ConceptDataModule
from conceptloader.integrations.lightning_lm.data import pl
from tests.trainers import values

warnings.filterwarnings("ignore")
logging.getLogger(pl.__name__).setLevel(logging.ERROR)


class Model(pl.LightningModule):
    """As docs/trainers/lightning.md trains and evaluates, with weights."""

    def __init__(self, launch):
        super().__init__()
        self.launch, self.tiny = launch, values.Tiny()
        self.trained, self.validated = [], []

    def losses(self, batch):
        return values.weighted(self.tiny(batch["input_ids"], batch["position_ids"]), batch)

    def training_step(self, batch, index):
        self.launch.record(self.trainer.global_step, batch["sample_index"])
        loss = cl.token_mean(self.losses(batch), batch)
        self.log("loss", loss.detach(), on_step=False, on_epoch=True, batch_size=len(batch["labels"]), sync_dist=True)
        return loss

    def on_validation_epoch_start(self):
        self.mean = cl.TokenMean()

    def validation_step(self, batch, index, dataloader_idx=0):
        self.launch.record(self.trainer.global_step, batch["sample_index"], f"val{dataloader_idx}")
        self.mean.add(self.losses(batch), batch)

    def on_train_epoch_end(self):
        self.trained.append(float(self.trainer.callback_metrics.get("loss", 0)))

    def on_validation_epoch_end(self):
        self.log("val", self.mean.finish(self.device), sync_dist=True)
        if not self.trainer.sanity_checking:
            self.validated.append(float(self.trainer.callback_metrics["val"]))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return {k: v for k, v in batch.items() if k != "consumed_samples" or not self.launch.options.get("drop")}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=values.RATE)


class Saver(pl.Callback):
    """Writes a checkpoint after a step, or one micro batch later."""

    def __init__(self, launch):
        self.launch, self.due = launch, False

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        before, self.due = self.due, trainer.global_step == self.launch.save_at
        if self.due and before == self.launch.mid and not (self.launch.path / f"saved{self.launch.number}").exists():
            trainer.save_checkpoint(self.launch.path / "last.ckpt")
            (self.launch.path / f"saved{self.launch.number}").touch()


def train(launch):
    """With an option `values` each step is an epoch, with its validation."""
    options, valued = launch.options, "values" in launch.options
    scheduled = [pl.callbacks.GradientAccumulationScheduler({1: 2})] if "scheduled" in options else []
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(
        accelerator="cpu", devices=launch.ranks, strategy="ddp" if launch.ranks > 1 else "auto",
        accumulate_grad_batches=launch.accumulate, max_steps=launch.steps, callbacks=[Saver(launch), *scheduled],
        max_epochs=options.get("epochs", -1), num_sanity_val_steps=1, limit_train_batches=options.get("limit"),
        **quiet,
    )  # fmt: skip
    model = Model(launch)
    ckpt = str(launch.path / "last.ckpt") if launch.resume else None
    ends = {} if launch.ahead else {"num_samples": options.get("num_samples", launch.batch * 100)}
    if launch.bare:
        rank = int(os.environ["RANK"])
        loader = cl.make_dataloader(
            launch.config, dp_rank=rank, dp_size=launch.ranks, micro_batch_size=launch.micro,
            global_batch_size=launch.batch, **ends,
        )  # fmt: skip
        trainer.fit(model, loader, ckpt_path=ckpt)
        return
    val = {"a": launch.valid, "b": launch.valid} if launch.valid else None
    val_options, epoch = {"last_batch": "drop"}, options.get("epoch_samples")
    if valued:
        val, epoch = launch.valid, launch.batch
        val_options = {"micro_batch_size": values.eval_batch(launch), "num_samples": values.HELD_OUT}
    data = ConceptDataModule(
        launch.config, micro_batch_size=launch.micro, global_batch_size=options.get("batch", launch.batch),
        epoch_samples=epoch, run_log=launch.out, allow_changed=options.get("allow_changed", ()), val=val,
        val_options=val_options, **ends,
    )  # fmt: skip
    if "package" in options:  # whose Trainer says this of itself, and assigns itself like this
        data.trainer = type("Trainer", (), {"__module__": options["package"]})()
    trainer.fit(model, datamodule=data, ckpt_path=ckpt)
    if valued and trainer.is_global_zero:
        fresh, found = values.Tiny(), (model.trained, model.validated)
        values.compare(launch, model.tiny, fresh, values.mean_apart, *found, True)
