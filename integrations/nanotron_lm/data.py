"""One data stage of nanotron: where it stands in the run's order, and what it has consumed.

The launcher and a custom script open it alike: `open_stage`, then `make_dataloader` of batches.py.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from conceptloader.config import Blend
from conceptloader.config.vocabulary import check_vocabulary
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.loader.batch.layout import Batch
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.loader.torch.agreement import GroupRanks, require_same
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.schedule import BatchSchedule
from conceptloader.run.entry import Entry
from conceptloader.run.observer import Observer
from conceptloader.run.training import TrainingRun

from . import losses
from .options import NanotronOptions
from .state import NAME, State

logger = logging.getLogger(__name__)

UNVERIFIED = "unverified"


NANOTRON = Entry(
    name="nanotron",
    carries=frozenset({"weights", "losses", "observers", "balance"}),
    allow="nanotron.allow_changed: {json}",
    fix="omit it",
)
OWN_SCRIPT = Entry(
    name="build_dataloader",
    fix="omit it, or train with nanotron main and its launcher, which calls back after each step",
)
"""Of a script that reports no steps."""


class StageDataset(Dataset[Any]):
    """The run in a data stage, and the account that nanotron keeps of it. Reads nothing by itself.

    Samples are counted from the first one of the run, over all data stages, and so are those of the blend.

    run: where it is. dp_rank: of this process. stage_start: samples before it. tokens: consumed in this stage, by
    dataset.
    """

    def __init__(
        self, run: TrainingRun, options: NanotronOptions, *, dp_rank: int, stage_start: int, tokens: Mapping[str, int]
    ) -> None:
        self.run, self.options, self.dp_rank, self.stage_start = run, options, dp_rank, stage_start
        self.tokens = {dataset: int(tokens.get(dataset, 0)) for dataset in run.blend.config.names}
        self.taken = run.yielded
        self.logs = False  # whether this rank logs metrics
        self.num_workers = 0
        self.reader: BatchReader | None = None  # None on a rank that needs no data
        self.losses: losses.StepLosses | None = None
        run.followers.append(self._follow)
        self.observers = run.watched(run.yielded, self.track)
        self.notes: list[tuple[Observer, int, Any, float]] = []  # of the micro batches of the step

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes, which only read."""
        return {**self.__dict__, "losses": None, "observers": []}

    @property
    def consumed(self) -> int:
        """Samples that are trained."""
        return self.run.trained

    def _follow(self, order: Any, start: int) -> None:
        if self.reader is not None:
            self.reader.follow(order)

    def __getitems__(self, samples: Sequence[int]) -> Batch | None:
        """The batch of these samples; None on a rank that needs no data."""
        if self.reader is None:
            return None
        self.run.check_reads(max(samples) + 1)
        return self.reader.read(np.array(samples, np.uint64))

    def __getitem__(self, sample: int) -> Batch | None:
        return self.__getitems__([sample])

    def took(self, seconds: float, mask: Any) -> None:
        """A micro batch was waited for. mask: of its labels, a tensor where this rank has it."""
        self.taken += self.run.partition.group
        batch = {"loss_mask": mask} if isinstance(mask, torch.Tensor) else {}
        self.notes += [(one, self.taken, one.read(batch), seconds) for one in self.observers]

    def track(self, step: int, values: dict[str, float]) -> None:
        """To nanotron's log and W&B."""
        if self.logs:
            named = {name.removeprefix("data/"): value for name, value in values.items()}
            losses.log(f"data at iteration {step + 1}", "data/", named)

    def set_weights(self, weights: Mapping[str, float], at: int | None = None, *, why: str = "") -> int:
        """Draw datasets in other proportions from the sample `at` on, by default from the step after the present one.

        To be called on every rank; see Loader.set_weights. Needs num_loading_workers: 0, since worker processes hold
        the order as it was. Returns: the sample from which on it holds. Raises ConfigError, and nothing is changed.
        """
        self.check_workers("set_weights")
        return self.run.set_weights(weights, at, why=why, ranks=GroupRanks())

    def check_workers(self, key: str) -> None:
        """Raise ConfigError where worker processes would keep the old weights: by the option, on all ranks alike."""
        if self.num_workers:
            raise ConfigError(
                key,
                f"num_loading_workers: {self.num_workers}",
                "0: worker processes would keep the old weights",
                "set num_loading_workers: 0 in data_stages[].data",
            )

    def state(self) -> State:
        """What a checkpoint needs."""
        return self.state_at(self.run.trained)

    def state_at(self, consumed: int) -> State:
        """What a checkpoint at a position needs."""
        stage = self.run.data_stage or ""
        order = self.run.state(consumed, data_stage=stage, data_stage_start=self.stage_start)
        return State(order=order, stage=stage, stage_start=self.stage_start)

    def get_consumption_stats(self) -> dict[str, dict[str, int]]:
        """Tokens consumed in this data stage, by dataset."""
        return {name: {"tokens": tokens} for name, tokens in self.tokens.items()}

    def update_consumption_metrics(self, start_idx: int, end_idx: int, sequence_length: int) -> None:
        """Count a step of end_idx - start_idx samples. Where it starts, nanotron counts over all stages."""
        run = self.run
        start, stop = run.trained, run.trained + end_idx - start_idx
        if run.steps_at(stop) is None:
            raise ConfigError(
                "nanotron",
                f"a step of {end_idx - start_idx} samples after {start}",
                f"{run.plan.schedule.batch_size(start)}, as were read: a checkpoint would name other samples",
                "resume from the last checkpoint with the batch sizes of the run",
            )
        members = run.blend.order.locate_many(np.arange(start, stop, dtype=np.uint64))[0]
        names = [member.dataset for member in run.blend.spec.members.values()]
        for member, count in zip(*np.unique(members, return_counts=True), strict=True):
            self.tokens[names[member]] += int(count) * sequence_length
        run.yielded_to(stop)
        for one, consumed, note, seconds in self.notes:  # now, as callbacks may call for all ranks
            one.yielded(consumed - 1, consumed, note, seconds, 0)
        self.notes.clear()
        if self.losses is not None:
            positions = run.partition.samples(start, stop, self.dp_rank)
            rows = torch.from_numpy(run.plan.dealt(positions.ravel()).reshape(positions.shape).astype(np.int64))
            datasets = torch.tensor([run.blend.config.names.index(name) for name in names])[members[rows - start]]
            batches = zip(datasets, rows, strict=True)
            self.losses.end_step(run, [{"dataset_id": one, "sample_index": index} for one, index in batches])

    def report(self, samples: int) -> dict[str, Any]:
        """Log what the coming `samples` will take from each dataset. Returns the same as data."""
        order, end = self.run.blend.order, self.consumed + samples
        before, after = order.counts(self.consumed), order.counts(end)
        plan = {}
        for name, first, last, size in zip(order.names, before, after, order.sizes, strict=True):
            if last > first:
                plan[name] = {"samples": last - first, "windows": size, "epochs": [first / size, last / size]}
                logger.info(
                    "%s: samples %d to %d of %d windows, %.4g of %d samples (epoch %.3f to %.3f)",
                    name, first, last, size, (last - first) / samples, samples, first / size, last / size,
                )  # fmt: skip
        return plan


