"""The run of a process that Megatron's training loop goes through: its data, its state in checkpoints, its run log."""

from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conceptloader.blend.vocabulary import check_vocabulary
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.progress.runlog import RunLog, RunStart
from conceptloader.order.progress.state import OrderState
from conceptloader.order.schedule import BatchSchedule
from conceptloader.torch.live import new_weights, require_agreement
from conceptloader.torch.metrics import Meter, callbacks

from .batches import SplitIterator
from .data import MegatronData, OurSplit
from .options import LOG, NO_STATE, TOKENIZER, Options

UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass
class Run:
    """The run of this process. `data` is there once Megatron has asked for its datasets.

    dataset_config: for a script of one's own, from Megatron's arguments to a GPTDatasetConfig. saved: our state in the
    checkpoint that was loaded. args: Megatron's arguments that `data` belong to; others are another start of the
    training in this process (--inprocess-restart). mock: Megatron keeps its --mock-data. The others are for metrics:
    see `took`.
    """

    options: Options
    dataset_config: Callable[[Any], Any] | None = None
    saved: dict[str, Any] | None = None
    data: MegatronData | None = None
    args: Namespace | None = None
    mock: bool = False
    reader: SplitIterator | None = None
    meter: Meter | None = None
    taken: int = 0
    group: int = 0

    def datasets(
        self,
        config: Any,
        sizes: Sequence[int | None],
        is_built_on_rank: Callable[[], bool] | None,
        vp_stage: int | None,
    ) -> list[Any]:
        """Train, valid and test datasets of this (virtual) stage. config: GPTDatasetConfig."""
        from megatron.training import get_args

        args = get_args()
        if args.dataloader_type not in (None, "single"):
            raise ConfigError(
                "--dataloader-type",
                args.dataloader_type,
                "single",
                "leave it out: the configuration's order shuffles, repeats and resumes, and answers what a step held",
            )
        first = first_sample(args)
        data = self.data if self.args is args else None
        if data is None or data.consumed != args.consumed_train_samples:
            self.reader, self.meter = None, None
            self.data = data = MegatronData(
                **vars(self.options),
                dataset_config=config,
                micro_batch_size=args.micro_batch_size,
                split=args.split if config.mock else None,
                consumed=args.consumed_train_samples,
                saved=self.saved or saved_in_log(args, self.options.accept),
                sizes=sizes,
                pipeline_layout=self.pipeline_layout(args),
            )
            check_tokenizer(data, getattr(args, "padded_vocab_size", None), self.options.accept)
            if args.rank == 0 and isinstance(data.train, OurSplit):
                data.train.blend.look_ahead(args.consumed_train_samples)
            self.note(data, args)
            self.args = args
            if callbacks:
                plan = self.plan(args)
                self.meter, self.taken, self.group = Meter(plan.schedule), plan.schedule.consumed, plan.partition.group
        return data.datasets(sizes, is_built_on_rank=is_built_on_rank, vp_stage=vp_stage, first=first)

    @staticmethod
    def plan(args: Namespace) -> Plan:
        """Steps, micro batches and ranks from the step on that is trained now, or next."""
        partition = Partition(micro_batch_size=args.micro_batch_size, dp_size=args.data_parallel_size)
        iteration = getattr(args, "curr_iteration", args.iteration)
        schedule = batch_schedule(args).at(iteration, args.consumed_train_samples)
        return Plan(partition=partition, schedule=schedule)

    def note(self, data: MegatronData, args: Namespace) -> None:
        """What decides the samples from here on, for checkpoints and in the run log."""
        args.conceptloader = data.state()  # Megatron saves its arguments with every checkpoint
        if args.rank == 0 and args.save:
            plan = self.plan(args)
            Path(args.save).mkdir(parents=True, exist_ok=True)
            start = RunStart.of(data.spec, plan.schedule, plan.partition, args.seq_length)
            RunLog(args.save).append(start, data.spec)

    def set_weights(self, weights: Mapping[str, float], at: int | None, args: Namespace) -> int:
        """See launch.set_weights. All ranks compare what they are about to do."""
        data, plan = self.data, self.plan(args)
        if data is None or not isinstance(data.train, OurSplit):
            raise ConfigError("set_weights", "expected data in an order of ours, which Megatron has asked for")
        first, edge = plan.schedule.range_of(plan.schedule.step)
        start, blend = new_weights(data.train.blend, weights, plan, edge, at)
        require_agreement(start, first, blend.spec, args.world_size, None)
        for reader in data.readers:
            reader.follow(blend.order)
        data.train = replace(data.train, blend=blend)
        self.note(data, args)
        return start

    def took(self, reader: SplitIterator, seconds: float) -> None:
        """A training iterator has waited so long for a micro batch; of those of virtual stages the first counts."""
        data, self.reader = self.data, self.reader or reader
        if data is None or self.meter is None or reader is not self.reader or not isinstance(data.train, OurSplit):
            return
        self.taken += self.group
        self.meter.took(data.train.blend, self.taken, seconds)

    @staticmethod
    def pipeline_layout(args: Namespace) -> Any:
        """The model's own (--pipeline-model-parallel-layout), None without one."""
        if not getattr(args, "pipeline_model_parallel_layout", None):
            return None
        from megatron.training.arguments import core_transformer_config_from_args

        return core_transformer_config_from_args(args).pipeline_model_parallel_layout


