"""One account of a run, which every front end holds and translates: loaders, sample datasets, Megatron-LM, nanotron.

Positions are in samples over all ranks, from the first one of the run. Two counters say where it is: `yielded`, what
was handed to the trainer, and `trained`, what the trainer has acknowledged. Neither follows a counter of the trainer's.
"""

import copy
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from numpy.typing import ArrayLike

from conceptloader.base.checks import as_count, as_names
from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import plain
from conceptloader.base.version import PAGES
from conceptloader.config import Blend, ConfigLike, open_blend
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.kernels.arrays import Outputs
from conceptloader.kernels.kernel import U64Array
from conceptloader.order.balance import Balance, Costs
from conceptloader.order.mixture import Mixture
from conceptloader.order.partition import LastBatch, Partition, Plan
from conceptloader.order.progress.found import to_continue
from conceptloader.order.progress.resume import ChangedPast
from conceptloader.order.progress.runlog import RunLog, RunStart
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.order.schedule import BatchSchedule
from conceptloader.run.entry import Entry
from conceptloader.run.losses import LossFile, as_rows
from conceptloader.run.observer import OBSERVERS, Observer, Track
from conceptloader.run.ranks import Alone, Ranks, together
from conceptloader.run.weights import Mixing, next_border, open_mixing, with_weights

logger = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R", bound=Any)  # a reader

_UNOBSERVED = 18  # steps that a trainer may prefetch before the mixing is told of the first one

Task = tuple[U64Array, int]
"""The samples of a micro batch of one rank, and how many all ranks have read after it."""


