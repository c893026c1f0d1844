"""One data-parallel rank's batches: reading ahead what the account of the run says comes next.

In numpy here; loader/torch/loader.py makes tensors of them.
"""

import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from numpy.typing import ArrayLike

from conceptloader.base.shown import Shown
from conceptloader.base.strict import unknown
from conceptloader.config import Blend, Config, ConfigLike
from conceptloader.errors import ConfigError, UnboundedLoaderError
from conceptloader.loader.batch.layout import Allocate, Batch
from conceptloader.loader.batch.open import open_reader
from conceptloader.loader.batch.prefetch import Prefetcher
from conceptloader.order.mixture import Mixture
from conceptloader.order.partition import LastBatch, Partition, Plan, Scheme
from conceptloader.order.progress.state import OrderState
from conceptloader.order.schedule import BatchSchedule
from conceptloader.run.entry import Entry
from conceptloader.run.observer import Track
from conceptloader.run.ranks import Alone, Ranks, launched, require_alone
from conceptloader.run.training import Task, TrainingRun
from conceptloader.run.weights import Mixing

logger = logging.getLogger(__name__)
LOADER = Entry(
    name="make_dataloader",
    carries=frozenset({"weights", "losses", "observers", "threads", "pin_memory", "balance"}),
)

_OF_TORCH = {
    "batch_size": "pass micro_batch_size, samples of a batch of this rank",
    "num_workers": "set loader: {num_threads: N} in the configuration; threads read, not processes",
    "shuffle": "omit it: samples are shuffled; order: sequential in the configuration reads them in order",
    "collate_fn": "pass batch_transform, which is called with each batch",
    "pin_memory": "pass device, or set loader: {pin_memory: true} in the configuration",
    "drop_last": "pass last_batch, drop or partial",
    "prefetch_factor": "set loader: {prefetch_batches: N} in the configuration",
    "sampler": "omit it, and pass dp_rank and dp_size",
}
"""Arguments of torch's DataLoader, and what stands in their place."""

B = TypeVar("B")
Self = TypeVar("Self", bound="BaseLoader[Any]")


