"""Loaders for trainers: samples are consumed when the trainer acknowledges them, not when they are yielded."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from conceptloader.base.checks import as_count
from conceptloader.base.strict import unknown
from conceptloader.config import Blend, ConfigLike
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.loader.batch.layout import BatchLayout
from conceptloader.loader.batch.loader import LOADER
from conceptloader.loader.torch.collate import TensorBatch
from conceptloader.loader.torch.loader import Loader
from conceptloader.order.schedule import BatchSchedule
from conceptloader.run.entry import Entry

POSITION = "consumed_samples"
IGNORED = -100
_SLACK = 16  # micro batches beyond two steps that a trainer may prefetch without acknowledging them


class TrainedLoader(Loader):
    """A Loader for a trainer that prefetches, or that saves mid-step: it counts what was trained.

    Every batch holds the position after it, `consumed_samples`: an int, in samples over all ranks. `acknowledge` with
    that number says that all samples before it are trained. The state is that of the last position acknowledged; each
    loop begins there, whether or not more was yielded. A loop that continues after a newer one has begun raises
    ConfigError.

    config, options: as for make_dataloader. `pickle` and `deepcopy` give a loader at the position acknowledged.

    Args:
        config: As for make_dataloader.
        options: As for make_dataloader.

    Raises:
        ConfigError: Also in a loop, when the trainer takes more and more batches without acknowledging any: resumed, it
            would train them again.
    """

    entry = replace(LOADER, name="TrainedLoader", keys=frozenset({POSITION}))
    remedy = f"Call acknowledge(batch['{POSITION}']) after each step, or use the adapter of your trainer"

    def __init__(self, config: ConfigLike, **options: Any) -> None:
        self._loop = 0
        super().__init__(config, **options)
        self.run.passes, self.run.acknowledges = False, True

    @property
    def step_samples(self) -> int:
        """Samples of the step that comes next, over all ranks."""
        return self.plan.schedule.batch_size(self.consumed_samples)

    @property
    def micro_batches_per_step(self) -> int:
        """Micro batches of a rank in the step that comes next: what trainers call gradient accumulation."""
        return self.step_samples // self.run.partition.group

    def position_after(self, micro_batches: int) -> int:
        """Samples over all ranks after so many micro batches of each, counted from where this loader began."""
        position = self.run.began + micro_batches * self.run.partition.group
        return position if self.plan.stop is None else min(position, self.plan.stop)

    def check_accumulation(self, found: int, option: str) -> None:
        """Raise ConfigError unless the trainer accumulates `found` = micro_batches_per_step; `option` says so there."""
        if found != self.micro_batches_per_step:
            share = self.run.partition
            raise ConfigError(
                option,
                str(found),
                f"{self.micro_batches_per_step}: a step of {self.step_samples} samples has that many micro batches of "
                f"{share.micro_batch_size} on {share.dp_size} data-parallel ranks",
                f"set {option} to {self.micro_batches_per_step}, or change global_batch_size or micro_batch_size",
            )

    def acknowledge(self, consumed_samples: int | None = None) -> None:
        """All samples before this position are trained: that of a batch, or by default of the last one yielded.

        Raises:
            ConfigError: For a position after what was yielded, or before what was acknowledged.
        """
        run = self.run
        run.acknowledge(run.yielded if consumed_samples is None else as_count(consumed_samples, POSITION, 0))

    def resize(self, micro_batch_size: int, global_batch_size: int) -> None:
        """Between two steps: yield batches of other sizes from here on, in the same run, with its log and mixing.

        Raises:
            ConfigError: For sizes that do not fit; nothing is changed then.
        """
        partition = replace(self.run.partition, micro_batch_size=micro_batch_size)
        self.run.resize(partition, BatchSchedule.constant(global_batch_size))
        self.close()

    def acknowledge_step(self, step: int) -> None:
        """The trainer has made `step` steps since the beginning of the run: what they took is trained."""
        position = self.run.position(step)
        if position is None:
            self.check_step(step)
        self.acknowledge(position)

    def check_step(self, step: int) -> None:
        """Raise ResumeError unless `step` steps of the trainer have consumed as many samples as this loader says.

        To be called when a checkpoint was loaded, and at the start.
        """
        if self.steps == step:
            return
        trained = self.consumed_samples
        ours = "no whole number of steps" if self.steps is None else f"{self.steps} steps"
        lost = "repeated" if step > self.plan.schedule.step_of(trained) else "skipped"
        raise ResumeError(
            "loader state",
            f"the trainer has made {step} steps, but this loader stands at {trained} samples, {ours} (the next takes "
            f"{self.step_samples}): samples would be {lost}",
            fix="resume trainer and loader from one checkpoint that holds the state of both, with the global batch "
            "size of the run; where another trainer began it, set continue_from in the configuration",
        )

    def __iter__(self) -> Iterator[TensorBatch]:
        """The micro batches after the position acknowledged, to the end of its epoch; see Loader."""
        self._loop += 1
        loop, batches = self._loop, super().__iter__()
        while True:
            self._check_turn(loop)
            batch = next(batches, None)
            if batch is None:
                return
            yield TensorBatch(batch, **{POSITION: self.run.yielded})

    def _check_turn(self, loop: int) -> None:
        if self._loop != loop:
            raise ConfigError(
                "Loader",
                "a loop that was ended by a newer one over the same loader",
                "one loop at a time",
                "make a loader for each consumer: make_dataloader(...)",
            )
        trained = self.consumed_samples
        ahead = (self.run.yielded - trained) // self.run.partition.group
        if ahead >= 2 * self.micro_batches_per_step + _SLACK:
            raise ConfigError(
                "Loader",
                f"{ahead} micro batches since the last one that was acknowledged, at {trained} samples",
                "an acknowledgement of each: this loader is not told what is trained",
                self.remedy,
            )


EVALUATION = Entry(
    name="an evaluation", carries=frozenset({"threads", "pin_memory"}), fix="omit it: this is no training"
)


class _Evaluated(Loader):
    """Each loop begins at the first sample, and none of its batches is one of a training."""

    entry = EVALUATION

    def __init__(self, config: ConfigLike, **options: Any) -> None:
        super().__init__(config, **options)
        self.run.passes = True


class EvaluationLoader:
    """The same micro batches in every loop, from the first one on; it has an end, and no state to save.

    Args:
        config: With order sequential, or with `num_samples`.
        options: As for make_dataloader; by default no sample is dropped at the end (last_batch "partial"), where ranks
            may have fewer rows or none: divide sums over all ranks by counts, as TokenMean does.

    Raises:
        ConfigError: If a shuffled order would have some windows twice and others not at all.
    """

    def __init__(self, config: ConfigLike, **options: Any) -> None:
        self.loader = _Evaluated(config, **{"last_batch": "partial", **options})
        end = self.loader.run.num_samples
        if end is None:
            raise ConfigError(
                "evaluation", "a run without an end", "a run with an end", "set order: sequential, or num_samples"
            )
        check_each_once(self.loader.blend, end, "evaluation")

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[TensorBatch]:
        return iter(self.loader)

    def __getitem__(self, index: Any) -> Any:
        return self.loader[index]

    def close(self) -> None:
        """End the threads of the current loop."""
        self.loader.close()


def check_each_once(blend: Blend, samples: int, option: str) -> None:
    """Raise ConfigError unless an evaluation of so many samples reads each window once, or fewer of them.

    Also if its configuration says where a run is continued.
    """
    if blend.config.continue_from is not None:
        raise ConfigError(
            "continue_from",
            f"in the configuration of {option}, which is no run",
            "a training, which alone is continued",
            "omit continue_from",
        )
    order = blend.order
    order.check_run(samples)
    sizes = zip(order.names, order.sizes, order.counts(samples), strict=True)
    if repeated := [f"{given} of {name}, which has {size}" for name, size, given in sizes if given > size]:
        raise ConfigError(
            option,
            f"{samples} samples in a shuffled order, that is {', '.join(repeated)}",
            "each window once: now some would count twice, and others not at all",
            "set order: sequential, which reads each once, or a smaller num_samples",
        )


def check_tensors(names: Collection[str], layout: BatchLayout, entry: Entry, option: str = "model_inputs") -> None:
    """Raise ConfigError if a model is to get, by an option, what no batch has, lists, or no weights of its loss.

    Also for names that the entry gives to arrays of its own.
    """
    layout.outputs.check_weights(names, option)
    known = layout.names()
    for name in names:
        if name in entry.keys:
            raise ConfigError(
                option,
                f"{name}, which {entry.name} gives the model itself",
                "names of further tensors",
                f"omit {name} from {option}: the batch's would take its place",
            )
        if name not in known:
            raise unknown(option, name, known, "key of a batch")
    for track in layout.tracks:
        if track.decoded and f"{track.name}_records" in names:
            raise ConfigError(
                option,
                f"{track.name}_records, lists of Python objects",
                "names of tensors",
                f"omit it from {option}, or set tracks.{track.name}.layout: padded",
            )


def trained_labels(batch: Mapping[str, Any], loader: Loader | None = None, before: int = 0) -> torch.Tensor:
    """The batch's labels, int64 [B, S], with -100, which losses ignore, where its loss_mask is 0.

    And in rows that pad the last batch of a loader with last_batch="wrap"; `before`: the position before this batch.
    """
    labels: torch.Tensor = batch["labels"]
    if "loss_mask" in batch:
        labels = labels.masked_fill(batch["loss_mask"] == 0, IGNORED)
    if loader is not None:
        share, end = loader.run.partition, loader.run.num_samples
        if end is not None and before + share.group > end:
            rows = torch.from_numpy(share.offsets(loader.dp_rank).astype("int64"))
            labels = labels.masked_fill((rows >= end - before)[:, None], IGNORED)
    return labels
