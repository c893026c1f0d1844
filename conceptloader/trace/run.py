"""A run to trace: its order, its data and, where they are known, its steps."""

import logging
import os
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property

from conceptloader.blend import Blend, View, load_config, open_blend
from conceptloader.blend.samples import Part, by_document, joined, kind_of, parts_of, pieces_of
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.live import LoggedPhase
from conceptloader.order.mixture import Phase, shares_at
from conceptloader.order.partition import Place
from conceptloader.order.progress.resume import compare
from conceptloader.order.progress.runlog import History, RunLog

logger = logging.getLogger(__name__)

_EVERY = 1 << 62  # samples: all of a run
Interval = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of the order with what its samples read: windows or packs of seq_len inputs, or documents."""

    view: View
    seq_len: int

    @property
    def dataset(self) -> Dataset:
        return self.view.dataset

    @property
    def kind(self) -> str:
        """What a sample is: window, document or pack."""
        return kind_of(self.view)

    @property
    def tracks(self) -> tuple[str, ...]:
        """The tracks that the configuration names, or else all that hold concepts."""
        concepts = (name for name, track in self.dataset.tracks.items() if track.codec == "concepts")
        return self.view.tracks or tuple(sorted(concepts))

    @property
    def by_document(self) -> bool:
        """Whether a sample is a document."""
        return by_document(self.view)

    def token_range(self, window: int) -> Interval:
        """Tokens [start, stop) that a window or document reads; of a pack, from its first part to its last."""
        parts = parts_of(self.view, window, self.seq_len)
        return min((p.start for p in parts), default=0), max((p.stop for p in parts), default=0)

    def is_read(self, window: int, sample: int = 0) -> bool:
        """False if all of a window is quarantined, or excluded from the sample that it is; or of an empty pack."""
        return bool(self.parts(window, sample))

    def parts(self, window: int, sample: int = 0) -> list[Part]:
        """What a sample reads of the dataset; nothing of what is quarantined, or excluded from this sample on."""
        parts = pieces_of(self.view, parts_of(self.view, window, self.seq_len))
        return joined(part for part in parts if part.since > sample)


@dataclass(frozen=True, kw_only=True)
class Run:
    """blend: the order of the samples and their data; history: steps of past starts, and those that follow the last.

    Without a history there are samples but no steps.
    """

    blend: Blend
    history: History | None = None

    @property
    def phases(self) -> list[LoggedPhase]:
        """All of the run, as far as they are known; see RunLog.phases."""
        return list(self.blend.logged_phases) or [LoggedPhase(phase, None) for phase in self.blend.spec.phases]

    def phases_in(self, first: int, stop: int) -> list[LoggedPhase]:
        """Those in force at one of the samples [first, stop), with the reasons for weights that were set live."""
        spec, phases = self.blend.spec, self.phases
        starts = [one.phase.start for one in phases]
        begin, end = (spec.decided(sample + 1) - 1 for sample in (first, max(first, stop - 1)))
        return phases[max(0, bisect_right(starts, begin) - 1) : bisect_right(starts, end)]

    def shares(self, phase: Phase, sample: int) -> dict[str, float]:
        """Member -> its part of what a phase draws around a sample."""
        phases = [one.phase for one in self.phases if one.phase.start <= phase.start]
        return shares_at(phases, max(phase.start, self.blend.spec.decided(sample + 1) - 1))

    @cached_property
    def members(self) -> list[Member | None]:
        """By the dataset index of the order; None where a dataset has left the configuration.

        Raises:
            ConfigError: If the configuration does not say how many tokens of a document a sample takes.
        """
        return [
            None if view is None else Member(view=view, seq_len=self.seq_len(view.member.seq_len))
            for view in self.blend.views
        ]

    def seq_len(self, given: int | None) -> int:
        """Tokens of a sample: `given`, or what the configuration says.

        Raises:
            ConfigError: If neither does.
        """
        seq_len = given or self.blend.config.seq_len
        if seq_len is None:
            raise ConfigError("seq_len", "nothing", "the number of tokens of a sample in a batch")
        return seq_len

    def member(self, index: int) -> Member:
        """A member by its index.

        Raises:
            ConfigError: If its dataset has left the configuration.
        """
        member = self.members[index]
        if member is None:
            name = self.name(index)
            raise ConfigError(name, "it was read by this run, but is no longer in the configuration", fix="put it back")
        return member

    def name(self, index: int) -> str:
        """Name of a member: that of its dataset, or "name@seq_len" after a change of sequence length."""
        return self.blend.order.names[index]

    def find(self, dataset: str | None) -> list[int]:
        """Indices of the members that read a dataset; None: of all whose data are there.

        Raises:
            ConfigError: If none.
        """
        known = {k: member.view.name for k, member in enumerate(self.members) if member is not None}
        found = [k for k, name in known.items() if dataset in (None, name)]
        if not found:
            raise ConfigError("dataset", repr(dataset), f"one of {sorted(set(known.values()))}")
        return found

    @property
    def steps(self) -> History:
        """The history.

        Raises:
            ConfigError: If there is none.
        """
        if self.history is None:
            raise ConfigError(
                "run log",
                "steps are not known without the sizes of the batches",
                fix="give the run log (conceptloader_runs.jsonl, next to the checkpoints), or the global batch, micro "
                "batch and data-parallel size of a new run",
            )
        return self.history

    def places(self, sample: int) -> list[Place]:
        """Where a sample is trained; empty without a history, or if it is not."""
        return [] if self.history is None else self.history.places(sample)

    def epochs(self, index: int, num_samples: int | None) -> range:
        """Epochs of a member that a run of `num_samples` samples begins; None: the first one."""
        if num_samples is None:
            return range(1)
        size = max(1, self.blend.order.sizes[index])
        return range(-(-self.blend.order.counts(num_samples)[index] // size))


def open_log(log: str | os.PathLike[str]) -> RunLog:
    """The run log in a directory, or of its file."""
    return RunLog(log if os.path.isdir(log) else os.path.dirname(os.fspath(log)) or ".")


def open_run(config: str | os.PathLike[str], log: str | os.PathLike[str] | None = None) -> Run:
    """A run from its configuration file and, for its steps, the directory (or the file) of its run log.

    The log determines the past, the configuration what follows.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
        ResumeError: If the configuration no longer gives the logged past.
    """
    if log is None:
        return Run(blend=open_blend(load_config(config)))
    runs = open_log(log)
    if not runs.starts:
        raise ConfigError(runs.path, "no start of a run", "the run log of a training")
    last = runs.history.segments[-1].start
    spec, consumed = runs.spec_at(last), max(last.consumed, runs.changed_at())
    # What a framework's command line may have said in place of the configuration.
    said = {"seed": spec.seed, "seq_len": last.seq_len, "split_documents": spec.extra.get("split_documents")}
    defaults = {key: value for key, value in said.items() if value is not None}
    blend = open_blend(load_config(config, defaults=defaults)).resume(spec, consumed)
    changed = [str(one) for one in compare(spec, blend.spec, _EVERY)]
    if changed:
        logger.warning(
            "%s: the configuration gives another order than the one with which step %d was started (%s); samples from "
            "%d on are answered as it says now, trained or not",
            runs.path, last.step, "; ".join(changed), consumed,
        )  # fmt: skip
    blend = replace(blend, logged_phases=runs.phases(blend.spec))
    return Run(blend=blend, history=runs.history)
