"""The run log: conceptloader_runs.jsonl, one line for every launch of a run, next to its checkpoints.

The order of samples needs no history, but the step at which a sample is trained does: batch sizes ramp up, and restarts
change them. One process of a run appends; a line counts once its newline is on disk, so a write that was truncated is
dropped on reading and cleared away by the next append, and no earlier line is ever touched.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from conceptloader.base.strict import Saved, build, plain
from conceptloader.errors import ConfigError, FormatError, ReadError, ResumeError
from conceptloader.order.partition import Partition, Place, Plan, Scheme
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.schedule import BatchSchedule
from conceptloader.storage.durable import sync_directory

logger = logging.getLogger(__name__)

FILE_NAME = "conceptloader_runs.jsonl"
LOG_VERSION = 1


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
        time: UTC, ISO 8601.
    """

    step: int
    consumed: int
    batch: tuple[tuple[int, int], ...]
    micro_batch_size: int
    dp_size: int
    seq_len: int | None
    spec: str
    scheme: Scheme = "contiguous"
    data_stage: str | None = None
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
        )

    @cached_property
    def plan(self) -> Plan:
        """Steps and samples from this start on, as if it were never restarted."""
        return Plan(
            partition=Partition(micro_batch_size=self.micro_batch_size, dp_size=self.dp_size, scheme=self.scheme),
            schedule=BatchSchedule(self.batch, self.step, self.consumed),
        )


@dataclass(frozen=True)
class _SpecLine(Saved):
    """In front of the first start that has this order."""

    hash: str
    spec: dict[str, Any]


@dataclass(frozen=True)
class Segment:
    """The steps [start.step, stop_step) of the run as it counts; stop_step None: to the end, and into the future."""

    start: RunStart
    stop_step: int | None

    @property
    def plan(self) -> Plan:
        """Steps and samples of this segment."""
        return self.start.plan

    def place(self, sample: int) -> Place | None:
        """Where `sample` is trained in this segment, if it is."""
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
            raise ConfigError("run log", "no start of a run is logged", fix="steps are known only with one")
        kept: list[RunStart] = []
        for start in starts:
            while kept and kept[-1].step >= start.step:
                kept.pop()
            kept.append(start)
        stops = [*(start.step for start in kept[1:]), None]
        self.segments = [Segment(start, stop) for start, stop in zip(kept, stops, strict=True)]

    def segment(self, step: int) -> Segment:
        """The segment that `step` belongs to. Raises ConfigError for a step before the first one logged."""
        for segment in reversed(self.segments):
            if segment.start.step <= step:
                return segment
        raise ConfigError(f"step {step}", f"the run log begins at step {self.segments[0].start.step}")

    def range_of(self, step: int) -> tuple[int, int]:
        """[first, last + 1) of the samples that `step` trains (or would train, if it is still ahead)."""
        return self.segment(step).plan.range_of(step)

    def places(self, sample: int) -> list[Place]:
        """Every place at which `sample` counts: mostly one.

        Empty for a sample before the first start, or passed over by a restart after it; more than one where a restart
        read samples again.
        """
        return [place for segment in self.segments if (place := segment.place(sample)) is not None]


class RunLog:
    """The run log in a directory of checkpoints.

    Reading raises FormatError for a line that is complete but not valid, ReadError if the file cannot be read. A log
    that does not exist is empty.

    Args:
        directory: Of the checkpoints.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / FILE_NAME
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
            raise FormatError(self.path, f"the order spec {start.spec} of step {start.step} is missing from the log")
        return self._specs[start.spec]

    def append(self, start: RunStart, spec: OrderSpec) -> None:
        """Log a start and, if it is new, its spec: one write and fsync. To be called by one process of a run.

        A start that does not begin where the log expects its step is logged too, with a warning.

        Raises:
            ConfigError: If start.spec is not the hash of `spec`.
            ReadError: If writing fails (the log is as before).
        """
        if start.spec != spec.hash:
            raise ConfigError(
                "run log", f"start.spec is {start.spec}, the spec's hash is {spec.hash}", fix="they must agree"
            )
        self.read()
        if start.consumed or spec.order != "sequential":  # else another pass begins
            self._check_continuity(start)
        lines = [{"kind": "start", "log_version": LOG_VERSION, **plain(start)}]
        if start.spec not in self._specs:
            lines.insert(0, {"kind": "spec", "hash": spec.hash, "spec": spec.to_dict()})
        self._write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode())
        self._specs[spec.hash] = spec
        self.starts.append(start)

    def _check_continuity(self, start: RunStart) -> None:
        if not self.starts or start.step < self.history.segments[0].start.step:
            return
        expected = self.history.range_of(start.step)[0]
        if expected != start.consumed:
            logger.warning(
                "%s: step %d was to start at %d consumed samples, this run starts it at %d; samples between are %s",
                self.path, start.step, expected, start.consumed, "skipped" if start.consumed > expected else "repeated",
            )  # fmt: skip

    def read(self) -> None:
        """Read the file again, in case another process has appended."""
        self.starts: list[RunStart] = []
        self._specs: dict[str, OrderSpec] = {}
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise ReadError(f"{self.path}: cannot read the run log: {error}") from error
        *lines, torn = data.split(b"\n")
        if torn:
            logger.warning("%s: the last line is incomplete and is skipped", self.path)
        self._end = len(data) - len(torn)  # where the complete lines end
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, ResumeError, RecursionError) as error:  # ConfigError is a ValueError
                raise FormatError(
                    f"{self.path}, line {number}",
                    f"not a line of a run log ({error})",
                    fix="put the file back from a copy, or delete the line to answer its steps from the start before",
                ) from error

    def _take(self, line: Any) -> None:
        kind, version = (line.pop(key, None) if isinstance(line, dict) else None for key in ("kind", "log_version"))
        if kind == "spec":
            found = build(_SpecLine, line, "")
            spec = OrderSpec.from_dict(found.spec)
            if spec.hash != found.hash:
                raise ConfigError("spec", f"one with the hash {spec.hash}", found.hash)
            self._specs[spec.hash] = spec
        elif kind == "start" and version == LOG_VERSION:
            self.starts.append(build(RunStart, line, ""))
        else:
            raise ConfigError("", f"{kind!r} of version {version}", f"'start' of version {LOG_VERSION}")

    def _write(self, data: bytes) -> None:
        new = not self.path.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
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
            raise ReadError(f"{self.path}: cannot write the run log: {error}") from error
        self._end += len(data)