class TrainingRun:
    """A run, the same on all of its ranks.

    Args:
        config: Path of a YAML file, what was read from one, a Config, or a Blend.
        entry: What the front end carries out.
        partition: How ranks share a step.
        rule: Batch sizes, counted from sample 0 of the run; None: the trainer has not said them, and no step is known.
        consumed: Where it stands; `continue_from` in the configuration and `resume` say it too, and check the order.
        num_samples: Its end; by default none, or the end of the data with order sequential.
        epoch_samples: Length of a loop, counted from where the run was continued; by default the run is one.
        last_batch: What happens to a last global batch that is not full.
        allow_changed: Names of differences from the past that are accepted, in `continue_from` and in each `resume`.

    Attributes:
        blend: Its data, in the order in force.
        mixing: What sets its weights while it lives, if anything does.
        plan: Steps, micro batches and ranks from where it was made or resumed.
        count_start: Samples of another trainer, before those that this one counts.
        yielded: Samples handed to the trainer.
        trained: Samples acknowledged by the trainer.
        fresh: No loop has begun since it was made or resumed.
        followers: Called with an order and the sample from which on it differs, when weights change.
        dp_rank: Of the rank that holds this account.
        directory: Where the run log is, once a launch is logged.

    Raises:
        ConfigError: An option breaks a rule, or the entry does not carry out what the configuration asks for.
        ResumeError: `continue_from` names no state from which this configuration can resume.
    """

    dp_rank = 0
    directory: str | os.PathLike[str] | None = None

    def __init__(
        self,
        config: ConfigLike,
        entry: Entry,
        *,
        partition: Partition,
        rule: BatchSchedule | None,
        consumed: int = 0,
        num_samples: int | None = None,
        epoch_samples: int | None = None,
        last_batch: LastBatch | None = None,
        allow_changed: Collection[str] = (),
    ) -> None:
        self.blend = self._configured = open_blend(config)  # the latter as it is without a past
        self.entry, self.partition = entry, partition
        self._rule, self._counts_steps = rule or BatchSchedule.constant(partition.group), rule is not None
        entry.check(self.blend.config)
        self.allow_changed = frozenset(as_names(allow_changed, "allow_changed"))
        order, path = self.blend.order, self.blend.config.continue_from
        self.passes = order.num_samples is not None  # each loop begins at the first sample
        self.num_samples = order.num_samples if num_samples is None else num_samples
        self.end = self.num_samples  # for max_epochs; where plans have no end, the trainer may still know it
        self.last_batch: LastBatch = last_batch or ("partial" if self.passes else "drop")
        self.epoch_samples = None if epoch_samples is None else as_count(epoch_samples, "epoch_samples")
        self._check_epochs(self._rule)
        if self.last_batch == "wrap" and not self.passes:
            raise ConfigError(
                "last_batch",
                "wrap with a shuffled order",
                "drop or partial",
                "set last_batch: drop or partial, or order: sequential",
            )
        self._has_limits = any(one.max_epochs is not None for one in self.blend.config.datasets.values())
        self.acknowledges = False  # True: `trained` moves by `acknowledge` alone
        self.on_the_way = 0  # samples beyond the batch that is yielded, of which copies are under way
        self.data_stage: str | None = None
        self.count_start, self.fresh = 0, True
        self.log: RunLog | None = None  # of the rank that writes it, once it does
        self.losses: LossFile | None = None  # with `metrics: {losses: true}`, once a launch is logged
        self._log_left = False  # a launch is logged at a position that has been left since
        self.followers: list[Callable[[Mixture, int], None]] = []
        self._observers: dict[Any, Observer] = {}  # by what made them
        self._costs: Callable[[Mixture], Costs] | None = None  # of a reader, where samples are dealt by them
        self._balance: Balance | None = None
        self._missing: str | None = None  # the checkpoint to continue from, where it is gone
        if path is not None and consumed:
            raise ConfigError(
                "consumed_samples",
                f"{consumed} with continue_from, which says it",
                "the position in one place",
                "omit consumed_samples",
            )
        if path is not None and not os.path.exists(path):
            self._missing = path
        if path is not None and self._missing is None:
            self._stand(0)
            state = to_continue(path)
            begin = {"step_start": state.consumed, "step": 0}  # the trainer counts its steps from 0 again
            self.resume(replace(state, more={**state.more, **begin}), f"continue_from {path}")
        else:
            self.mixing = None if self._missing else open_mixing(self.blend, entry, None)
            self._stand(as_count(consumed, "consumed_samples", 0))
        self._check_end()

    def __getstate__(self) -> dict[str, Any]:
        """A copy stands at what is trained; nobody follows or observes it, and it writes no log."""
        here: dict[str, Any] = {"yielded": self.trained, "coming": self.trained, "_observers": {}}
        return {**self.__dict__, **here, "followers": [], "log": None, "losses": None, "directory": None}

    # Checks at launch

    def _check_epochs(self, rule: BatchSchedule) -> None:
        for _, batch in rule.rule:
            if self.epoch_samples is not None and self.epoch_samples % batch:
                raise ConfigError(
                    "epoch_samples",
                    f"{self.epoch_samples}",
                    f"a multiple of the {batch} samples of a step",
                    f"set epoch_samples to {self.epoch_samples // batch * batch or batch}",
                )

    def _check_end(self) -> None:
        if self.num_samples is None or self._missing is not None:
            return
        if self.passes:
            self.blend.order.check_run(self.num_samples)
        if not self.plan.count():
            raise ConfigError(
                "num_samples",
                f"{self.num_samples}",
                f"at least a global batch of {self._rule.batch_size(0)}: nothing would be read",
                "raise num_samples, lower global_batch_size, or set last_batch to partial",
            )

    def check_limits(self) -> None:
        """Raise ConfigError if the planned run reads a dataset more often than its max_epochs.

        For the first loop: at launch it is not known whether a state follows, of a run at another seq_len maybe.
        """
        if self.end is not None:
            self.blend.order.check_run(self.end)

    def require_known(self) -> None:
        """Raise ResumeError while the checkpoint of `continue_from` is gone and no other state was loaded."""
        if self._missing is not None:
            raise ResumeError(
                "continue_from",
                f"no such directory or file: {self._missing}",
                "the checkpoint at which the run is continued",
                "restore it, or resume from a checkpoint of this trainer, which comes before continue_from",
            )

    def facts(self, **more: Any) -> dict[str, Any]:
        """What has to be equal on all ranks of this run when they begin to read. more: JSON of the front end."""
        run: dict[str, Any] = {"num_samples": self.num_samples, "last_batch": self.last_batch}
        run |= {
            "epoch_samples": self.epoch_samples,
            "checkpoint to continue from": "gone" if self._missing else "there",
        }
        return self.blend.facts(global_batch_size=self._rule.rule, **run, **more)

    # Position

    def _stand(self, consumed: int, step_start: int | None = None, step: int | None = None) -> None:
        """Stand at `consumed`, in the step that began at `step_start`.

        `step` is the trainer's number, by default as many as batches of these sizes led there. Changes nothing if it
        raises.
        """
        plan = Plan(
            partition=self.partition,
            schedule=self._rule.at(0, consumed),
            num_samples=self.num_samples,
            last_batch=self.last_batch,
            balance=self._balance,
        )
        if step_start is not None:
            plan = plan.resumed(consumed, step_start)
            if plan.schedule.consumed != step_start:
                logger.warning(
                    "resuming %d samples into a step, where micro batches of %d on %d ranks cannot continue: another "
                    "step begins there, and those that follow are shifted", consumed - step_start,
                    self.partition.micro_batch_size, self.partition.dp_size,
                )  # fmt: skip
        begun = plan.schedule.consumed
        known = step is not None and begun == step_start
        if step is None or not known:
            step = self._rule.step_of(begun)
            known = self._rule.consumed_at(step) == begun
        self.plan = replace(plan, schedule=plan.schedule.at(step, begun))
        self._knows_steps = known and self._counts_steps
        self.yielded = self.coming = self.trained = self.began = consumed  # coming: with the batch about to be yielded
        self._observed = begun  # up to the end of the last step that `mixing` was told of

    def stand_at(self, plan: Plan, end: int | None = None) -> None:
        """Stand where the trainer begins, with its batches and ranks, which it says after the data were opened.

        end: of the run in samples, where the trainer knows it.
        """
        self.partition, self._rule, self._counts_steps = plan.partition, plan.schedule, True
        self._stand(plan.schedule.consumed, plan.schedule.consumed, plan.schedule.step)
        self.end = end
        if end is not None:
            self.blend.order.check_run(end)

    def resize(self, partition: Partition, rule: BatchSchedule) -> None:
        """Take steps of other sizes from what is trained on, which is a whole number of steps; the log gets a launch.

        Raises ConfigError, and changes nothing, for sizes that do not fit.
        """
        rule = rule.at(0, 0)
        self._check_epochs(rule)
        partition.check_batch(rule.batch_size(self.trained))
        step, observed = self.steps_at(self.trained), self._observed
        self.partition, self._rule, self.fresh = partition, rule, True
        self.on_the_way = self.on_the_way and partition.group
        self._stand(self.trained, self.trained, step)
        self._observed = observed
        self.write_start()

    @property
    def begins_at(self) -> int:
        """Where the next loop begins."""
        return 0 if self.passes and not self.fresh else self.trained

    def steps_at(self, consumed: int) -> int | None:
        """Steps of the trainer up to a position.

        None within a step, before this run began, and where their number is unknown: batches of the present sizes do
        not end there, and no state holds it.
        """
        if consumed < self.plan.schedule.consumed:
            return None
        step = self.plan.schedule.step_of(consumed)
        return next((k for k in (step, step + 1) if self.position(k) == consumed), None)

    def position(self, step: int) -> int | None:
        """Samples consumed by `step` steps of the trainer; None before this run began, or if it is unknown."""
        if not self._knows_steps or step < self.plan.schedule.step:
            return None
        return self.plan.consumed_at(step)

    def micro_batches(self) -> int | None:
        """Of a rank in an epoch, consumed ones included; None for a run without an end."""
        return self.plan.count() if self.epoch_samples is None else self.epoch_samples // self.partition.group

    # Reading

    def deal(self, reader: R) -> R:
        """Let a reader of this run read for each position what `loader.balance` has dealt to it. Returns: it.

        Raises:
            ConfigError: See check_balance.
        """
        if self.blend.config.loader.balance:
            check_balance(self.blend, reader.layout.outputs)
            self._costs, reader.dealt = reader.costs, self._dealt
            self._rebalance(self.blend)
        return reader

    def _dealing(self, balance: Balance, start: int) -> str | None:
        """Says how the samples of the step that begins at a position are dealt; None for a last one, which is not."""
        size = self._rule.at(0, start).batch_size(start)
        if self.num_samples is not None and start + size > self.num_samples:
            return None
        if size % self.partition.group:
            return ""
        try:
            return fingerprint(balance.order(self.partition, start, start + size).tolist())
        except ConfigError:  # the data of its first samples have left the configuration
            return ""

    def _rebalance(self, blend: Blend) -> None:
        if self._costs is not None:
            self._balance = Balance(self._costs(blend.order))
            self.plan = replace(self.plan, balance=self._balance)

    def _dealt(self, positions: U64Array) -> U64Array:
        return self.plan.dealt(positions)

    def tasks(self, dp_rank: int, begin: int) -> Iterator[Task]:
        """The micro batches of a rank from a position to the end of its epoch."""
        epoch = self.epoch_samples
        end = None if epoch is None else begin + epoch - (begin - self.count_start) % epoch
        if end is not None and self._balance is not None and self.plan.step_start(end) != end:
            raise ConfigError(
                "epoch_samples",
                f"{epoch}, which ends at sample {end}, within a step",
                "whole steps, as loader.balance deals them",
                "begin at a multiple of the global batch, or omit epoch_samples or loader.balance",
            )
        for task in self.plan.rest(dp_rank, begin):
            yield task
            if end is not None and task[1] >= end:
                return

    def check_reads(self, stop: int) -> None:
        """Raise ConfigError if samples up to `stop` read a dataset more often than its max_epochs.

        For entries that do not know where the run ends; where it is known, a launch has checked all of it.
        """
        if self._is_limited:
            self.blend.order.check_run(stop)

    @property
    def _is_limited(self) -> bool:
        return self._has_limits and self.end is None

    def yielding(self, consumed: int) -> None:
        """A batch is about to be yielded.

        Raise ConfigError where a mixture is to learn, and nobody gives it losses; and see check_reads.
        """
        self.check_reads(consumed)
        self.coming = consumed
        late = consumed - self._observed
        key = "metrics.losses" if self.mixing is None else f"mixing.{self.mixing.kind}"
        if self.observes and late > _UNOBSERVED * self.plan.schedule.batch_size(self._observed):
            raise ConfigError(
                key,
                f"{late} samples yielded without a call of observe_step",
                "losses after each step",
                f"call loader.observe_step() after each step, or remove {key}: {PAGES}/losses.md",
            )

    def yielded_to(self, consumed: int) -> None:
        """Everything before a position is yielded."""
        self.yielded = self.coming = consumed
        if not self.acknowledges:
            self.trained = consumed

    def acknowledge(self, position: int) -> None:
        """All samples before a position are trained.

        Raises:
            ConfigError: For a position after what was yielded, or before what was acknowledged.
        """
        if not self.trained <= position <= self.yielded:
            raise ConfigError(
                "acknowledge",
                f"{position} samples",
                f"{self.trained} (acknowledged before) to {self.yielded} (yielded in this loop)",
                "pass the batch's own consumed_samples to acknowledge",
            )
        self.trained = position

    def restart(self, begin: int) -> None:
        """A loop begins at a position: what was yielded beyond it is yielded again.

        Raises ConfigError if the run log has a launch elsewhere, which it would take what follows for.
        """
        if self._log_left:
            raise ConfigError(
                "log_start",
                "a call before the state was loaded",
                "the launch at the position of the state",
                "call log_start again, after load_state_dict",
            )
        self.fresh, self.yielded, self.coming = False, begin, begin

    def next_pass(self) -> None:
        """Stand at the first sample, whose step follows those of the pass before."""
        plan, ended = self.plan, self.yielded == self.plan.stop
        self._stand(0, 0, plan.stop_step if ended else plan.schedule.step_of(self.yielded))

    # State

    def state(self, consumed: int | None = None, **more: Any) -> OrderState:
        """What a checkpoint keeps at a position, by default of what is trained. more: further keys of it.

        Raises:
            ConfigError: Past the end, and for a position off the micro-batch boundaries.
            ResumeError: See require_known.
        """
        self.require_known()
        if self.log is not None and self.log.has_grown():
            logger.warning(
                "%s: another run was launched in this folder while this one lives, and questions about steps are "
                "answered for that one: end one of them, and give each run a folder of its own", self.log.path,
            )  # fmt: skip
        consumed = self.trained if consumed is None else as_count(consumed, "consumed_samples", 0)
        if self.blend.config.loader.balance and 0 < consumed < self.plan.schedule.consumed:
            raise ConfigError(
                "consumed_samples",
                f"{consumed}, before this loader began at {self.plan.schedule.consumed}, with loader.balance",
                "a position of this loader, whose steps it knows",
                "load the state of an earlier checkpoint",
            )
        begun = self.plan.step_start(consumed)
        more |= {"step_start": begun, "step": self.steps_at(begun), "count_start": self.count_start or None}
        if self.mixing is not None:
            more["mixing"] = self.mixing.state()
            if self._observed > begun:
                raise ConfigError(
                    "consumed_samples",
                    f"{consumed}, with a mixing that has observed the steps up to {self._observed} since",
                    "a position that it has a state of",
                    "pass load_state_dict the state of a checkpoint: a mixture that learns has no state of "
                    "earlier positions",
                )
            if self._observed < begun:
                logger.warning(
                    "mixing: the state at %d samples is saved before observe was told of the step that ends there: a "
                    "resumed run will learn nothing from it; call observe first", consumed,
                )  # fmt: skip
        if begun != consumed and self._balance is not None:
            more["dealt"] = self._dealing(self._balance, begun)
        known = {key: value for key, value in more.items() if value is not None}
        return OrderState(spec=self.blend.spec.cut(consumed), consumed=consumed, more=known)

    def resume(
        self,
        saved: OrderState,
        where: str,
        *,
        allow_changed: Collection[str] = (),
        new_stage: bool = False,
        read: Callable[[Blend], T] = lambda blend: None,  # type: ignore[assignment, return-value]
    ) -> T:
        """Resume where a state was saved, of this trainer or another one: the one door for all of them.

        Args:
            saved: The state.
            where: What it is, for messages.
            allow_changed: Names of differences that are accepted, besides those of the run.
            new_stage: Datasets and phases of the configuration hold from this position on, those of the state before.
            read: Makes of the resumed data what reads them; an error of it changes nothing, either.

        Returns:
            What `read` made.

        Raises:
            ResumeError: If what determined consumed samples has changed; nothing is changed then.
            ConfigError: See __init__.
        """
        consumed, allowed = saved.consumed, {*self.allow_changed, *as_names(allow_changed, "allow_changed")}
        if self.num_samples is not None and consumed > self.num_samples:
            raise ResumeError(
                where,
                f"a state of {consumed} consumed samples",
                f"at most num_samples={self.num_samples}",
                f"set num_samples to {consumed} or more",
            )
        try:
            blend = self._configured.resume(saved.spec, consumed, allow_changed=allowed, new_stage=new_stage)
        except ChangedPast as error:
            raise ResumeError("", error.refusal + self.entry.allowing(error.keys)) from error
        allow = None if "mixing" in allowed else self.entry.allowing(["mixing"])
        found = None if new_stage else saved.more.get("mixing")
        mixing = open_mixing(blend, self.entry, found, allow)
        if self.end is not None:
            blend.order.check_run(self.end)
        reader, count_start = read(blend), saved.count("count_start", where, 0)
        begun, dealt = saved.count("step_start", where, consumed), None
        if begun != consumed:
            if blend.config.loader.balance:
                dealt = "" if reader is None else self._dealing(Balance(reader.costs(blend.order)), begun)  # type: ignore[attr-defined]
            if dealt != saved.more.get("dealt"):
                raise ResumeError(
                    where,
                    "a state within a step, whose samples were dealt in another way",
                    "the loader.balance, micro batches, ranks and order of the run so far until the step ends",
                    f"load a state between two steps, such as state_dict_at({begun}) of the run that saved this one",
                )
        logged = self.directory is not None and (self.trained, self.blend.spec.hash) == (consumed, blend.spec.hash)
        self._stand(consumed, begun, saved.count("step", where, None))
        self.blend, self.mixing, self.count_start, self.fresh, self._missing = blend, mixing, count_start, True, None
        if self.directory is not None and not logged:
            self.log, self.losses, self.directory, self._log_left = None, None, None, True
        self._observers.clear()
        return reader

    # Observers

    def observing(self) -> Collection[Observer]:
        """All that there are by now, if this front end tells them of its micro batches."""
        makers = OBSERVERS if "observers" in self.entry.carries else []
        self._observers = {make: self._observers.get(make) or make(self) for make in makers}
        return self._observers.values()

    def watched(self, begin: int, track: Track) -> list[Observer]:
        """Those that want the micro batches of a loop that begins at a position."""
        return [one for one in self.observing() if one.begins(begin, track)]

    # Weights

    @property
    def learns(self) -> bool:
        """Whether weights follow losses."""
        return self.mixing is not None and self.mixing.learns

    @property
    def takes_losses(self) -> bool:
        """Whether `observe` is to be given losses."""
        return self.learns or self.blend.config.writes_losses

    @property
    def observes(self) -> bool:
        """Whether `observe` is to be called after each step."""
        return self.mixing is not None or self.blend.config.writes_losses

    @property
    def edge(self) -> int:
        """The first sample whose weights can still change: before it anything may have been read.

        What was prefetched is read again where the front end can do that, else nothing of the next step is read yet.
        """
        if "threads" in self.entry.carries:
            return self.coming + self.on_the_way
        schedule = self.plan.schedule
        return schedule.range_of(schedule.step_of(self.yielded))[1]

    def set_weights(
        self,
        weights: Mapping[str, float],
        at: int | None = None,
        *,
        why: str = "",
        losses: Mapping[str, float] | None = None,
        ranks: Ranks | None = None,
    ) -> int:
        """Draw datasets in other proportions from the sample `at` on; see BaseLoader.set_weights.

        losses: that they were made of. ranks: which compare what they are about to do.
        """

        def facts(changed: Blend) -> Mapping[str, Any]:
            return {"after": self.yielded, "order": changed.spec.hash, **plain(changed.spec.live[-1])}

        def write() -> None:
            if self.log is not None:
                self.log.append_weights(blend.spec)

        ranks = ranks or Alone()
        blend = together(ranks, "set_weights", lambda: self._reweighted(weights, at, why, losses), facts)
        together(ranks, "set_weights: run log", write, lambda _: {})  # what was not agreed on must not stand there
        start = blend.spec.live[-1].at
        self._rebalance(blend)  # first: what followers read again is dealt by the new order
        for follow in self.followers:
            follow(blend.order, start)
        self.blend = blend
        return start

    def _reweighted(
        self, weights: Mapping[str, float], at: int | None, why: str, losses: Mapping[str, float] | None
    ) -> Blend:
        if "weights" not in self.entry.carries:
            raise ConfigError(
                "set_weights",
                f"a run of {self.entry.name}, whose weights never change",
                "a run whose weights can be set",
                "set datasets.NAME.weight in the configuration",
            )
        self.require_known()
        if at is not None and as_count(at, "at", 0) < self.edge:
            raise ConfigError(
                "set_weights: at",
                str(at),
                f"at least {self.edge}: samples before it have been yielded",
                f"pass at={self.edge} or later, or omit it",
            )
        start = next_border(self.plan, self.edge, self.blend.spec) if at is None else at
        schedule = self.plan.schedule
        if self._balance is not None and schedule.range_of(schedule.step_of(start))[0] != start:
            raise ConfigError(
                "set_weights: at",
                f"{start}, within a step, whose samples loader.balance deals as a whole",
                "the first sample of a step",
                f"pass at={schedule.range_of(schedule.step_of(start))[1]}, or omit it",
            )
        blend = with_weights(self.blend, weights, start, self.trained, why, losses)
        if self.end is not None:
            blend.order.check_run(self.end)
        return blend

    def observe(
        self,
        losses: Mapping[str, float] | None = None,
        ranks: Ranks | None = None,
        samples: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    ) -> None:
        """Give the section `mixing` the losses of a step; it may set weights. See BaseLoader.observe."""
        if self.blend.config.writes_losses:
            if samples is None or self.losses is None:
                raise ConfigError(
                    "metrics.losses",
                    "a step without losses of samples, or before its launch was logged",
                    "those of each step",
                    "call log_start before the first one, loader.losses.add(losses, batch) and loader.observe_step()",
                )
            if self.mixing is None and self.coming <= self._observed:
                raise _second_call()
            rows = as_rows(samples)
            self.losses.write(rows[rows["sample"] >= self._observed])  # what fills a last batch was trained before
            if self.mixing is None:
                self._step_observed()
                return
        due = self.mixing is not None and self.mixing.due
        ranks = ranks if due and ranks is not None else Alone()
        heard = self.mixing.hear(losses, ranks) if self.mixing is not None and due else None

        def decide() -> tuple[Mixing, Mapping[str, float] | None]:
            if self.mixing is None:
                raise ConfigError(
                    "observe",
                    "no section mixing in the configuration",
                    "a section that names a controller",
                    "add mixing: {odm: {}} to the configuration",
                )
            if self.coming <= self._observed:
                raise _second_call()
            mixing = copy.deepcopy(self.mixing)  # it has learned nothing where ranks then differ
            return mixing, mixing.decide(self.blend, heard)

        def facts(decided: tuple[Mixing, Mapping[str, float] | None]) -> Mapping[str, Any]:
            mixing, weights = decided
            return {"mixing": mixing.kind, "losses": heard, "weights": weights, "consumed_samples": self.coming}

        mixing, weights = together(ranks, "observe", decide, facts)
        self.mixing = mixing
        self._step_observed()
        if weights is not None:  # compared already
            made_of = heard if mixing.learns else None
            mixing.apply(weights, lambda one: self.set_weights(one, why=mixing.kind, losses=made_of))

    def _step_observed(self) -> None:
        schedule, begun = self.plan.schedule, self._observed
        resized = begun < schedule.consumed  # after this step
        self._observed = schedule.consumed if resized else schedule.range_of(schedule.step_of(begun))[1]

    # Run log

    def log_start(self, directory: str | os.PathLike[str], step: int, *, writes: bool) -> None:
        """The trainer counts the next step as `step`; on the rank that writes, log that it is launched here."""
        schedule = self.plan.schedule
        begun = schedule.consumed_at(schedule.step_of(self.trained))
        self.plan, self._knows_steps = replace(self.plan, schedule=schedule.at(step, begun)), True
        self.log, self.directory, self._log_left = RunLog(directory) if writes else None, directory, False
        self.write_start()

    def write_start(self) -> None:
        """Log the present position as a launch of the run, where there is a log; losses go to a file of their own."""
        if self.log is not None:
            self.log.append(*self.launch(), self.blend.config.to_dict())
        if self.directory is not None and self.blend.config.writes_losses:
            self.losses = LossFile(self.directory, self.launch()[0])

    def launch(self) -> tuple[RunStart, OrderSpec]:
        """What the run log keeps of a launch here: its steps and its order."""
        self.require_known()
        schedule = self.plan.schedule
        step = schedule.step_of(self.trained)
        here = schedule.at(step, schedule.consumed_at(step))
        spec = self.blend.spec.cut(self.trained)
        end = None if self.num_samples is None else (self.num_samples, self.last_batch)
        start = RunStart.of(spec, here, self.partition, self.blend.config.seq_len, self.data_stage, end)
        return replace(start, balance=self.blend.config.loader.balance), spec

    def look_ahead(self) -> None:
        """Warn of what will stop this run later; by then it may run on another number of ranks."""
        if self._is_limited and not self.passes:
            logger.warning(
                "max_epochs: the end of this run is not known here; it stops with an error after %d samples, where a "
                "dataset has been read that often", self.blend.order.longest_run(),
            )  # fmt: skip
        stop = self.plan.stop
        if stop is not None and self.num_samples is not None and stop < self.num_samples:
            logger.warning(
                "num_samples: the last %d of %d samples are in no step, since last_batch is drop; set it to partial, "
                "or num_samples to %d", self.num_samples - stop, self.num_samples, stop,
            )  # fmt: skip
        schedule = self.plan.schedule
        for at in (phase.at for phase in self.blend.config.phases if phase.at > schedule.consumed):
            step = schedule.step_of(at)
            if at != (first := schedule.consumed_at(step)):
                logger.warning(
                    "phases: at %d is within step %d, which begins at sample %d: `at` counts samples, not steps",
                    at, step, first,
                )  # fmt: skip
        for _, first, size in schedule.stretches:
            if size % self.partition.group and (self.plan.stop is None or first < self.plan.stop):
                logger.warning(
                    "global_batch_size: %d samples from sample %d on are not a whole number of micro batches of %d on "
                    "%d ranks: the run will stop there; change the schedule, or resume at other sizes before",
                    size, first, self.partition.micro_batch_size, self.partition.dp_size,
                )  # fmt: skip


def _second_call() -> ConfigError:
    return ConfigError(
        "observe", "a second call in one step", "one call, after the last micro batch", "call observe once in each step"
    )


def check_balance(blend: Blend, reads: Outputs) -> None:
    """Raise ConfigError if attention does not end at documents in these samples, or they are padded documents."""
    keeps_apart = blend.config.packing or reads.cu_seqlens or reads.document_ids or reads.position_ids == "document"
    padded = any(view is not None and view.by_document for view in blend.views)
    if keeps_apart and not padded:
        return
    apart = "set outputs.cu_seqlens: true or outputs.position_ids: document, as the model masks attention, or "
    raise ConfigError(
        "loader.balance",
        "true with " + ("samples of one document each" if padded else "attention across documents"),
        "windows or packs whose documents attention keeps apart: else they are equal work already",
        ("" if padded else apart) + "omit loader.balance",
    )
