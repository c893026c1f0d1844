"""Loaders for trainers: consumption is what the trainer acknowledges, not what was handed out to it."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from conceptloader.base.checks import as_count
from conceptloader.base.strict import nearest
from conceptloader.batch.layout import BatchLayout
from conceptloader.blend import ConfigLike, open_blend
from conceptloader.errors import ConfigError, EndlessError, ResumeError
from conceptloader.order.progress.state import OrderState, saved_count
from conceptloader.order.schedule import BatchSchedule
from conceptloader.torch.collate import TensorBatch
from conceptloader.torch.loader import Loader, make_dataloader

POSITION = "consumed_samples"
IGNORED = -100
_STEP = "trainer_step"
_WHERE = "loader state"
_SLACK = 16  # micro batches beyond two steps that a trainer may read ahead of what it has acknowledged


class TrainedLoader:
    """A Loader for a trainer that reads ahead, or that saves in the middle of a step: it counts what was trained.

    Every batch holds the position behind it, `consumed_samples`: an int, in samples over all ranks. `acknowledge` with
    that number says that all before it is trained. The state is that of the last position acknowledged; each loop
    begins there, whatever was handed out before, and a loop that goes on beside a newer one is refused.

    epoch_samples: a loop ends at each multiple of it, and `len` counts its micro batches; by default the run is one
        epoch. The order runs through epochs of this kind: they divide nothing else.

    `pickle` and `deepcopy` give a loader at the position acknowledged. Raises ConfigError.
    """

    def __init__(self, loader: Loader, *, epoch_samples: int | None = None) -> None:
        if not isinstance(loader, Loader):
            raise ConfigError(
                f"TrainedLoader: found a {type(loader).__name__}, expected the Loader of make_dataloader; "
                "wrap a loader once, and let the trainer wrap nothing around it"
            )
        self.loader = loader
        self.epoch_samples = None if epoch_samples is None else as_count(epoch_samples, "epoch_samples")
        for _, size in loader.plan.schedule.rule:
            if self.epoch_samples is not None and self.epoch_samples % size:
                raise ConfigError(
                    f"epoch_samples: found {epoch_samples}, no multiple of the {size} samples of a step; "
                    f"set {self.epoch_samples // size * size or size}"
                )
        self._stand()

    def _stand(self, step: int | None = None) -> None:
        """Begin to count where the loader stands, after `step` steps of the trainer (as many as batches led here)."""
        rule, consumed = self.loader.plan.schedule.at(0, 0), self.loader.consumed_samples
        led_here = rule.consumed_at(rule.step_of(consumed)) == consumed
        self._schedule = rule.at(step, consumed) if step is not None else rule if led_here else None
        self._trained = self._handed_out = consumed
        self._batches: Iterator[TensorBatch] | None = None
        self._loop = 0

    @property
    def consumed_samples(self) -> int:
        """Samples over all ranks that the trainer has acknowledged."""
        return self._trained

    @property
    def steps(self) -> int | None:
        """Steps of the trainer behind `consumed_samples`; None where batches of the present sizes do not end."""
        return self.steps_at(self.consumed_samples)

    def steps_at(self, consumed_samples: int) -> int | None:
        """`steps` at another position; None also before the state that was loaded."""
        if self._schedule is None or consumed_samples < self._schedule.consumed:
            return None
        step = self._schedule.step_of(consumed_samples)
        return next((k for k in (step, step + 1) if self._position(k) == consumed_samples), None)

    def _position(self, step: int) -> int | None:
        """Samples behind `step` steps of the trainer."""
        if self._schedule is None or step < self._schedule.step:
            return None
        position, stop = self._schedule.consumed_at(step), self.loader.plan.stop
        return position if stop is None else min(position, stop)

    @property
    def step_samples(self) -> int:
        """Samples of the step that comes next, over all ranks."""
        return self.loader.plan.schedule.batch_size(self.consumed_samples)

    @property
    def micro_batches_per_step(self) -> int:
        """Micro batches of a rank in the step that comes next: what trainers call gradient accumulation."""
        return self.step_samples // self.loader.partition.group

    def check_accumulation(self, found: int, option: str) -> None:
        """Raise ConfigError unless the trainer accumulates `found` = micro_batches_per_step; `option` says so there."""
        if found != self.micro_batches_per_step:
            share = self.loader.partition
            raise ConfigError(
                f"{option}: found {found}, expected {self.micro_batches_per_step}: a step of {self.step_samples} "
                f"samples has so many micro batches of {share.micro_batch_size} on {share.dp_size} data-parallel "
                "ranks; change one of them"
            )

    def acknowledge(self, consumed_samples: int | None = None) -> None:
        """All samples before this position are trained: that of a batch, or by default of the last one handed out.

        Raises ConfigError for a position behind what was handed out, or before what was acknowledged.
        """
        position = self._handed_out if consumed_samples is None else as_count(consumed_samples, POSITION, 0)
        if not self._trained <= position <= self._handed_out:
            raise ConfigError(
                f"acknowledge: found {position} samples, expected {self._trained} (acknowledged before) to "
                f"{self._handed_out} (handed out in this loop); give the batch's own {POSITION}"
            )
        self._trained = position

    def acknowledge_step(self, step: int) -> None:
        """The trainer has made `step` steps since the beginning of the run: what they took is trained."""
        position = self._position(step)
        if position is None:
            self.check_step(step)
        self.acknowledge(position)

    def check_step(self, step: int) -> None:
        """Refuse to go on unless `step` steps of the trainer have consumed what this loader says: raises ResumeError.

        To be called when a checkpoint was loaded, and at the start.
        """
        if self.steps == step:
            return
        ours = "no whole number of steps" if self.steps is None else f"{self.steps} steps"
        taken, trained = self._position(step), self.consumed_samples
        risk = "" if taken is None else f": {taken} samples, of which some would be "
        risk += "" if taken is None else "repeated" if taken > trained else "skipped"
        raise ResumeError(
            f"the trainer has made {step} steps{risk}, but this loader stands at {trained} samples, {ours} of "
            f"{self.step_samples}. Resume trainer and loader from one checkpoint that holds the state of both, with "
            "the global batch size of the run"
        )

    def __len__(self) -> int:
        """Micro batches of this rank in an epoch, consumed ones included. Raises EndlessError, a TypeError."""
        if self.epoch_samples is None:
            return len(self.loader)
        return self.epoch_samples // self.loader.partition.group

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        """For torch's DataLoader, which takes it for a dataset."""
        return self.loader[index]

    def __iter__(self) -> Iterator[TensorBatch]:
        """The micro batches after the position acknowledged, to the end of its epoch.

        Raises ConfigError for a loop after the end of the run, and when the trainer takes ever more batches without
        acknowledging any: resumed, it would train them again.
        """
        self._loop += 1
        loop, stop, begin = self._loop, self.loader.plan.stop, self._loop_begin()
        if stop is not None and begin >= stop and loop > 1:
            raise ConfigError(
                f"the run has ended at {begin} samples, and another epoch would read nothing; raise "
                "num_samples, give epoch_samples, or let the trainer make one epoch"
            )
        if self._batches is None or self._handed_out != begin:
            self.loader.load_state_dict(self.loader.state_at(begin))
            self._handed_out, self._batches = begin, iter(self.loader)
        end = None if self.epoch_samples is None else (begin // self.epoch_samples + 1) * self.epoch_samples
        while end is None or self._handed_out < end:
            self._check_turn(loop)
            batches, self._batches = self._batches, None  # an iterator that raised yields nothing more
            batch = next(batches, None)
            if batch is None:
                return
            self._handed_out, self._batches = self.loader.consumed_samples, batches
            yield {**batch, POSITION: self._handed_out}

    def _loop_begin(self) -> int:
        """Where the next loop begins: at what is trained."""
        return self.consumed_samples

    def _check_turn(self, loop: int) -> None:
        if self._loop != loop:
            raise ConfigError(
                "this loop was ended by a newer one over the same loader; each consumer needs a loader of its own"
            )
        trained = self.consumed_samples
        ahead = (self._handed_out - trained) // self.loader.partition.group
        if ahead >= 2 * self.micro_batches_per_step + _SLACK:
            raise ConfigError(
                f"{ahead} micro batches were handed out since the last one that was acknowledged, at {trained} "
                f"samples: nobody tells this loader what is trained. {self.remedy}"
            )

    remedy = f"Call acknowledge(batch['{POSITION}']) after each step, or use the adapter of your trainer"

    def state_dict(self) -> dict[str, str]:
        """The state after the last batch acknowledged: one string, equal on all ranks."""
        leaf = self.loader.state_at(self.consumed_samples)
        if self.steps is None:
            return leaf
        saved = OrderState.read(leaf, _WHERE)
        return dataclasses.replace(saved, more={**saved.more, _STEP: self.steps}).leaf()

    def load_state_dict(self, state: Mapping[str, Any], *, allow_changed: Collection[str] = ()) -> None:
        """Go on where `state` was saved, by a TrainedLoader or a Loader; see Loader.load_state_dict."""
        more = OrderState.read(state, _WHERE).more
        step = saved_count(more, _STEP, _WHERE) if _STEP in more else None
        self.loader.load_state_dict(state, allow_changed=allow_changed)
        self._stand(step)

    def set_weights(self, weights: Mapping[str, float], at: int | None = None, **options: Any) -> int:
        """See Loader.set_weights: behind all that was handed out, trained or not."""
        return self.loader.set_weights(weights, at, **options)

    def close(self) -> None:
        """End the threads of the current loop. The loader stays usable."""
        self.loader.close()
        self._batches = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None}