class BaseLoader(Shown, Generic[B]):
    """Iterates over the micro batches of one data-parallel rank: what `_converted` makes of them.

    `for batch in loader` resumes where the last loop stopped, until the run ends. With order sequential each loop
    starts at the beginning, except for the first one after load_state_dict, which resumes there. Every micro batch that
    was yielded counts as consumed, on all ranks; prefetched ones do not.

    Args:
        config: Path of a YAML file, what was read from one, a Config, or a Blend.
        dp_rank: This rank among those that read different samples, from 0; by default 0.
        dp_size: How many ranks read different samples; by default 1. Under torchrun both have to be given.
        micro_batch_size: Samples of a batch that is yielded.
        global_batch_size: Samples of a step over all ranks: a number, a BatchSchedule, or one micro batch for each
            rank.
        consumed_samples: Where to start, in samples over all ranks; load_state_dict and `continue_from` in the
            configuration set it too, and check the order. A global batch starts there.
        num_samples: End of the run; by default none, or the end of the data with order sequential.
        epoch_samples: A loop ends at each multiple of it, counted from where the run was continued with
            `continue_from`, and `len` counts its micro batches; by default the run is one epoch. The order runs through
            epochs of this kind: they divide nothing else.
        last_batch: What happens to a last global batch that is not full: "drop" or "partial", with order sequential
            also "wrap"; by default "partial" with order sequential, so that every window is read once, else "drop".
        scheme: How ranks share a global batch: "strided" or "contiguous". See conceptloader.adapters.Partition.
        device: Of the tensors that are yielded, by default the CPU. Arrays of numpy have none.
        batch_transform: Called with each batch, concurrently in the reader threads; what it returns is yielded.
        allow_changed: Names of differences from the past to accept, in `continue_from` and in load_state_dict.
        check_ranks: Whether ranks compare what they are about to read, in torch; see Loader.

    Attributes:
        run: The account of the run: its position, weights, state and log.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
        ResumeError: `continue_from` names no state from which this configuration can resume.
    """

    entry: ClassVar[Entry] = LOADER

    def __init__(
        self,
        config: ConfigLike,
        *,
        dp_rank: int | None = None,
        dp_size: int | None = None,
        micro_batch_size: int,
        global_batch_size: int | BatchSchedule | None = None,
        consumed_samples: int = 0,
        num_samples: int | None = None,
        epoch_samples: int | None = None,
        last_batch: LastBatch | None = None,
        scheme: Scheme = "strided",
        device: Any = None,
        batch_transform: Callable[[B], Any] | None = None,
        allow_changed: Collection[str] = (),
        check_ranks: Any = False,
        **_others: NoReturn,
    ) -> None:
        for name in _others:
            known = inspect.signature(BaseLoader).parameters.keys() - {"_others"}
            fix = _OF_TORCH.get(name, f"set {name} in the configuration" if name in Config.__dataclass_fields__ else "")
            raise unknown(name, name, known, "argument", fix)
        dp_rank, dp_size = self._share(dp_rank, dp_size)
        partition = Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, scheme=scheme)
        partition.check_rank(dp_rank)
        size = global_batch_size or partition.group
        self.run = TrainingRun(
            config,
            self.entry,
            partition=partition,
            rule=size.at(0, 0) if isinstance(size, BatchSchedule) else BatchSchedule.constant(size),
            consumed=consumed_samples,
            num_samples=num_samples,
            epoch_samples=epoch_samples,
            last_batch=last_batch,
            allow_changed=allow_changed,
        )
        self.run.followers.append(self._follow)
        self.dp_rank = self.run.dp_rank = dp_rank
        self._transform = batch_transform
        self._ahead: Prefetcher[Task, Any] | None = None
        self._reader = self.run.deal(open_reader(self.blend, dp_rank))
        self._place(device, check_ranks)
        if dp_rank == 0:
            self.blend.look_ahead(self.run.yielded)

    def _share(self, dp_rank: int | None, dp_size: int | None) -> tuple[int, int]:
        self._said = None not in (dp_rank, dp_size)
        self._require_said(1)
        if dp_rank is None and dp_size not in (None, 1):
            raise ConfigError(
                "dp_rank", f"none, with dp_size {dp_size}", f"0 to {dp_size} - 1", "pass the rank of this process"
            )
        return (0 if dp_rank is None else dp_rank), (1 if dp_size is None else dp_size)

    def _require_said(self, launched: int) -> None:
        """Raise ConfigError if this is one of several processes, and nobody said which one.

        launched: how many there are, if there is no process group.
        """
        if not self._said:
            require_alone(self._grouped() or launched, "dp_rank", "dp_size")

    def _grouped(self) -> int | None:
        """Processes of the process group, which may be made until the first batch; None without one."""
        return None

    def _place(self, device: Any, check_ranks: Any) -> None:
        """What a loader in torch does with these."""
        self._refuse("device", device)
        self._refuse("check_ranks", check_ranks or None)

    def _refuse(self, name: str, given: Any) -> None:
        if given is not None:
            raise ConfigError(
                name,
                f"{given!r} for {self.entry.name}, whose arrays are numpy's",
                f"no {name}",
                f"omit {name}, or use make_dataloader",
            )

    def __repr__(self) -> str:
        config, run = self.blend.config, self.run
        what = f"micro batches of {run.partition.micro_batch_size} samples of {config.seq_len:,} tokens"
        end = "without end" if run.num_samples is None else f"of {run.num_samples:,}"
        where = f"rank {self.dp_rank} of {run.partition.dp_size}, at sample {self.consumed_samples:,} {end}"
        return f"<{type(self).__name__} of {', '.join(config.names)}: {what}, {where}>"

    def __getstate__(self) -> dict[str, Any]:
        """A copy is at the same position, without the running loop."""
        return {**self.__dict__, "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.run.followers.append(self._follow)

    @property
    def blend(self) -> Blend:
        """The data, in the order in force."""
        return self.run.blend

    @property
    def mixing(self) -> Mixing | None:
        """What sets the weights of the run while it lives, if the configuration has a section `mixing`."""
        return self.run.mixing

    @property
    def plan(self) -> Plan:
        """Steps, micro batches and ranks of the run from where this loader began."""
        return self.run.plan

    @property
    def consumed_samples(self) -> int:
        """Samples consumed over all ranks since the first one of the run."""
        return self.run.trained

    @property
    def begins_at(self) -> int:
        """Where the next loop begins, in samples over all ranks."""
        return self.run.begins_at

    @property
    def steps(self) -> int | None:
        """Steps of the trainer up to `consumed_samples`.

        It is None within a step, and where their number is unknown: batches of the present sizes do not end there, and
        no state holds it.
        """
        return self.run.steps_at(self.consumed_samples)

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
        count = self.run.micro_batches()
        if count is None:
            raise UnboundedLoaderError(
                "Loader",
                "len() of a run without an end",
                "a run with an end",
                "pass num_samples=..., or count steps; a DataLoader takes a conceptloader.SampleDataset",
            )
        return count

    def __getitem__(self, index: Any) -> NoReturn:
        """For torch's DataLoader, which takes it for a dataset."""
        raise ConfigError(
            "Loader",
            f"a request for item {index}, as by torch's DataLoader(loader) or a trainer that wraps one",
            "an iteration over batches, which are whole",
            "iterate over the Loader directly, or pass DataLoader a conceptloader.SampleDataset",
        )

    def __bool__(self) -> bool:
        """True, also without a length."""
        return True

    def __iter__(self) -> Iterator[B]:
        """The micro batches from `begins_at` to the end of the epoch or run. A new iterator ends the one before.

        Raises ConfigError for another loop after the end of the run.
        """
        run = self.run
        if self._ahead is not None:
            self.close()
        begin = self.begins_at
        if run.passes and not run.fresh:
            self.next_pass()
        if run.plan.stop is not None and begin >= run.plan.stop:
            self._check_end(begin)
        if run.fresh:
            if self.dp_rank == 0:
                run.look_ahead()
            self._require_said(launched())
            self._compare_ranks()
        run.require_known()
        run.check_limits()
        run.restart(begin)
        options, reader, allocate = self.blend.config.loader, self._reader, self._allocate
        observers = run.watched(begin, self.track)

        def read(task: Task) -> tuple[Any, list[Any]]:
            batch = reader.read(task[0], allocate)
            notes = [one.read(batch) for one in observers]
            converted = self._converted(batch)
            return (converted if self._transform is None else self._transform(converted)), notes

        ahead = self._ahead = Prefetcher(
            read,
            run.tasks(self.dp_rank, begin),
            threads=options.num_threads,
            depth=options.prefetch_batches,
            most=options.prefetch_bytes // reader.layout.carve(run.partition.micro_batch_size).size,
            warn_after_s=options.warn_after_s,
            timeout_s=options.timeout_s,
            where=reader.where,
            name=f"conceptloader, dp_rank {self.dp_rank}",
        )
        coming = (((task, notes), batch) for task, (batch, notes) in ahead)
        for ((samples, consumed), notes), batch in self._delivered(coming):
            run.yielding(consumed)
            # What pads a last batch is of positions after the end.
            position = int(samples[1, 0]) if samples.ndim == 2 else consumed - 1
            for one, note in zip(observers, notes, strict=True):
                one.yielded(position, consumed, note, ahead.waited_s, ahead.ready)
            run.yielded_to(consumed)  # last: a batch that a callback's error or Ctrl-C holds back is read again
            yield batch
        if run.passes:
            run.next_pass()

    def next_pass(self) -> None:
        """Begin another pass of a sequential order: it is logged, and its steps follow those before."""
        self.run.next_pass()
        self.run.write_start()

    _allocate: Allocate | None = None
    track: Track = None
    """Of an adapter whose trainer has loggers: takes the number of a step, from 0, and values by name."""

    def _converted(self, batch: Batch) -> B:
        """What is yielded for a batch that was read; called in the reader threads."""
        raise NotImplementedError

    def _delivered(self, ahead: Iterable[tuple[Any, B]]) -> Iterable[tuple[Any, B]]:
        """Batches on their way from the reader threads to the trainer."""
        return ahead

    def _compare_ranks(self) -> None:
        """Called when the first loop begins: raise ConfigError if other ranks are about to read another run."""

    def _check_end(self, begin: int) -> None:
        """Warn of a loop that reads nothing if it is the first one of a run that has ended; else raise ConfigError."""
        run = self.run
        if run.passes:
            raise ConfigError(
                "Loader",
                f"a loaded state of the end of a pass, at {begin} samples, after which a loop would read nothing",
                "a state within a pass",
                "for the next pass load state_dict_at(0), to end this one skip the loop",
            )
        ended = f"the run of num_samples={run.num_samples} samples has ended at {begin}"
        if not run.fresh:
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
        """The state at `consumed_samples`: one string, equal on all ranks."""
        return self.state_dict_at(self.consumed_samples)

    def state_dict_at(self, consumed_samples: int) -> dict[str, str]:
        """The state after `consumed_samples` samples over all ranks.

        As state_dict would give it there, with all weights that were set since and begin later. For trainers that
        prefetch: save what they have trained, not what was yielded.

        Raises:
            ConfigError: past the end, and for a position off the micro-batch boundaries, which are micro_batch_size *
                dp_size apart from where this loader began; before that, any position may have been one.
        """
        return self.run.state(consumed_samples).leaf()

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
        reader = self.run.resume(
            OrderState.read(state, where),
            where,
            allow_changed=allow_changed,
            new_stage=new_stage,
            read=lambda blend: (
                self._reader.on(blend.order) if blend.views is self.blend.views else open_reader(blend, self.dp_rank)
            ),
        )
        self._reader = self.run.deal(reader)
        self.close()

    def observe(
        self,
        losses: Mapping[str, float] | None = None,
        *,
        samples: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
        group: Any = None,
    ) -> None:
        """Give the section `mixing` of the configuration the losses of a step; it may set weights, see set_weights.

        In torch, `losses.add` and `observe_step` call it.

        To be called by every data-parallel rank once a step: after its last micro batch has been yielded, and before
        the state is saved.

        Args:
            losses: Mean loss of each dataset that the step held, equal on all ranks, as DatasetLosses.finish gives it;
                kinds that do not learn from losses need none.
            samples: With `metrics: {losses: true}` of this rank's samples in the step: their sample_index, int [N]; the
                sums of their losses, and the labels that these are of, float [N].
            group: As for set_weights.

        Raises:
            ConfigError: Without that section, for a call that is not the step's first, losses that are wrong, weights
                that set_weights refuses, and ranks that differ; nothing is changed.
        """
        self.run.observe(losses, self._ranks(group), samples)

    def log_start(self, directory: str | os.PathLike[str], step: int) -> None:
        """Append this launch of the run to the run log next to the checkpoints, so that steps can be traced to samples.

        To be called once by every rank after loading the state; only dp_rank 0 writes. Later passes of a sequential
        order are logged when they begin.

        Args:
            directory: Of the checkpoints.
            step: Of the trainer, counted from 0, that the next micro batch belongs to.
        """
        self.run.log_start(directory, step, writes=not self.dp_rank)

    def set_weights(
        self,
        weights: Mapping[str, float],
        at: int | None = None,
        *,
        why: str = "",
        group: Any = None,
    ) -> int:
        """Draw datasets in other proportions from the sample `at` on: a phase that is set mid-run.

        To be called by every data-parallel rank between the same two micro batches, with the same arguments. The phase
        is in the state from now on, and in the run log once log_start has been called: a resumed run keeps it. It lasts
        until weights are set again, or the next phase of the configuration.

        Args:
            weights: Dataset -> number above 0; datasets that are omitted are not drawn.
            at: Sample over all ranks; by default the first step of which nothing was yielded. What was prefetched of it
                is read again; on a CUDA device one micro batch more is on its way there.
            why: They are set, for the run log.
            group: In torch, the torch.distributed group of the data-parallel ranks, by default all processes; where it
                is initialized, ranks compare what they are about to do.

        Returns:
            The sample from which on it holds.

        Raises:
            ConfigError: For unknown or absent datasets, invalid weights, an `at` of what was yielded
                already or that is not after weights set earlier, ranks that differ.
            ReadError: For the run log.
        """
        return self.run.set_weights(weights, at, why=why, ranks=self._ranks(group))

    def _ranks(self, group: Any) -> Ranks:
        self._refuse("group", group)
        return Alone()

    def _follow(self, order: Mixture, start: int) -> None:
        """Read on in another order, and what was prefetched from `start` on again."""
        self._reader.follow(order)
        if self._ahead is not None:
            order.sample(start)  # builds the tree of the new phase here, where no threads compete for the interpreter
            self._ahead.renew(lambda task: int(task[0].max(initial=0)) >= start)


class NumpyLoader(BaseLoader[Batch]):
    """Iterates over the micro batches of one data-parallel rank: dicts of numpy arrays, see docs/batch-keys.md.

    Without torch: the arguments and methods of make_dataloader, but for `device` and `check_ranks`. Its batches, states
    and run logs are the same.
    """

    entry = Entry(name="batches", carries=LOADER.carries - {"pin_memory"})

    def _converted(self, batch: Batch) -> Batch:
        return batch


batches = NumpyLoader
"""Another name of NumpyLoader: the loader of one data-parallel rank, in numpy."""