def saved_in_log(args: Namespace, accept: Collection[str]) -> dict[str, str] | None:
    """The state for a checkpoint that has none of ours: None where another loader trained all of its samples.

    A run log beside the checkpoints that begins earlier says that it was not so. Its state may be accepted by the name
    LOG. Raises ResumeError if it is not, nor NO_STATE.
    """
    consumed = args.consumed_train_samples
    if NO_STATE in accept:
        return None
    for folder in filter(None, dict.fromkeys((args.load, args.save))):
        log = RunLog(folder)
        before = [start for start in log.starts if start.consumed < consumed]
        if before and LOG in accept:
            return OrderState(spec=log.spec(before[-1]), consumed=None).leaf()
        if before:
            raise ResumeError(
                "checkpoint",
                f"found {consumed} consumed samples without a state of conceptloader, but {log.path} says that it "
                f"gave those from {before[0].consumed} on",
                fix="either the state was lost, as by converting the checkpoint: go on by the log, "
                f"--conceptloader-accept {LOG}; or another loader has begun anew since: move the log away",
            )
    return None


def check_tokenizer(data: MegatronData, embedding: int | None, accept: Collection[str]) -> None:
    """Raise ConfigError for data of another tokenizer than Megatron's: with ids that the model's embedding has not,
    or another end-of-document token, which may be accepted. embedding: rows of it, None if not known."""
    eod = getattr(data.dataset_config.tokenizer, "eod", None)
    remedy = "start with the tokenizer that the data were built with"
    for datasets in (data.train.datasets, *(blend.datasets for blend in data._whole if blend is not None)):
        check_vocabulary(datasets, embedding, "the model's embedding (--vocab-size, padded)", remedy)
        for name, tokenizer in ((name, dataset.tokenizer) for name, dataset in datasets.items()):
            if tokenizer is None or None in (eod, tokenizer.eos_id) or TOKENIZER in accept:
                continue
            if eod != tokenizer.eos_id:
                raise ConfigError(
                    f"datasets.{name}",
                    f"found tokens of {tokenizer.name}, whose documents end with {tokenizer.eos_id}, but Megatron's "
                    f"tokenizer has {eod} for that",
                    fix=f"{remedy}, or, if the others mean the same, --conceptloader-accept {TOKENIZER}",
                )


def batch_schedule(args: Namespace) -> BatchSchedule:
    """Global batch size by consumed samples: --step-batch-size-schedule, --rampup-batch-size, or constant.

    From core 0.20 on Megatron takes --rampup-batch-size and ignores it; so do we.
    """
    steps = getattr(args, "step_batch_size_schedule", None)
    if steps:
        return BatchSchedule(step_rule(steps, args.seq_length))
    ramp = args.rampup_batch_size
    if ramp and not hasattr(args, "step_batch_size_schedule"):
        start, increment, samples = (int(word) for word in ramp)
        schedule = BatchSchedule.ramp_up(start, increment, samples, args.global_batch_size)
    else:
        schedule = BatchSchedule.constant(args.global_batch_size)
    if args.decrease_batch_size_if_needed:
        schedule = schedule.rounded_down(args.micro_batch_size * args.data_parallel_size)
    return schedule


def step_rule(text: str, seq_length: int) -> tuple[tuple[int, int], ...]:
    """(from_consumed, batch size) pairs of "0:768 250B:1536": thresholds in tokens, K, M, B, T for powers of 1000."""

    def number(word: str) -> int:
        unit = UNITS.get(word[-1:].upper())
        try:
            return int(float(word[:-1]) * unit) if unit else int(word)
        except ValueError as error:
            raise ConfigError(f"--step-batch-size-schedule {text}", repr(word), "a number") from error

    pairs = (entry.partition(":") for entry in text.replace(",", " ").split())
    return tuple(sorted((number(threshold) // seq_length, number(size)) for threshold, _, size in pairs))


def first_sample(args: Namespace) -> int:
    """The sample of the run at which Megatron's current phase begins, from which on it counts samples anew.

    With --phase-transition-iterations Megatron computes positions from iterations times the batch size.

    Raises ConfigError if the batch size has not always been the same, which it does not notice.
    """
    if not args.phase_transition_iterations:
        return 0
    transition = max(step for step in (0, *args.phase_transition_iterations) if step <= args.iteration)
    counted = args.iteration * args.global_batch_size
    if counted != args.consumed_train_samples:
        raise ConfigError(
            "--phase-transition-iterations",
            f"{args.consumed_train_samples} consumed samples at iteration {args.iteration}",
            f"{counted}: Megatron would not go on where the checkpoint left off. Use `phases` in the configuration "
            "in its place",
        )
    return int(transition * args.global_batch_size)
