"""The run log: conceptloader_runs.jsonl, a line for every launch of a run and every change of its weights.

It is next to the checkpoints. Before the first launch that has them stand its order spec and its configuration, so that
the past needs no file that somebody may have edited since.

The order of samples needs no history, but the step at which a sample is trained does: batch sizes ramp up, and restarts
change them. One process of a run appends; a line counts once its newline is on disk, so a write that was truncated is
dropped on reading and cleared away by the next append, and no earlier line is ever touched.
"""

import copy
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import Saved, build, plain
from conceptloader.errors import ConfigError, FormatError, ReadError, ResumeError
from conceptloader.order.balance import Balance, Costs
from conceptloader.order.partition import LastBatch, Partition, Place, Plan, Scheme
from conceptloader.order.progress.spec import SAVED_VERSION, OrderSpec, chained
from conceptloader.order.schedule import BatchSchedule
from conceptloader.order.segments import Segment
from conceptloader.storage.durable import make_directories, sync_directory

logger = logging.getLogger(__name__)

FILE_NAME = "conceptloader_runs.jsonl"
_EDITED = "the log was edited: restore it from a copy, or pass another --run-log"
EARLIER = "pass --run-log with the folder of the earlier launches' checkpoints, from which this run was resumed"


@dataclass(frozen=True, kw_only=True)
class RunStart(Saved):
    """One start of a run: how steps take samples from there on.

    Attributes:
        step: The first one, counted from 0.
        consumed: Samples consumed before it.
        batch: Rule of BatchSchedule, ((from_consumed, batch_size), ...).
        micro_batch_size: Samples of a micro batch on one rank.
        dp_size: Data-parallel ranks.
        seq_len: Tokens of a window, None where samples are documents.
        spec: Hash of the order spec.
        scheme: See Partition.
        data_stage: Its name, for frameworks that have them.
        end: Of the run: its samples, and what happens to a last batch that is not full, see Plan; None for none.
        balance: Whether the samples of a step were dealt by `loader.balance`.
        time: UTC, ISO 8601.
    """

    step: int
    consumed: int
    batch: tuple[tuple[int, int], ...]
    micro_batch_size: int
    dp_size: int
    seq_len: int | None
    spec: str
    scheme: Scheme
    data_stage: str | None = None
    end: tuple[int, LastBatch] | None = None
    balance: bool = False
    time: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", self.plan.schedule.rule)  # whatever is wrong is said here

    @classmethod
    def of(
        cls,
        spec: OrderSpec,
        schedule: BatchSchedule,
        partition: Partition,
        seq_len: int | None,
        data_stage: str | None = None,
        end: tuple[int, LastBatch] | None = None,
    ) -> "RunStart":
        """The start of a run with this order, at the position that `schedule` counts from."""
        return cls(
            step=schedule.step,
            consumed=schedule.consumed,
            batch=schedule.rule,
            micro_batch_size=partition.micro_batch_size,
            dp_size=partition.dp_size,
            scheme=partition.scheme,
            seq_len=seq_len,
            spec=spec.hash,
            data_stage=data_stage,
            end=end,
        )

    @cached_property
    def plan(self) -> Plan:
        """Steps and samples from this start on, as if it were never restarted."""
        num_samples, last_batch = self.end or (None, "drop")
        return Plan(
            num_samples=num_samples,
            last_batch=last_batch,
            partition=Partition(micro_batch_size=self.micro_batch_size, dp_size=self.dp_size, scheme=self.scheme),
            schedule=BatchSchedule(self.batch, self.step, self.consumed),
        )


@dataclass(frozen=True)
class _Kept(Saved):
    """An order spec, or a configuration, in front of the first start that has it."""

    hash: str
    content: dict[str, Any]


@dataclass(frozen=True)
class _Before(Saved):
    """In front of weights that were set live: see `chained`."""

    before: str


