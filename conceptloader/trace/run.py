"""A run to trace: its order, its data and, where they are known, its steps."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from conceptloader.config import Blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.loader.batch.open import open_reader
from conceptloader.order.balance import Costs
from conceptloader.order.partition import Place
from conceptloader.order.progress.runlog import EARLIER, History, RunLog
from conceptloader.order.segments import Segment
from conceptloader.trace.ranges import Member

EVERY = 1 << 62
"""Samples: all of a run."""


class Era(NamedTuple):
    """Samples [first, stop) of a run, from `step` on, that one order with one set of masks decided."""

    first: int
    stop: int
    step: int
    open: Callable[[], "Run"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run, which mostly has one order. Where a launch changed what had been decided, each answers for its own.

    What asks for the contents of samples does so by `at`, `at_step` or `eras`, which give runs of one order, the same
    object each time.

    Attributes:
        blend: The order of the samples and their data; of several orders, the last.
        history: Steps of past starts, and those that follow the last. Without one there are samples but no steps.
        first: The first sample that `blend` answers for; what was before is not known if there are no parts.
        stop: The one after the last.
        parts: All eras, if there are several.
        log: The run log of what was trained.
    """

    blend: Blend
    history: History | None = None
    first: int = 0
    stop: int = EVERY
    parts: tuple[Era, ...] = ()
    log: RunLog | None = None

    def __post_init__(self) -> None:
        if self.history is not None:
            object.__setattr__(self, "history", self.history.balanced(self._costs_of))

    def _costs_of(self, samples: U64Array) -> I64Array:
        """What samples of one step cost; see BatchReader.costs."""
        return self.at(int(samples[0]))._costs(samples)

    @cached_property
    def _costs(self) -> Costs:
        return open_reader(self.blend).costs(self.blend.order)

    @property
    def _eras(self) -> tuple[Era, ...]:
        return self.parts or (Era(self.first, self.stop, 0, lambda: self),)

    @property
    def begin(self) -> int:
        """The first sample that anything is known of: a run log may begin with a run that came from elsewhere."""
        return self._eras[0].first

    def eras(self, low: int = 0, high: int = EVERY) -> Iterator["Run"]:
        """Runs of one order that together answer for samples [low, high). Raises ConfigError as `at`."""
        self._check_known(low)
        for era in self._eras:
            if era.first < high and low < era.stop:
                yield era.open()._knowing(max(low, era.first))

    def at(self, sample: int) -> "Run":
        """The run of one order that a sample was trained in; if it was trained again, the last one.

        Raises:
            ConfigError: If nothing says what the sample was.
        """
        self._check_known(sample)
        stops = min(sample, EVERY - 1)
        return [era for era in self._eras if era.first <= stops < era.stop][-1].open()._knowing(sample)

    def at_step(self, step: int) -> "Run":
        """The run of one order that a step was trained in.

        Raises:
            ConfigError: If steps are not known, or not this one, or nothing says what its samples were; after the end.
        """
        first = self.steps.launch(step).plan.range_of(step)[0]
        return [era for era in self._eras if era.step <= step][-1].open()._knowing(first)

    def _check_known(self, sample: int) -> None:
        if sample < self.begin:
            found = f"the run log begins at sample {self.begin}, and what decided those before may have been another"
            raise ConfigError(f"sample {sample}", found, fix=EARLIER)

    def _knowing(self, sample: int) -> "Run":
        known = self.blend.order.begin
        if sample < known:
            found = f"weights that were set before sample {known} decided it, and they are not in the run log"
            raise ConfigError(f"sample {sample}", found, fix=EARLIER)
        return self

    @cached_property
    def datasets(self) -> dict[str, Dataset]:
        """Those of all eras, by `data_name`."""
        return {self.data_name(era, name): ds for era in self.eras() for name, ds in era.blend.datasets.items()}

    def data_name(self, era: "Run", name: str) -> str:
        """The name of a dataset of an era; of data that the last one does not have under it, "name@fingerprint"."""
        mine, last = era.blend.datasets[name].stream_fingerprint, self.blend.datasets.get(name)
        return name if last is not None and last.stream_fingerprint == mine else f"{name}@{mine}"

    def segments_in(self, first: int, stop: int) -> list[Segment]:
        """The weights in force at one of the samples [first, stop), with the reasons of those that were set live."""
        segments = self.blend.order.segments
        starts = [one.at for one in segments]
        return segments[max(0, bisect_right(starts, first) - 1) : bisect_right(starts, max(first, stop - 1))]

    @cached_property
    def members(self) -> list[Member | None]:
        """By the dataset index of the order; None where a dataset has left the configuration.

        Raises:
            ConfigError: If the configuration does not say how many tokens of a document a sample takes.
        """
        return [
            None if view is None else Member(view=view, seq_len=view.member.seq_len or self.blend.config.needed_seq_len)
            for view in self.blend.views
        ]

    def member(self, index: int) -> Member:
        """A member by its index.

        Raises:
            ConfigError: If its dataset has left the configuration.
        """
        member = self.members[index]
        if member is None:
            name = self.name(index)
            found = "it was read by this run, but its data are not in the configuration"
            raise ConfigError(name, found, fix="put the dataset back, or give a configuration with its present path")
        return member

    def name(self, index: int) -> str:
        """Name of a member: that of its dataset, or "name@seq_len" after a change of sequence length."""
        return self.blend.order.names[index]

    @property
    def steps(self) -> History:
        """The history.

        Raises:
            ConfigError: If there is none.
        """
        if self.history is None:
            raise ConfigError(
                "run log",
                "no sizes of batches, without which steps cannot be mapped to samples",
                "a run log, or the sizes of a new run",
                "pass --run-log DIR (run_log=), the directory of conceptloader_runs.jsonl, usually "
                "that of the checkpoints, or --global-batch-size N (global_batch_size=), for ranks "
                "also --micro-batch-size and --dp-size",
            )
        return self.history

    def places(self, sample: int) -> list[Place]:
        """Where a sample is trained; empty without a history, or if it is not."""
        return [] if self.history is None else self.history.places(sample)

    def epochs(self, index: int, num_samples: int | None) -> range:
        """Epochs of a member that this order reads of, in a run of `num_samples` samples; None: the first one."""
        if num_samples is None:
            return range(1)
        size, order = max(1, self.blend.order.sizes[index]), self.blend.order
        begin = order.counts(self.first)[index] // size if self.first else 0
        return range(begin, -(-order.counts(min(num_samples, self.stop))[index] // size))
