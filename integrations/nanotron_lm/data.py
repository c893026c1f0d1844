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
import torch.distributed as dist
import yaml
from torch.utils.data import Dataset

from conceptloader.batch.layout import Batch
from conceptloader.batch.metrics import Meter, StepMetrics, callbacks
from conceptloader.batch.mixing import Mixing
from conceptloader.batch.reader import BatchReader
from conceptloader.batch.record import refuse_batch_log
from conceptloader.batch.reweight import new_weights
from conceptloader.blend import Blend
from conceptloader.blend.facts import start_facts
from conceptloader.blend.vocabulary import check_vocabulary
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.progress.runlog import RunLog, RunStart
from conceptloader.order.schedule import BatchSchedule
from conceptloader.storage.durable import write_file
from conceptloader.torch.agreement import require_agreement, require_same
from conceptloader.torch.mixing import decide_together

from . import losses
from .options import NanotronOptions
from .state import NAME, State

logger = logging.getLogger(__name__)

UNVERIFIED = "unverified"
CONFIG_NAME = "conceptloader.yaml"


class StageDataset(Dataset[Any]):
    """The order of a data stage, and the account that nanotron keeps of it. Reads nothing by itself.

    Samples are counted from the first one of the run, over all data stages, and so are those of the blend.

    plan: steps and ranks from here on. dp_rank: of this process. name: of the stage. stage_start: samples before it.
    tokens: consumed in this stage, by dataset. log: the folder of the checkpoints, on the rank that writes.
    """

    def __init__(
        self,
        blend: Blend,
        options: NanotronOptions,
        plan: Plan,
        *,
        dp_rank: int,
        name: str,
        stage_start: int,
        tokens: Mapping[str, int],
        log: Path | None,
        mixing: Mixing | None = None,
    ) -> None:
        refuse_batch_log(blend, "the adapter of nanotron")
        self.blend, self.options, self.plan, self.dp_rank = blend, options, plan, dp_rank
        self.name, self.stage_start, self.log, self.mixing = name, stage_start, log, mixing
        self.runs: RunLog | None = None  # on the rank that writes it
        self.end: int | None = None  # samples up to the run's last step, if it is known
        self.consumed = plan.schedule.consumed  # samples that are trained
        self.tokens = {dataset: int(tokens.get(dataset, 0)) for dataset in blend.config.names}
        self.meter = Meter(plan.schedule, track=self.track if blend.config.metrics else None)
        self.waited_s, self.taken = 0.0, self.consumed  # waited: for micro batches of the step, up to `taken`
        self.logs = False  # whether this rank logs metrics
        self.num_workers = 0
        self.reader: BatchReader | None = None  # None on a rank that needs no data
        self.loss_per_dataset: losses.LossPerDataset | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes, which only read."""
        return {**self.__dict__, "loss_per_dataset": None, "meter": None, "mixing": None}

    def __getitems__(self, samples: Sequence[int]) -> Batch | None:
        """The batch of these samples; None on a rank that needs no data."""
        return self.reader.read(np.array(samples, np.uint64)) if self.reader is not None else None

    def __getitem__(self, sample: int) -> Batch | None:
        return self.__getitems__([sample])

    def took(self, seconds: float, mask: Any) -> None:
        """A micro batch was waited for. mask: of its labels, a tensor where this rank has it."""
        self.waited_s += seconds
        self.taken += self.plan.partition.group
        if isinstance(mask, torch.Tensor) and (callbacks or self.meter.track):
            self.meter.saw(self.taken, mask)

    def track(self, metrics: StepMetrics) -> None:
        """To nanotron's log and W&B."""
        if self.logs:
            losses.log(f"data at iteration {metrics.step + 1}", "data/", metrics.flat(""))

    def write_log(self) -> None:
        """Append this start to the run log, on the rank that writes.

        The configuration is written next to it, whole: with nanotron's seed and sequence length, and absolute paths. So
        `conceptloader trace` and its like need nothing but this folder.
        """
        if self.log is None:
            return
        blend, schedule = self.blend, self.plan.schedule
        here = schedule.at(schedule.step_of(self.consumed), self.consumed)
        start = RunStart.of(blend.spec, here, self.plan.partition, blend.config.seq_len, self.name or None)
        self.log.mkdir(parents=True, exist_ok=True)
        write_file(str(self.log / CONFIG_NAME), yaml.safe_dump(blend.config.to_dict(), sort_keys=False).encode())
        self.runs = RunLog(self.log)
        self.runs.append(start, blend.spec)

    def set_weights(self, weights: Mapping[str, float], at: int | None = None, *, why: str = "") -> int:
        """Draw datasets in other proportions from the sample `at` on, by default from the step after the present one.

        To be called on every rank; see Loader.set_weights. Needs num_loading_workers: 0, since worker processes hold
        the order as it was. Returns: the sample from which on it holds. Raises ConfigError, and nothing is changed.
        """
        return self._set_weights(weights, at, why, None)

    def _set_weights(
        self, weights: Mapping[str, float], at: int | None, why: str, losses: Mapping[str, float] | None
    ) -> int:
        if self.num_workers:
            raise ConfigError("set_weights", f"num_loading_workers: {self.num_workers}", "0")
        plan = dataclasses.replace(self.plan, num_samples=self.end)
        start, blend = new_weights(self.blend, weights, plan, self._edge, at, self.consumed)
        require_agreement(start, self.consumed, blend.spec, dist.get_world_size(), None)
        if self.reader is not None:
            self.reader.follow(blend.order)
        self.blend = blend
        if self.runs is not None:
            self.runs.append_weights(blend.spec, blend.order, start, why, losses)
        return start

    @property
    def _edge(self) -> int:
        """Where the step after the present one begins: nothing of it is read."""
        return self.plan.schedule.range_of(self.plan.schedule.step_of(self.consumed))[1]

    def observe(self, losses: Mapping[str, float] | None) -> None:
        """Give `mixing` in the configuration the losses of the step that has ended: one rank has them, others None."""
        mixing = self.mixing
        if mixing is not None:
            weights, found = decide_together(mixing, self.blend, losses, self.plan, self._edge)
            if weights is not None:
                mixing.apply(weights, lambda one: self._set_weights(one, None, mixing.kind, found))

    def state(self) -> State:
        """What a checkpoint needs."""
        spec, mixing = self.blend.spec.cut(self.consumed, self.blend.order), self.mixing and self.mixing.state()
        return State(spec=spec, consumed=self.consumed, stage=self.name, stage_start=self.stage_start, mixing=mixing)

    def get_consumption_stats(self) -> dict[str, dict[str, int]]:
        """Tokens consumed in this data stage, by dataset."""
        return {name: {"tokens": tokens} for name, tokens in self.tokens.items()}

    def update_consumption_metrics(self, start_idx: int, end_idx: int, sequence_length: int) -> None:
        """Count a step of end_idx - start_idx samples. Where it starts, nanotron counts over all stages."""
        start, stop = self.consumed, self.consumed + end_idx - start_idx
        members = self.blend.order.locate_many(np.arange(start, stop, dtype=np.uint64))[0]
        names = [member.dataset for member in self.blend.spec.members.values()]
        for member, count in zip(*np.unique(members, return_counts=True), strict=True):
            self.tokens[names[member]] += int(count) * sequence_length
        self.consumed = stop
        if callbacks or self.meter.track:
            self.meter.took(self.blend, stop, self.waited_s)
        self.waited_s, found = 0.0, None
        if self.loss_per_dataset is not None:
            mine = members[self.plan.partition.samples(0, stop - start, self.dp_rank).astype(np.int64)]
            by_dataset = [[self.loss_per_dataset.names.index(names[m]) for m in row] for row in mine]
            found = self.loss_per_dataset.finish_step(by_dataset, stop)
        self.observe(found if self.logs else None)

    def report(self, samples: int) -> dict[str, Any]:
        """Check and log what the coming `samples` will take from each dataset. Returns the same as data."""
        order, end = self.blend.order, self.consumed + samples
        order.check_run(end)
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
    start = 0
    if saved is None:
        _require_known_past(blend, options, in_stage, tokens or {}, earlier or {})
        if not in_stage:
            blend, start = blend.continued()
        mixing = Mixing.begun(blend)
    else:
        start, begins = saved.start_of(name, in_stage)
        allowed = options.allow_changed
        blend = blend.resume(saved.spec, start + in_stage, allow_changed=allowed, new_stage=begins)
        mixing = Mixing.resumed(blend, saved.mixing, begins or "mixing" in allowed)
    if mixing is not None and mixing.controller is not None and not options.loss_per_dataset:
        raise ConfigError("nanotron.loss_per_dataset", f"false, but {mixing.kind} learns from it", "true")
    consumed, dp_size = start + in_stage, parallel_context.dp_pg.size()
    sizes = {"step": step, "global_batch_size": global_batch_size, "micro_batch_size": micro_batch_size}
    position = {"consumed_samples": consumed, "data_stage": name, "dp_size": dp_size, **sizes}
    facts = start_facts(blend, nanotron=dataclasses.asdict(options), **position)
    require_same("open the training data", facts)
    writes = parallel_context.world_pg.rank() == 0
    plan = Plan(
        partition=Partition(micro_batch_size=micro_batch_size, dp_size=dp_size),
        schedule=BatchSchedule.constant(global_batch_size).at(step, consumed),
    )
    dataset = StageDataset(
        blend,
        options,
        plan,
        dp_rank=parallel_context.dp_pg.rank(),
        name=name,
        stage_start=start,
        tokens=tokens or {},
        log=log if writes else None,
        mixing=mixing,
    )
    if steps is not None:
        dataset.end = consumed + (steps - step) * global_batch_size
        dataset.report((steps - step) * global_batch_size)
    dataset.write_log()
    if writes:
        blend.look_ahead(consumed)
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
            f"it {found}, but holds no {NAME} that tells which",
            fix=f"{remedy}, or add {UNVERIFIED} to nanotron.allow_changed to resume at {then}",
        )
    logger.warning("the checkpoint %s, and holds no %s; as allowed, training resumes at %s", found, NAME, then)


def _listed(samples: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in samples.items() if count)
