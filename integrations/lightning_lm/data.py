"""The data of a Lightning run: its loaders, and the callback that tells them what was trained.

Lightning asks a loader for its state whenever a checkpoint is written, also between two micro batches of a step. Then
the gradients of that step are not saved, so that the state, and Lightning's own count of batches, go back to its start.
"""

import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, repeat
from typing import Any

from conceptloader.base.packages import imported
from conceptloader.config import ConfigLike, open_blend
from conceptloader.errors import ConfigError
from conceptloader.loader.torch.losses import DatasetLosses
from conceptloader.loader.torch.trained import POSITION, EvaluationLoader, TrainedLoader

logger = logging.getLogger(__name__)
# Two packages have the same code, but each takes its own classes only: the one that was imported before, or can be.
_NAMES = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
_CHOSEN = next((name for name in _NAMES if name in sys.modules), [*_NAMES][find_spec("lightning") is None])
with imported("lightning_lm: lightning", "pip install lightning", _NAMES[_CHOSEN]):
    pl: Any = import_module(_CHOSEN)


class LightningLoader(TrainedLoader):
    """Its length is in Lightning's count of micro batches, which steps where accumulate_grad_batches divides it.

    Micro batches before a resume count as those of as many steps of the present size. Where nothing is left, the length
    is 0, so that `fit` does nothing.
    """

    entry = replace(TrainedLoader.entry, name="Lightning")
    loggers: Sequence[Any] = ()  # of the Trainer
    before = 0  # micro batches that Lightning does not count

    def track(self, step: int, values: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics(values, step=step)

    @property
    def micro_batches(self) -> int:
        """Of a rank, up to what is trained."""
        return (self.steps or 0) * self.micro_batches_per_step

    @property
    def has_ended(self) -> bool:
        """Whether everything up to num_samples is trained."""
        return self.plan.stop is not None and self.consumed_samples >= self.plan.stop

    def __len__(self) -> int:
        length, begun = super().__len__() - self.before, self.plan.schedule.consumed
        steps = self.run.steps_at(begun)
        if self.run.epoch_samples is not None or steps is None:
            return length
        return length - begun // self.run.partition.group + steps * self.micro_batches_per_step


class ConceptDataModule(pl.LightningDataModule):
    """Training and validation data of conceptloader for Trainer.fit, which resumes exactly from any checkpoint.

    Args:
        config: As for make_dataloader.
        micro_batch_size: Samples of a rank in one training_step.
        global_batch_size: Samples of an optimizer step; Trainer(accumulate_grad_batches=...) has to fit it.
        num_samples: End of the run.
        epoch_samples: Samples of an epoch of Lightning; by default the run is one epoch.
        val: A configuration to validate on, or several by name, in which order dataloader_idx counts them. Each
            validation reads them from the beginning to the end: order sequential, or num_samples in val_options.
        val_options: As for make_dataloader; micro_batch_size is that of training unless it is given.
        run_log: Directory of the checkpoints, to log this start there.
        allow_changed: As for make_dataloader.

    A batch holds `consumed_samples` in addition to its tensors; keep it where hooks change the batch.
    """

    def __init__(
        self,
        config: ConfigLike,
        *,
        micro_batch_size: int,
        global_batch_size: int,
        num_samples: int | None = None,
        epoch_samples: int | None = None,
        val: ConfigLike | Mapping[str, ConfigLike] | None = None,
        val_options: Mapping[str, Any] | None = None,
        run_log: str | None = None,
        allow_changed: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.config, self.run_log = config, run_log
        self._options: dict[str, Any] = {
            "micro_batch_size": micro_batch_size,
            "global_batch_size": global_batch_size,
            "num_samples": num_samples,
            "epoch_samples": epoch_samples,
            "allow_changed": allow_changed,
            "check_ranks": True,
        }
        several = isinstance(val, Mapping) and "datasets" not in val
        self._val = dict(val) if several else {} if val is None else {"val": val}  # type: ignore[arg-type]
        if not self._val and type(self).val_dataloader is ConceptDataModule.val_dataloader:
            # Lightning warns of a val_dataloader for whose batches the model has no validation_step.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]
        self._val_options = {"micro_batch_size": micro_batch_size, **(val_options or {})}
        self.loader: LightningLoader | None = None
        self.acknowledge = Acknowledge(self)
        self.saved: Mapping[str, Any] | None = None  # of the checkpoint of this fit: state of the loader
        self.in_epoch = False  # the checkpoint is not of the end of an epoch

    @property
    def trainer(self) -> Any:
        """The Trainer that has been given this module."""
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        if not isinstance(trainer, pl.Trainer | None):
            raise ConfigError(
                "ConceptDataModule",
                f"a Trainer of {type(trainer).__module__.partition('.')[0]}",
                f"one of {_CHOSEN}, whose classes are others",
                f"import Trainer, LightningModule and callbacks from {_CHOSEN}, or import the other "
                "before lightning_lm",
            )
        self._trainer = trainer

    @property
    def _ranks(self) -> dict[str, int]:
        found = self.trainer.distributed_sampler_kwargs or {"num_replicas": 1, "rank": 0}
        return {"dp_size": found["num_replicas"], "dp_rank": found["rank"]}

    def setup(self, stage: str) -> None:
        """Put the callback before all others, some of which may save."""
        callbacks, scheduler = self.trainer.callbacks, pl.callbacks.GradientAccumulationScheduler
        if stage == "fit" and any(isinstance(callback, scheduler) for callback in callbacks):
            raise ConfigError(
                "callbacks",
                "a GradientAccumulationScheduler",
                "steps of one size, global_batch_size",
                "set Trainer(accumulate_grad_batches=...), and for another size resume with another global_batch_size",
            )
        if self.acknowledge not in callbacks:
            callbacks.insert(0, self.acknowledge)
        self.saved = None

    def train_dataloader(self) -> TrainedLoader:
        """The loader of this rank; where the trainer has trained with this one before, it resumes there."""
        before, self.loader = self.loader, LightningLoader(self.config, **self._options, **self._ranks)
        self.loader.remedy = "Lightning removed the callback of ConceptDataModule, or a hook dropped the batch's number"
        self.loader.loggers = self.trainer.loggers
        saved, in_epoch, self.saved, self.in_epoch = self.saved, self.in_epoch, None, False
        if before is not None:
            if saved is None and before.steps == steps_made(self.trainer):
                saved = before.state_dict()
            before.close()
        if saved is not None:
            self.loader.load_state_dict(saved)
        self.loader.run.directory = self.run_log  # where the launch is logged once Lightning has taken a batch
        if self.loader.has_ended:
            self.loader.before = len(self.loader)
        elif not in_epoch and self.loader.run.epoch_samples is None:  # what is left is an epoch of its own
            self.loader.before = self.loader.micro_batches
        return self.loader

    def val_dataloader(self) -> list[EvaluationLoader]:
        return [EvaluationLoader(open_blend(c), **self._val_options, **self._ranks) for c in self._val.values()]

    @property
    def losses(self) -> DatasetLosses:
        """To which training_step adds those of its batch: `losses.add(losses, batch)`, for `mixing` and `metrics`."""
        if self.loader is None:
            raise ConfigError(
                "ConceptDataModule",
                "losses before training",
                "losses of a training",
                "call train_dataloader() before observe",
            )
        return self.loader.losses

    def teardown(self, stage: str) -> None:
        if self.loader is not None:
            self.loader.close()


def steps_made(trainer: Any) -> int:
    """Optimizer steps since the beginning of the run, as Lightning has counted them."""
    # With manual optimization, global_step counts the steps of all optimizers, and each batch is a step.
    automatic = trainer.lightning_module.automatic_optimization
    return int(trainer.global_step if automatic else trainer.fit_loop.epoch_loop.batch_progress.total.started)


class Acknowledge(pl.Callback):
    """Tells the loader which steps are done, and the checkpoint. ConceptDataModule brings it along."""

    def __init__(self, data: ConceptDataModule) -> None:
        self._data, self._logged = data, None  # type: tuple[ConceptDataModule, LightningLoader | None]

    @property
    def _loader(self) -> LightningLoader:
        if self._data.loader is None:
            raise ConfigError(
                "ConceptDataModule",
                "no request for its train_dataloader by Lightning",
                "the module as the Trainer's data",
                "pass it as datamodule= to Trainer.fit",
            )
        return self._data.loader

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Take the loader's state, which Lightning itself gives to a loader only within an epoch."""
        fit = checkpoint["loops"]["fit_loop"]
        counts = fit["epoch_progress"]["current"]
        self._data.saved = next(iter(fit["state_dict"].pop("combined_loader", [])), None)
        self._data.in_epoch = counts["ready"] != counts["processed"] or trainer.max_steps != -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's position has to be the loader's; its count of batches becomes one of the present size."""
        loader, progress = self._loader, trainer.fit_loop.epoch_loop.batch_progress
        loader.check_accumulation(trainer.accumulate_grad_batches, "Trainer(accumulate_grad_batches=...)")
        loader.check_step(steps_made(trainer))
        self._check_epochs(trainer)
        if progress.total.ready:
            self._convert(progress)
        self._check_end(trainer)
        self._log_start(loader)
        # Without a length Lightning stays one batch ahead, which weights that are set after a step would miss.
        # From here on it takes this one from its iterator (which iter() would begin again), as all that follow.
        fetcher = trainer.fit_loop._data_fetcher
        ahead, fetcher.batches = getattr(fetcher, "batches", []), []
        fetcher.iterator = chain(ahead, map(next, repeat(fetcher.iterator)))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """With reload_dataloaders_every_n_epochs this is another loader."""
        self._loader.check_step(steps_made(trainer))
        self._log_start(self._loader)

    def _log_start(self, loader: LightningLoader) -> None:
        if self._data.run_log is not None and self._logged is not loader:
            self._logged = loader
            loader.log_start(self._data.run_log, loader.steps or 0)

    def _check_end(self, trainer: Any) -> None:
        """Compare the end of the data with what the Trainer was told of its own."""
        loader, epoch = self._loader, self._loader.run.epoch_samples
        steps, planned = loader.plan.stop_step, trainer.estimated_stepping_batches
        if steps is None or loader.plan.stop is None or not trainer.lightning_module.automatic_optimization:
            return  # without it, steps are of all optimizers
        epochs = trainer.current_epoch + 1 if epoch is None else -((loader.run.count_start - loader.plan.stop) // epoch)
        for name, least, most in ("min_steps", trainer.min_steps, steps), ("min_epochs", trainer.min_epochs, epochs):
            if (least or 0) > most:
                raise ConfigError(
                    f"Trainer({name}=...)",
                    str(least),
                    f"at most {most}: num_samples ends the run there",
                    f"raise num_samples, or lower {name}",
                )
        if steps < planned < float("inf") and trainer.is_global_zero:
            logger.warning(
                "num_samples ends this run after %d steps, and the Trainer plans %d (max_steps, max_epochs): a "
                "learning rate by trainer.estimated_stepping_batches will not reach its end; set max_steps=%d",
                steps, planned, steps,
            )  # fmt: skip

    def _check_epochs(self, trainer: Any) -> None:
        """Raise ConfigError unless epochs are those of the loader, and end with a whole step."""
        loader, position = self._loader, self._loader.consumed_samples
        batches: int | float = trainer.num_training_batches
        if trainer.overfit_batches:
            raise ConfigError(
                "Trainer(overfit_batches=...)",
                str(trainer.overfit_batches),
                "nothing: each epoch would read other samples",
                "omit overfit_batches, and train on few documents, by a split such as [0, 0.01] of each dataset",
            )
        epoch, a_step = loader.run.epoch_samples, loader.micro_batches_per_step
        if epoch is not None and (position - loader.run.count_start) % loader.step_samples:
            raise ConfigError(
                "global_batch_size",
                f"{loader.step_samples} at {position} samples",
                f"a size by which steps end with an epoch of {epoch} samples",
                "resume with the global_batch_size before, or where the new one divides the samples",
            )
        endless = epoch is None and loader.plan.stop is None
        limited = batches != (float("inf") if endless else len(loader))
        if limited and batches % a_step:
            raise ConfigError(
                "limit_train_batches",
                f"epochs of {batches} micro batches",
                f"a multiple of the {a_step} of a step: the last step would have fewer",
                f"set limit_train_batches={batches // a_step * a_step or a_step}",
            )
        if limited and epoch is not None and not trainer.fast_dev_run:
            raise ConfigError(
                "Trainer(limit_train_batches=...)",
                f"epochs of {batches} micro batches",
                f"{len(loader)}, those of epoch_samples={epoch}: the rest of them would be an epoch of its own",
                f"omit limit_train_batches, and set epoch_samples={int(batches) * loader.run.partition.group}",
            )

    def _convert(self, progress: Any) -> None:
        """Lightning steps where the micro batches of an epoch are a multiple of those of a step."""
        loader, epoch = self._loader, self._loader.run.epoch_samples
        current = progress.current.ready * loader.micro_batches // progress.total.ready
        if epoch is not None and current:
            group = loader.run.partition.group
            current = (loader.consumed_samples - loader.run.count_start - group) % epoch // group + 1
        for count, ready in (progress.current, current), (progress.total, loader.micro_batches):
            shift = ready - count.ready
            for name in ("ready", "started", "processed", "completed"):
                setattr(count, name, getattr(count, name) + shift)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A step is done with its last micro batch."""
        self._loader.check_accumulation(trainer.accumulate_grad_batches, "Trainer(accumulate_grad_batches=...)")
        if trainer.fit_loop._should_accumulate():
            return
        if not isinstance(batch, Mapping) or POSITION not in batch:
            raise ConfigError(
                "batch",
                f"no {POSITION!r} in it any more",
                "the number that the loader put there, which says what was trained",
                f"keep {POSITION} in hooks that change the batch, such as on_after_batch_transfer",
            )
        self._loader.acknowledge(batch[POSITION])
        self._loader.observe_step(pl_module.device)
        if self._loader.has_ended:
            # Lightning counts an epoch after its validation, which it would omit until there are min_epochs.
            trainer.should_stop, trainer.fit_loop.min_epochs = True, None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Micro batches of a step that is not done are read again: they do not count as done here either."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        loader = self._data.loader
        done = 0 if loader is None else loader.micro_batches
        begun = progress["total"]["ready"] - done
        for count in (progress["current"], progress["total"]) if begun > 0 else ():
            border = count["ready"] - begun
            count.update({name: min(value, border) for name, value in count.items()})