@dataclass(frozen=True)
class Launch:
    """The steps [start.step, stop_step) of a launch, as they count; stop_step None: to the end, and into the future.

    balance: how its steps were dealt, once somebody has said what samples cost; see History.balanced.
    """

    start: RunStart
    stop_step: int | None
    balance: Balance | None = None

    @property
    def plan(self) -> Plan:
        """Steps and samples of this launch."""
        return self.start.plan if self.balance is None else replace(self.start.plan, balance=self.balance)

    def place(self, sample: int) -> Place | None:
        """Where `sample` is trained in this launch, if it is."""
        if sample < self.start.consumed:
            return None
        step = self.plan.schedule.step_of(sample)
        return self.plan.place(sample) if self.stop_step is None or step < self.stop_step else None


class History:
    """Steps and samples across all starts of a run. A start at a step supersedes what was logged for it and later ones.

    starts: in the order in which they were logged; at least one.
    """

    def __init__(self, starts: Sequence[RunStart]) -> None:
        if not starts:
            raise ConfigError(
                "run log",
                "no start of a run",
                "a start, by which steps are known",
                "pass --run-log with the run log of a training",
            )
        kept: list[RunStart] = []
        for start in starts:
            while kept and kept[-1].step >= start.step:
                kept.pop()
            kept.append(start)
        stops = [*(start.step for start in kept[1:]), None]
        self.launches = [Launch(start, stop) for start, stop in zip(kept, stops, strict=True)]

    def part(self, launches: Sequence[Launch]) -> "History":
        """Some of its launches."""
        part = copy.copy(self)
        part.launches = list(launches)
        return part

    def balanced(self, costs: Costs) -> "History":
        """With the places of samples in launches that dealt them by their costs."""
        balance = Balance(costs)
        return self.part([replace(one, balance=balance) if one.start.balance else one for one in self.launches])

    def launch(self, step: int) -> Launch:
        """The launch that `step` belongs to. Raises ConfigError for a step before the first one logged."""
        for launch in reversed(self.launches):
            if launch.start.step <= step:
                return launch
        raise ConfigError(
            f"step {step}",
            f"a run log that begins at step {self.launches[0].start.step}",
            "a run log with this step",
            EARLIER,
        )

    def range_of(self, step: int) -> tuple[int, int]:
        """[first, last + 1) of the samples that `step` trains, or would train if it is ahead; none after the end."""
        plan = self.launch(step).plan
        return plan.consumed_at(step), plan.consumed_at(step + 1)

    def places(self, sample: int) -> list[Place]:
        """Every place at which `sample` counts: mostly one.

        Empty for a sample before the first start, or passed over by a restart after it; more than one where a restart
        read samples again.
        """
        return [place for launch in self.launches if (place := launch.place(sample)) is not None]