class EvaluationLoader:
    """The same micro batches in every loop, from the first one on; it has an end, and no state to save.

    config: with order sequential, or with `num_samples`. options: as for make_dataloader.

    Raises ConfigError if some rank would get a batch without rows, whose mean loss is no number.
    """

    def __init__(self, config: ConfigLike, **options: Any) -> None:
        self.loader = make_dataloader(config, **options)
        self.loader.measured = False
        share, end = self.loader.partition, self.loader.num_samples
        try:
            self._length = len(self.loader)
        except EndlessError as error:
            raise ConfigError(
                "evaluation: found a run without an end; set order: sequential, or num_samples"
            ) from error
        rest = (end or 0) % share.group
        if self.loader.plan.tail == "short" and 0 < rest <= share.offsets(share.dp_size - 1)[0]:
            raise ConfigError(
                f"evaluation: {end} samples in micro batches of {share.micro_batch_size} on {share.dp_size} ranks "
                f"leave {rest} for the last one, none for some ranks, whose mean would be no number; set num_samples "
                f"to {(end or 0) - rest}, another micro_batch_size, or tail to drop or wrap"
            )

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[TensorBatch]:
        self.loader.load_state_dict(self.loader.state_at(0))
        return iter(self.loader)

    def __getitem__(self, index: Any) -> Any:
        return self.loader[index]

    def close(self) -> None:
        """End the threads of the current loop."""
        self.loader.close()


def make_trained_loader(
    config: ConfigLike, *, global_batch_size: int | BatchSchedule, epoch_samples: int | None = None, **options: Any
) -> TrainedLoader:
    """make_dataloader's Loader, as a TrainedLoader."""
    loader = make_dataloader(open_blend(config), global_batch_size=global_batch_size, **options)
    return TrainedLoader(loader, epoch_samples=epoch_samples)


def check_tensors(names: Collection[str], layout: BatchLayout) -> None:
    """Raise ConfigError if a model is to get, by an option `tensors`, what no batch has, or no weights of its loss."""
    layout.outputs.check_weights(names, "tensors")
    known = layout.names()
    for name in names:
        if name not in known:
            raise ConfigError(f"tensors: no {name!r} in a batch{nearest(name, known)}")


def trained_labels(batch: TensorBatch) -> torch.Tensor:
    """The batch's labels, int64 [B, S], with -100, which losses ignore, where its loss_mask is 0."""
    labels: torch.Tensor = batch["labels"]
    return labels.masked_fill(batch["loss_mask"] == 0, IGNORED) if "loss_mask" in batch else labels
