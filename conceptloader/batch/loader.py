"""One data-parallel rank's batches: what comes next, reading ahead, state, metrics, run log.

In numpy here; torch/loader.py makes tensors of them.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from conceptloader.base.checks import as_count
from conceptloader.base.shown import Shown
from conceptloader.batch.layout import Allocate, Batch
from conceptloader.batch.metrics import Labels, Meter, StepMetrics, callbacks, count_labels, log_steps
from conceptloader.batch.mixing import Hear, Mixing
from conceptloader.batch.open import open_reader
from conceptloader.batch.prefetch import Prefetcher
from conceptloader.batch.record import BatchRecorder, begin_record, digested
from conceptloader.batch.reweight import new_weights, next_border
from conceptloader.blend import Blend, ConfigLike, open_blend
from conceptloader.errors import ConfigError, ResumeError, UnboundedLoaderError
from conceptloader.kernels.kernel import U64Array
from conceptloader.order.partition import LastBatch, Partition, Plan, Scheme
from conceptloader.order.progress.runlog import RunLog, RunStart
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.order.schedule import BatchSchedule
from conceptloader.order.sequential import Sequential
from conceptloader.order.skips import Skips

logger = logging.getLogger(__name__)
_to_log = log_steps()
STATES_REACH = 64
"""Changes of weights before which `state_dict_at` knows no positions any more."""
_UNOBSERVED = 18  # steps that a trainer may prefetch before the mixing is told of the first one


B = TypeVar("B")
Self = TypeVar("Self", bound="BaseLoader[Any]")


class BaseLoader(Shown, Generic[B]):
    """Iterates over the micro batches of one data-parallel rank: what `_converted` makes of them.

    `for batch in loader` resumes where the last loop stopped, until the run ends. With order sequential each loop
    starts at the beginning, except for the first one after load_state_dict, which resumes there. Every micro batch that
    was yielded counts as consumed, on all ranks; prefetched ones do not.

    Args:
        config: Path of a YAML file, or what was read from one.
        dp_rank: This rank among those that read different samples, from 0.
        dp_size: How many ranks read different samples.
        micro_batch_size: Samples of a batch that is yielded.
        global_batch_size: Samples of a step over all ranks: a number, a BatchSchedule, or one micro batch for each
            rank.
        consumed_samples: Where to start, in samples over all ranks; load_state_dict and `continue_from` in the
            configuration set it too, and check the order. A global batch starts there.
        num_samples: End of the run; by default none, or the end of the data with order sequential.
        epoch_samples: A loop ends at each multiple of it, counted from where the run was continued with
            `continue_from`, and `len` counts its micro batches; by default the run is one epoch. The order runs through
            epochs of this kind: they divide nothing else.
        last_batch: What happens to a last global batch that is not full: "drop", "wrap" or "partial"; by default
            "partial" with order sequential, so that every window is read once, else "drop".
        scheme: How ranks share a global batch. See order/partition.py.
        batch_transform: Called with each batch, concurrently in the reader threads; what it returns is yielded.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
    """

    def __init__(
        self,
        config: ConfigLike,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        micro_batch_size: int,
        global_batch_size: int | BatchSchedule | None = None,
        consumed_samples: int = 0,
        num_samples: int | None = None,
        epoch_samples: int | None = None,
        last_batch: LastBatch | None = None,
        scheme: Scheme = "strided",
        batch_transform: Callable[[B], Any] | None = None,
    ) -> None:
        blend, self.count_start = open_blend(config).continued()
        self.blend, self.mixing = blend, Mixing.begun(blend)
        if self.count_start and consumed_samples:
            raise ConfigError(
                "consumed_samples", f"found {consumed_samples} with continue_from, which says it", fix="omit it"
            )
        self.partition = Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, scheme=scheme)
        self.partition.check_rank(dp_rank)
        self.dp_rank, self._transform = dp_rank, batch_transform
        size = global_batch_size or self.partition.group
        self._rule = size.at(0, 0) if isinstance(size, BatchSchedule) else BatchSchedule.constant(size)
        self.num_samples = num_samples
        self.passes = isinstance(blend.order, Sequential)  # each loop begins at the first sample
        if isinstance(blend.order, Sequential) and num_samples is None:
            self.num_samples = blend.order.num_samples
        self._last_batch: LastBatch = last_batch if last_batch is not None else "partial" if self.passes else "drop"
        self._check_end_known(blend)
        self.measured = True  # False: no metrics of this one, as in evaluation
        self.epoch_samples = None if epoch_samples is None else as_count(epoch_samples, "epoch_samples")
        for _, batch in self._rule.rule:
            if self.epoch_samples is not None and self.epoch_samples % batch:
                raise ConfigError(
                    "epoch_samples",
                    f"found {epoch_samples}, not a multiple of the {batch} samples of a step",
                    fix=f"set {self.epoch_samples // batch * batch or batch}",
                )
        self._ahead: Prefetcher[tuple[U64Array, int], Any] | None = None
        self._log: RunLog | None = None  # of the rank that writes it, once it does
        self._earlier: deque[Blend] = deque(maxlen=STATES_REACH)  # before the last changes of weights
        self._folder: str | os.PathLike[str] | None = None  # of the run log, once it is written
        self._record: BatchRecorder | None = None
        self._noted = 0  # samples of all ranks up to which it goes
        self.fresh = True  # no loop has begun since it was made, or has loaded a state
        if self.count_start:
            self._begin(self.count_start, self.count_start, 0)
        else:
            self._begin(as_count(consumed_samples, "consumed_samples", 0))
        if self.num_samples is not None:
            blend.order.check_run(self.num_samples)
            if not self._plan.count():
                raise ConfigError(
                    "num_samples",
                    f"found {self.num_samples}, less than a global batch of {self._rule.batch_size(0)}: nothing "
                    "would be read",
                    fix="lower global_batch_size, or set last_batch to partial",
                )
        self._reader = open_reader(blend, dp_rank)
        if blend.config.phases and dp_rank == 0:
            blend.look_ahead(self._handed_out)

    def __repr__(self) -> str:
        config, partition = self.blend.config, self.partition
        what = f"micro batches of {partition.micro_batch_size} samples of {config.seq_len:,} tokens"
        end = "without end" if self.num_samples is None else f"of {self.num_samples:,}"
        where = f"rank {self.dp_rank} of {partition.dp_size}, at sample {self.consumed_samples:,} {end}"
        return f"<{type(self).__name__} of {', '.join(config.names)}: {what}, {where}>"

    def __getstate__(self) -> dict[str, Any]:
        """A copy is at the same position, without the running loop."""
        return {**self.__dict__, "_ahead": None, "_record": None}

    def _look_ahead(self) -> None:
        """Warn of what will stop this run later; by then it may run on another number of ranks."""
        for _, first, size in self._plan.schedule.stretches:
            if size % self.partition.group and (self._plan.stop is None or first < self._plan.stop):
                logger.warning(
                    "global_batch_size: %d samples from sample %d on are not a whole number of micro batches of %d on "
                    "%d ranks: the run will stop there; change the schedule, or resume at other sizes before",
                    size, first, self.partition.micro_batch_size, self.partition.dp_size,
                )  # fmt: skip

    def _begin(self, consumed: int, step_start: int | None = None, step: int | None = None) -> None:
        """Stand at `consumed`, in the step that began at `step_start`.

        `step` is the trainer's number, by default as many as batches of these sizes led there. Changes nothing if it
        raises.
        """
        schedule = self._rule.at(0, consumed)
        plan = Plan(
            partition=self.partition, schedule=schedule, num_samples=self.num_samples, last_batch=self._last_batch
        )
        if step_start is not None:
            plan = plan.resumed(consumed, step_start)
        begun = plan.schedule.consumed
        known = step is not None and begun == step_start
        if step is None or not known:
            step = self._rule.step_of(begun)
            known = self._rule.consumed_at(step) == begun
        self._plan = replace(plan, schedule=plan.schedule.at(step, begun))
        self._knows_steps = known
        self._handed_out = self._behind = consumed  # _behind: with the batch that is about to be yielded
        self._observed = begun  # up to the end of the last step that `mixing` was told of

    @property
    def plan(self) -> Plan:
        """Steps, micro batches and ranks of the run from where this loader began."""
        return self._plan

    @property
    def consumed_samples(self) -> int:
        """Samples yielded over all ranks since the first one of the run."""
        return self._handed_out

    @property
    def begins_at(self) -> int:
        """Where the next loop begins, in samples over all ranks."""
        return 0 if self.passes and not self.fresh else self._handed_out

    @property
    def steps(self) -> int | None:
        """Steps of the trainer up to `consumed_samples`.

        It is None within a step, and where their number is unknown: batches of the present sizes do not end there, and
        no state holds it.
        """
        return self.steps_at(self.consumed_samples)

    def steps_at(self, consumed_samples: int) -> int | None:
        """`steps` at another position; None also before the one where this loader began."""
        if consumed_samples < self._plan.schedule.consumed:
            return None
        step = self._plan.schedule.step_of(consumed_samples)
        return next((k for k in (step, step + 1) if self.position(k) == consumed_samples), None)

    def position(self, step: int) -> int | None:
        """Samples consumed by `step` steps of the trainer; None before this loader began, or if it is unknown."""
        if not self._knows_steps or step < self._plan.schedule.step:
            return None
        position, stop = self._plan.schedule.consumed_at(step), self._plan.stop
        return position if stop is None else min(position, stop)

    @property
    def samples_without_loss(self) -> int:
        """How many that this rank has read, prefetched ones included, have a loss mask that is all 0."""
        return self._reader.without_loss.count

    def __len__(self) -> int:
        """Micro batches of this rank in an epoch, consumed ones included.

        They are those in epoch_samples, else in the whole run, or in a pass with order sequential.

        After a change of batch sizes, consumed samples count in the present ones, rounded down. Raises
        UnboundedLoaderError, a TypeError, for a run without num_samples.
        """
        count = self._plan.count() if self.epoch_samples is None else self.epoch_samples // self.partition.group
        if count is None:
            raise UnboundedLoaderError(
                "Loader", "a run without an end has no length", fix="give make_dataloader num_samples, or count steps"
            )
        return count

    def __bool__(self) -> bool:
        """True, also without a length."""
        return True

    def __iter__(self) -> Iterator[B]:
        """The micro batches from `begins_at` to the end of the epoch or run. A new iterator ends the one before.

        Raises ConfigError for another loop after the end of the run.
        """
        if self._ahead is not None:
            self.close()
        begin = self.begins_at
        if self.passes and not self.fresh:
            self.next_pass()
            self._write_start()
        if self._plan.stop is not None and begin >= self._plan.stop:
            self._check_end(begin)
        if self.fresh and self.dp_rank == 0:
            self._look_ahead()
        if self.fresh:
            self._compare_ranks()
        self.fresh, self._handed_out, self._behind = False, begin, begin
        if self._record is not None and begin < self._noted:  # what was yielded and not trained comes again
            self._begin_record()
        options, reader, allocate = self.blend.config.loader, self._reader, self._allocate
        track = self.track if self.blend.config.metrics else None
        measures = self.measured and (track is not None or callbacks)
        meter = Meter(self._plan.schedule, self._plan.stop, track) if measures else None
        recorded = options.batch_log and self.measured
        notes: deque[tuple[Labels | None, Mapping[str, Any]]] = deque()  # of batches on their way to the trainer

        def read(task: tuple[U64Array, int]) -> tuple[Any, Any]:
            batch = reader.read(task[0], allocate)
            note = count_labels(batch.get("loss_mask")) if measures else None, digested(batch) if recorded else {}
            converted = self._converted(batch)
            return (converted if self._transform is None else self._transform(converted)), note

        def noting() -> Iterator[tuple[tuple[U64Array, int], Any]]:
            for task, (batch, note) in ahead:
                notes.append(note)
                yield task, batch

        ahead = self._ahead = Prefetcher(
            read,
            self._epoch(begin),
            threads=options.num_threads,
            depth=options.prefetch_batches,
            most=options.prefetch_bytes // reader.layout.carve(self.partition.micro_batch_size).size,
            warn_after_s=options.warn_after_s,
            timeout_s=options.timeout_s,
            where=reader.where,
            name=f"conceptloader, dp_rank {self.dp_rank}",
        )
        for (_, consumed), batch in self._delivered(noting()):
            self._behind = consumed
            self._check_observed(consumed)
            labels, digest = notes.popleft()
            if meter is not None:
                meter.counted(consumed, labels)
                meter.took(self.blend, consumed, ahead.waited_s, ahead.ready)
            if recorded:
                self._note(consumed, digest)
            self._handed_out = consumed  # last: a batch that a callback's error or Ctrl-C holds back is read again
            yield batch
        if self.passes:
            self.next_pass()

    _allocate: Allocate | None = None

    def _converted(self, batch: Batch) -> B:
        """What is yielded for a batch that was read; called in the reader threads."""
        raise NotImplementedError

    def _delivered(self, ahead: Iterable[tuple[tuple[U64Array, int], B]]) -> Iterable[tuple[tuple[U64Array, int], B]]:
        """Batches on their way from the reader threads to the trainer."""
        return ahead

    def _compare_ranks(self) -> None:
        """Called when the first loop begins: raise ConfigError if other ranks are about to read another run."""

    def track(self, metrics: StepMetrics) -> None:
        """Called after each step where the configuration says `metrics: true`; an adapter's goes to its trainer."""
        if not self.dp_rank:
            _to_log(metrics)

    def _epoch(self, begin: int) -> Iterator[tuple[U64Array, int]]:
        """(samples, samples of all ranks then consumed) of this rank's micro batches from there to the epoch's end."""
        epoch = self.epoch_samples
        end = None if epoch is None else begin + epoch - (begin - self.count_start) % epoch
        for task in self._plan.rest(self.dp_rank, begin):
            yield task
            if end is not None and task[1] >= end:
                return

    def next_pass(self) -> None:
        """Stand at the first sample, whose step follows those of the pass before."""
        plan, ended = self._plan, self._handed_out == self._plan.stop
        self._begin(0, 0, plan.stop_step if ended else plan.schedule.step_of(self._handed_out))

    def _check_end(self, begin: int) -> None:
        """Warn of a loop that reads nothing if it is the first one of a run that has ended; else raise ConfigError."""
        if self.passes:
            raise ConfigError(
                "Loader",
                f"the loaded state is that of the end of a pass, at {begin} samples, and a loop would read nothing",
                fix="for the next pass load state_dict_at(0), to end this one skip the loop",
            )
        ended = f"the run of num_samples={self.num_samples} samples has ended at {begin}"
        if not self.fresh:
            raise ConfigError(
                type(self).__name__,
                f"{ended}, and a second loop would read nothing",
                fix="for another epoch make a loader with a larger num_samples, or without, and load this one's "
                "state_dict: epochs follow each other in one run, and epoch_samples says where a loop ends",
            )
        logger.warning("%s: nothing is left to read", ended)

    def close(self) -> None:
        """End the threads of the current iterator. The loader stays usable."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, str]:
        """The state at `consumed_samples`: one string, equal on all ranks; see progress/state.py."""
        return self.state_dict_at(self.consumed_samples)

    def state_dict_at(self, consumed_samples: int) -> dict[str, str]:
        """The state after `consumed_samples` samples over all ranks, as state_dict would give it there.

        For trainers that prefetch: save what they have trained, not what was yielded.

        Raises:
            ConfigError: past the end, and for a position off the micro-batch boundaries, which are micro_batch_size *
                dp_size apart from where this loader began; before that, any position may have been one.
        """
        consumed = as_count(consumed_samples, "consumed_samples", 0)
        begun = self._plan.step_start(consumed)
        step = self.steps_at(begun)
        more: dict[str, Any] = {"step_start": begun, "step": step, "count_start": self.count_start or None}
        if self.mixing is not None:
            more["mixing"] = self.mixing.state()
            if self._observed < begun:
                logger.warning(
                    "mixing: the state at %d samples is saved before observe was told of the step that ends there: a "
                    "resumed run will learn nothing from it; call observe first", consumed,
                )  # fmt: skip
        known = {key: value for key, value in more.items() if value is not None}
        return self._blend_at(consumed).state(consumed, **known).leaf()

    def _blend_at(self, consumed: int) -> Blend:
        """All that is known of the order, from a position on that may be before weights that were set live."""
        changes: list[Blend] = []
        blends = [self.blend, *reversed(self._earlier)]
        for blend in blends:
            if blend.spec.begins <= blend.spec.decided(consumed):
                break
            changes.append(blend)
        else:
            raise ConfigError(
                "consumed_samples",
                f"{consumed}, before weights that were set live {len(changes)} times since",
                fix=f"states reach back {STATES_REACH} changes: take that of a checkpoint",
            )
        for changed in reversed(changes):
            phase = next(one for one in changed.spec.phases if one.start == changed.spec.live[-1])
            blend = blend.with_phase(phase, consumed)
        return blend

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow_changed: Collection[str] = (), new_stage: bool = False
    ) -> None:
        """Resume where `state` was saved, with any dp_size, micro_batch_size and global_batch_size.

        Args:
            state: What `state_dict` returned, of any rank; also of another trainer's, as find_state gives it.
            allow_changed: Names of differences to accept, as the error gives them, or their beginning ("datasets").
            new_stage: The configuration is another one on purpose from here on: its datasets and phases hold from this
                position, those of the state before it.

        Raises:
            ResumeError: If what determined consumed samples has changed, or the state is corrupt or was edited; the
                loader then stays at its position.
        """
        where = "loader state"
        saved = OrderState.read(state, where)
        consumed = saved.position(where)
        if self.num_samples is not None and consumed > self.num_samples:
            raise ResumeError(
                where, f"saved at {consumed} consumed samples, beyond num_samples={self.num_samples}", fix="raise it"
            )
        blend = self.blend.resume(saved.spec, consumed, allow_changed=allow_changed, new_stage=new_stage)
        fresh = new_stage or "mixing" in allow_changed
        mixing = Mixing.resumed(blend, saved.more.get("mixing"), fresh)
        self._check_end_known(blend)
        reader = open_reader(blend, self.dp_rank)
        count_start = saved.count("count_start", where, 0)
        self._begin(consumed, saved.count("step_start", where, consumed), saved.count("step", where, None))
        self.close()
        self._record = None  # until this start is logged
        self.blend, self._reader, self.count_start, self.fresh = blend, reader, count_start, True
        self.mixing = mixing
        self._earlier.clear()

    def observe(self, losses: Mapping[str, float] | None = None) -> None:
        """Give the section `mixing` of the configuration the losses of a step; it may set weights, see set_weights.

        To be called by every data-parallel rank once a step: after its last micro batch has been yielded, and before
        the state is saved.

        Args:
            losses: Mean loss of each dataset that the step held, equal on all ranks, as DatasetLosses.finish gives it;
                kinds that do not learn from losses need none.

        Raises:
            ConfigError: Without that section, for a call that is not the step's first, losses that are wrong, and
                weights that set_weights refuses; nothing is changed.
        """
        self._observe(losses, lambda read: read(), lambda facts: None)

    def loss_weights(self) -> dict[str, float]:
        """What to multiply the loss of each dataset by, with `mixing: {doremi: {apply: loss}}`.

        Also with a controller of your own that has a method of this name.

        Raises:
            ConfigError: If the mixing has none.
        """
        if self.mixing is None:
            raise ConfigError("loss_weights", "no section mixing", "a controller with weights of the loss, as doremi")
        return self.mixing.loss_weights()

    def _observe(self, losses: Mapping[str, float] | None, hear: Hear, agree: Callable[[dict[str, Any]], None]) -> None:
        mixing = self.mixing
        if mixing is None:
            raise ConfigError("observe", "no section mixing in the configuration", fix="name a controller there")
        if self._behind <= self._observed:
            raise ConfigError("observe", "a second call in one step", "one, after its last micro batch")
        at = next_border(self._plan, self._edge, self.blend.spec)
        weights = mixing.decide(self.blend, losses, Skips(self.blend.spec.skips).global_index(at), hear)
        agree({"mixing": mixing.kind, "step": mixing.steps, "losses": losses, "weights": weights})
        schedule = self._plan.schedule
        self._observed = schedule.range_of(schedule.step_of(self._observed))[1]
        if weights is not None:
            mixing.apply(weights, lambda one: self._set_weights(one, None, mixing.kind, losses=losses))

    def _check_observed(self, consumed: int) -> None:
        """Raise ConfigError where a mixture is to learn, and nobody gives it losses."""
        late = consumed - self._observed
        if self.mixing and self.measured and late > _UNOBSERVED * self._plan.schedule.batch_size(self._observed):
            raise ConfigError(
                f"mixing.{self.mixing.kind}",
                f"{late} samples were yielded, and observe was not called",
                fix="call loader.observe(losses) after each step, or remove `mixing`: docs/mixing-and-resuming.md",
            )

    def _check_end_known(self, blend: Blend) -> None:
        """Raise ConfigError where the run would end with its first samples, and their order is not kept."""
        live = blend.spec.live or blend.spec.origin or blend.config.mixing is not None
        if live and self._last_batch == "wrap" and self.num_samples is not None:
            raise ConfigError(
                "last_batch",
                "wrap in a run whose weights are set live",
                "drop or partial",
                "the first samples, which end the last batch, are not known any more by then",
            )

    def log_start(self, directory: str | os.PathLike[str], step: int) -> None:
        """Append this launch of the run to the run log next to the checkpoints, so that steps can be traced to samples.

        To be called once by every rank after loading the state; only dp_rank 0 writes. Later passes of a sequential
        order are logged when they begin. With `loader.batch_log` every rank begins its part of the batch log there.

        Args:
            directory: Of the checkpoints.
            step: Of the trainer, counted from 0, that the next micro batch belongs to.
        """
        schedule = self._plan.schedule
        begun = schedule.consumed_at(schedule.step_of(self.consumed_samples))
        self._plan, self._knows_steps = replace(self._plan, schedule=schedule.at(step, begun)), True
        self._folder, self._log = directory, None if self.dp_rank else RunLog(directory)
        self._write_start()

    def _write_start(self) -> None:
        """Log the position of this loader as a launch of the run."""
        if self._log is not None:
            self._log.append(*self._launch())
        self._begin_record()

    def _launch(self) -> tuple[RunStart, OrderSpec]:
        schedule = self._plan.schedule
        step = schedule.step_of(self.consumed_samples)
        here = schedule.at(step, schedule.consumed_at(step))
        spec = self.blend.spec.cut(self.consumed_samples, self.blend.order)
        return RunStart.of(spec, here, self.partition, self.blend.config.seq_len), spec

    def _begin_record(self) -> None:
        """From here on what is yielded is recorded, if the configuration says so."""
        if self._folder is not None and self.blend.config.loader.batch_log:
            self._record, self._noted = begin_record(self._folder, self.dp_rank, self._launch()[0]), 0

    def _note(self, consumed: int, note: Mapping[str, Any]) -> None:
        """Record the micro batch up to `consumed` samples."""
        if self._record is None:
            raise ConfigError(
                "loader.batch_log",
                "found true, but no run log, next to which it is written",
                fix="call log_start on every rank before the loop, or omit it",
            )
        place = self._plan.place(consumed - 1)
        assert place is not None
        self._record.add(place.step, place.micro_batch, note)
        self._noted = consumed

    def set_weights(self, weights: Mapping[str, float], at: int | None = None, *, why: str = "") -> int:
        """Draw datasets in other proportions from the sample `at` on: a phase that is set mid-run.

        To be called by every data-parallel rank between the same two micro batches, with the same arguments. The phase
        is in the state from now on, and in the run log once log_start has been called: a resumed run keeps it. It lasts
        until weights are set again, or the next phase of the configuration.

        Args:
            weights: Dataset -> number above 0; datasets that are omitted are not drawn.
            at: Sample over all ranks; by default the first step of which nothing was yielded. What was prefetched of it
                is read again.
            why: They are set, for the run log.

        Returns:
            The sample from which on it holds.

        Raises:
            ConfigError: For unknown or absent datasets, invalid weights, an `at` of what was yielded
                already or that is not after weights set earlier.
            ReadError: For the run log.
        """
        return self._set_weights(weights, at, why)

    _copies = 0  # micro batches on their way behind the one that is yielded

    @property
    def _edge(self) -> int:
        """The first sample that is not yielded yet, nor on its way."""
        return self._behind + self._copies * self.partition.group

    def _set_weights(
        self,
        weights: Mapping[str, float],
        at: int | None,
        why: str,
        agree: Callable[[int, Blend], None] = lambda start, blend: None,
        losses: Mapping[str, float] | None = None,
    ) -> int:
        start, blend = new_weights(self.blend, weights, self._plan, self._edge, at, self.consumed_samples)
        self._check_end_known(blend)
        agree(start, blend)
        if self._log is not None:
            self._log.append_weights(blend.spec, blend.order, start, why, losses)
        self._reader.follow(blend.order)
        if self._ahead is not None:
            self._ahead.renew(lambda task: int(task[0].max(initial=0)) >= start)
        self._earlier.append(self.blend)
        self.blend = blend
        return start


class NumpyLoader(BaseLoader[Batch]):
    """Iterates over the micro batches of one data-parallel rank: dicts of numpy arrays. See BaseLoader; without torch.

    The same batches, states and run logs as those of the loaders for trainers in torch.
    """

    def _converted(self, batch: Batch) -> Batch:
        return batch


batches = NumpyLoader
"""The loader of one data-parallel rank, in numpy."""