def open_stage(
    blend: Blend,
    options: NanotronOptions,
    parallel_context: Any,
    *,
    entry: Entry = NANOTRON,
    step: int,
    micro_batch_size: int,
    global_batch_size: int,
    steps: int | None = None,
    saved: State | None = None,
    name: str = "",
    in_stage: int = 0,
    tokens: Mapping[str, int] | None = None,
    earlier: Mapping[str, int] | None = None,
    vocabulary: int | None = None,
    log: Path | None = None,
) -> StageDataset:
    """The data stage `name`, `in_stage` samples after its beginning: `step` (from 0) is trained next.

    To be called on every rank, also where no data is read. saved: tells what was before. steps: last one of the run.
    tokens, earlier: consumed in this stage and before it, by dataset, as nanotron counts. vocabulary: of the model.
    log: the folder of the checkpoints.

    Raises ResumeError for a past that has changed or is not known; ConfigError, also if ranks are about to train
    something else than others: tokens and labels of a sample come from different ranks.
    """
    check_vocabulary(blend.datasets, vocabulary, "the model", "raise model.model_config.vocab_size")
    dp_size = parallel_context.dp_pg.size()
    partition = Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, scheme="contiguous")
    run = TrainingRun(blend, entry, partition=partition, rule=None, allow_changed=options.allow_changed)
    run.dp_rank = parallel_context.dp_pg.rank()
    run.data_stage, start = name or None, run.count_start
    if saved is None:
        _require_known_past(run.blend, options, in_stage, tokens or {}, earlier or {})
    else:
        start, begins = saved.start_of(name, in_stage)
        run.resume(dataclasses.replace(saved.order, consumed=start + in_stage), NAME, new_stage=begins)
    run.require_known()
    consumed = start + in_stage
    sizes = {"step": step, "global_batch_size": global_batch_size, "micro_batch_size": micro_batch_size}
    position = {"consumed_samples": consumed, "data_stage": name, "dp_size": partition.dp_size, **sizes}
    facts = run.blend.facts(nanotron=dataclasses.asdict(options), **position)
    require_same("open the training data", facts)
    writes = parallel_context.world_pg.rank() == 0
    end = None if steps is None else consumed + (steps - step) * global_batch_size
    schedule = BatchSchedule.constant(global_batch_size).at(step, consumed)
    run.stand_at(Plan(partition=partition, schedule=schedule), end)
    if log is not None:
        run.log_start(log, step, writes=writes)
    dataset = StageDataset(run, options, dp_rank=run.dp_rank, stage_start=start, tokens=tokens or {})
    if end is not None:
        dataset.report(end - consumed)
    if writes:
        run.blend.look_ahead(consumed)
        run.look_ahead()
    return dataset