class RunLog:
    """The run log in a directory of checkpoints.

    Reading raises FormatError for a line that is complete but not valid, ReadError if the file cannot be read. A log
    that does not exist is empty.

    Args:
        directory: Of the checkpoints.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / FILE_NAME
        self._end = -1
        self.read()

    @property
    def history(self) -> History:
        """Steps and samples of the run as it counts now.

        Raises:
            ConfigError: If the log is empty.
        """
        return History(self.starts)

    def spec(self, start: RunStart) -> OrderSpec:
        """The order spec with which a start was made.

        Raises:
            FormatError: If the log lacks it.
        """
        if start.spec not in self._specs:
            raise FormatError(
                self.path,
                f"no order spec {start.spec} of step {start.step}",
                "the spec of each start in the log",
                f"restore {self.path} from a copy, or pass another --run-log",
            )
        return self._specs[start.spec]

    def spec_at(self, start: RunStart, consumed: int | None = None) -> OrderSpec:
        """The order spec of a start with all weights that were set live, before it and after it, as far as it is known.

        consumed: only those after it that held for one of the first so many samples. Raises FormatError as `spec`.
        """
        spec, after = self.spec(start), self.number(start)
        chain, live = chained(spec.forgotten, spec.live), list[Segment]()
        for before, one in (self._change(place) for number, place in self._changes if number == after):
            if consumed is None or one.at < consumed:
                chain = chained(before, [one])
        while chain in self._noted:
            chain, one = self._noted[chain]
            live.append(one)
        return replace(spec, segments=(*spec.planned, *live), forgotten=chain)

    def config(self, start: RunStart) -> Mapping[str, Any] | None:
        """The configuration of a start, with absolute paths; None if it was logged without one."""
        return self._configs.get(self._config_of[self.number(start) - 1] or "")

    def number(self, start: RunStart) -> int:
        """Of a start in the log, from 1; of equal ones the last."""
        return max(k for k, one in enumerate(self.starts, 1) if one == start)

    @cached_property
    def _noted(self) -> dict[str, tuple[str, Segment]]:
        """Weights set live by the chain that ends with them, with the chain before; see `chained`."""
        found: dict[str, tuple[str, Segment]] = {}
        for spec in self._specs.values():
            chain = spec.forgotten
            for one in spec.live:
                before, chain = chain, chained(chain, [one])
                found[chain] = before, one
        changes = (self._change(place) for _, place in self._changes)
        return {**found, **{chained(before, [one]): (before, one) for before, one in changes}}

    def append_weights(self, spec: OrderSpec) -> None:
        """Log the weights that were set live last in a spec: one write and fsync, however long the log is.

        Raises ReadError if writing fails (the log is as before).
        """
        self.read()
        *before, last = spec.live
        place = self._end
        self._write([{"kind": "weights", "before": chained(spec.forgotten, before), **plain(last)}])
        self._changes.append((len(self.starts), place))
        vars(self).pop("_noted", None)

    def append(self, start: RunStart, spec: OrderSpec, config: Mapping[str, Any] | None = None) -> None:
        """Log a start and, if they are new, its spec and configuration: one write and fsync.

        To be called by one process of a run. A start that does not begin where the log expects its step is logged too,
        with a warning.

        Args:
            start: The launch.
            spec: Its order.
            config: What `Config.to_dict` says of its configuration. Without it, as for samples that Megatron-LM's own
                loader chooses, nobody can ask what the launch has trained.

        Raises:
            ConfigError: If start.spec is not the hash of `spec`.
            ReadError: If writing fails (the log is as before).
        """
        if start.spec != spec.hash:
            raise ConfigError(
                "run log",
                f"start.spec {start.spec}",
                f"{spec.hash}, the hash of the spec",
                "pass append(start, spec) the spec of this start",
            )
        self.read()
        if not start.consumed and self.starts and self.starts[-1].spec != start.spec:
            logger.warning(
                "%s: a run of another order begins at sample 0 in the log of one that was launched before; from step "
                "%d on, questions about steps are answered for this run: log each run in a folder of its own",
                self.path, start.step,
            )  # fmt: skip
        if start.consumed or spec.order != "sequential":  # else another pass begins
            self._check_continuity(start)
        lines: list[dict[str, Any]] = []
        known = self._specs.get(start.spec)
        if known is None or known.begins > spec.begins:
            lines.append({"kind": "spec", "hash": spec.hash, "spec": spec.to_dict()})
        line = {"kind": "start", **plain(start)}
        if config is not None:
            line["config"] = fingerprint(config)
            if line["config"] not in self._configs:
                lines.append({"kind": "config", "hash": line["config"], "config": config})
        self._write([*lines, line])
        for one in [*lines, line]:
            self._take(json.loads(json.dumps(one)))

    def _check_continuity(self, start: RunStart) -> None:
        if not self.starts or start.step < self.history.launches[0].start.step:
            return
        expected = self.history.range_of(start.step)[0]
        if expected != start.consumed:
            logger.warning(
                "%s: step %d was to start at %d consumed samples, this run starts it at %d; samples between are %s",
                self.path, start.step, expected, start.consumed, "skipped" if start.consumed > expected else "repeated",
            )  # fmt: skip

    def read(self) -> None:
        """Read the file again, if another process has appended."""
        try:
            if self._end == self.path.stat().st_size:
                return
            with self.path.open("rb") as file:
                self._read(file)
        except FileNotFoundError:
            self._read(())
        except OSError as error:
            raise ReadError(
                f"{self.path}",
                f"cannot read the run log: {error}",
                fix=f"run `ls -l {self.path}`: it must exist, and you must be allowed to read it",
            ) from error

    def has_grown(self) -> bool:
        """Whether another process has written to it since."""
        with suppress(OSError):  # a checkpoint, which asks, must not be lost for it
            return self.path.stat().st_size > self._end
        return False

    def _read(self, lines: Iterable[bytes]) -> None:
        self.starts: list[RunStart] = []
        self._specs: dict[str, OrderSpec] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._config_of: list[str | None] = []  # by start
        self._changes: list[tuple[int, int]] = []  # (starts before, place in the file) of weights that were set live
        self._end = 0  # where the complete lines end
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                logger.warning("%s: the last line is incomplete and is skipped", self.path)
                return
            try:
                found = json.loads(line)
                version = found.pop("log_version", None) if isinstance(found, dict) else SAVED_VERSION
                if version == SAVED_VERSION:
                    self._take(found)
            except (ValueError, ResumeError, RecursionError) as error:  # ConfigError is a ValueError
                raise FormatError(
                    f"{self.path}, line {number}",
                    f"a line that cannot be read ({error})",
                    "a line of a run log",
                    f"restore {self.path} from a copy, or delete line {number} to answer its steps from the "
                    "start before",
                ) from error
            if version != SAVED_VERSION:
                raise FormatError(
                    f"{self.path}, line {number}",
                    f"log_version {version!r}",
                    f"a run log of version {SAVED_VERSION}",
                    "move it away: the next launch begins another one, and the release of conceptloader that wrote it "
                    "reads it",
                )
            self._end += len(line)

    def _change(self, place: int) -> tuple[str, Segment]:
        with self.path.open("rb") as file:
            file.seek(place)
            line = json.loads(file.readline())
        return _weights_set({key: line[key] for key in line.keys() - {"kind", "log_version"}})

    def _take(self, line: Any) -> None:
        kind = line.pop("kind", None) if isinstance(line, dict) else None
        vars(self).pop("_noted", None)
        if kind in ("spec", "config"):
            kept = build(_Kept, {"content": line.pop(kind, None), **line}, "")
            spec = OrderSpec.from_dict(kept.content) if kind == "spec" else None
            found = fingerprint(kept.content) if spec is None else spec.hash
            if found != kept.hash:
                raise ConfigError(kind, f"one with the hash {found}", kept.hash, _EDITED)
            if spec is None:
                self._configs[found] = kept.content
            else:
                self._specs[found] = spec
        elif kind == "start":
            config_of = line.pop("config", None)
            if config_of is not None and config_of not in self._configs:
                raise ConfigError(
                    "config",
                    f"the hash {config_of!r}",
                    "the hash of a configuration in a line before",
                    _EDITED,
                )
            self.starts.append(build(RunStart, line, ""))
            self._config_of.append(config_of)
        elif kind == "weights" and self.starts:
            _weights_set(line)
            self._changes.append((len(self.starts), self._end))
        else:
            raise ConfigError("kind", repr(kind), "spec, config, start, or after a start weights")

    def _write(self, lines: list[dict[str, Any]]) -> None:
        said = ({"log_version": SAVED_VERSION, **line} for line in lines)
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in said).encode()
        new = not self.path.exists()
        try:
            make_directories(str(self.path.parent))
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                torn = os.fstat(file).st_size - self._end
                if torn < 0 or b"\n" in os.pread(file, torn, self._end):
                    raise OSError("another process has just changed it; only one process of a run may")
                os.ftruncate(file, self._end)
                if os.write(file, data) != len(data):
                    os.ftruncate(file, self._end)
                    raise OSError("short write, is the disk full?")
                os.fsync(file)
            finally:
                os.close(file)
            if new:
                sync_directory(str(self.path.parent))
        except OSError as error:
            raise ReadError(
                f"{self.path}",
                f"cannot write the run log: {error}",
                fix="make room on its disk, or run `chmod u+w` on its folder",
            ) from error
        self._end += len(data)


def _weights_set(line: dict[str, Any]) -> tuple[str, Segment]:
    """(the chain before, weights that were set live) of a line."""
    return build(_Before, {"before": line.pop("before", None)}, "").before, build(Segment, line, "")