def _require_known_past(
    blend: Blend, options: NanotronOptions, in_stage: int, tokens: Mapping[str, int], earlier: Mapping[str, int]
) -> None:
    """The checkpoint does not say what was read before it.

    Raises ResumeError, or warns of what follows if that is allowed. tokens, earlier: read in this data stage and before
    it, by dataset of conceptloader or folder of another loader.
    """
    names, seq_len = blend.config.names, blend.config.seq_len or 1
    read = {name: count // seq_len for name, count in (tokens if in_stage else earlier).items() if count}
    theirs = _listed({name: count for name, count in read.items() if name not in names})
    ours = _listed({name: count for name, count in read.items() if name in names})
    if not in_stage and not ours:
        if theirs:
            logger.warning(
                "data stages before this one were read with another loader (%s): this one begins at sample 0 of "
                "conceptloader's order, and what was read may be read again", theirs,
            )  # fmt: skip
        return
    found, then = f"has read {in_stage} samples of this data stage", "the order that this configuration gives"
    remedy = "resume from one that does"
    if in_stage and theirs:
        left_out = _listed(dict(zip(blend.order.names, blend.order.counts(in_stage), strict=True)))
        found += f" with another loader ({theirs}), in its order"
        then = (
            f"conceptloader's order, which is another: those before it ({left_out}) are skipped in its first epoch, "
            "and what the other loader has read may be read again"
        )
        remedy = "begin a new data stage, which skips nothing"
    elif in_stage:
        then += ", independent of what gave the samples before"
    else:
        found = f"has read from {ours}"
        then += ": what earlier data stages have read is read again"
    then = f"sample {in_stage} of {then}"
    if UNVERIFIED not in options.allow_changed:
        raise ResumeError(
            "checkpoint",
            f"a checkpoint that {found}, without {NAME}, which tells them",
            "the state of conceptloader",
            f"{remedy}, or add {UNVERIFIED} to nanotron.allow_changed to resume at {then}",
        )
    logger.warning("the checkpoint %s, and holds no %s; as allowed, training resumes at %s", found, NAME, then)


def _listed(samples: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in samples.items() if count)
