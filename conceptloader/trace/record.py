"""The batch log of a run, written by its ranks: a line for every micro batch, to compare with the plan (audit.py).

A record is a directory with one file for each start of the run and rank: `<launch>.<dp_rank>.jsonl`. Its first line is
the RunStart of that start; the others say step, micro batch, samples, their datasets and a checksum of their tokens.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from conceptloader.base.checks import as_count
from conceptloader.base.strict import Natural, build
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.order.progress.runlog import RunStart

RECORD_VERSION = 1
_NUMBERS, _BY_SAMPLE = ("step", "micro_batch"), ("samples", "datasets", "checksums")
_IGNORED = "ignore_index"


def checksums(input_ids: npt.ArrayLike, labels: npt.ArrayLike) -> list[str]:
    """xxh3-64, as 16 hex digits, of each sample's input_ids and then labels, little-endian int64. Both: [B, S]."""
    pairs = zip(np.asarray(input_ids, "<i8"), np.asarray(labels, "<i8"), strict=True)
    return [xxhash.xxh3_64_hexdigest(inputs.tobytes() + outputs.tobytes()) for inputs, outputs in pairs]


class BatchRecorder:
    """Appends to the record of one rank. A line is one write, so that a kill at any moment leaves whole lines.

    Args:
        launch: Number of this start of the run, the same on all ranks and larger than that of earlier starts.

    Raises:
        ReadError: If the file exists or cannot be written.
    """

    def __init__(self, directory: str | os.PathLike[str], launch: int, dp_rank: int, start: RunStart) -> None:
        self.path = Path(directory) / f"{launch:06d}.{dp_rank:06d}.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - open as long as the run
        except OSError as error:
            raise ReadError(f"{self.path}: cannot begin a record: {error}; each start needs a new number") from error
        self._write({"record_version": RECORD_VERSION, "launch": launch, "dp_rank": dp_rank, "start": asdict(start)})

    def write(self, step: int, micro_batch: int, batch: Mapping[str, Any], **more: Any) -> None:
        """Record a micro batch.

        Kept are its sample_index, dataset_id and checksums of its input_ids and labels, with the outputs.ignore_index
        that some labels are.

        Args:
            step: Of the trainer, from 0.
            micro_batch: Its number in the step.
            batch: What was trained.
            more: Further JSON fields of the line.

        Raises:
            ConfigError: If the batch lacks one of them.
        """
        for name in ("sample_index", "dataset_id"):
            if name not in batch:
                raise ConfigError(f"outputs.{name}", "off, but a record needs it", fix="switch it on")
        lowest = int(np.asarray(batch["labels"]).min(initial=0))
        self._write(
            {
                "step": step,
                "micro_batch": micro_batch,
                "samples": np.asarray(batch["sample_index"]).tolist(),
                "datasets": np.asarray(batch["dataset_id"]).tolist(),
                "checksums": checksums(batch["input_ids"], batch["labels"]),
                **({_IGNORED: lowest} if lowest < 0 else {}),
                **more,
            }
        )

    def close(self) -> None:
        """End the record."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise ReadError(f"{self.path}: cannot write the record: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Line:
    """One micro batch on one rank.

    Attributes:
        samples: Trainer sample index of each row.
        datasets: dataset_id of each row.
        checksums: Of each row's input_ids and labels.
        ignore_index: What labels without loss were, if some were not tokens.
        more: Further fields.
    """

    step: Natural
    micro_batch: Natural
    dp_rank: Natural
    samples: tuple[int, ...]
    datasets: tuple[int, ...]
    checksums: tuple[str, ...]
    more: Mapping[str, Any]
    ignore_index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a run, with what its ranks recorded. stop_step: where a later start resumed; None for the last."""

    number: int
    start: RunStart
    lines: Sequence[Line]
    stop_step: int | None

    def counts(self, line: Line) -> bool:
        """Whether a line belongs to the run as it ended; otherwise a later start re-ran its step."""
        return self.stop_step is None or line.step < self.stop_step


def read_record(directory: str | os.PathLike[str]) -> list[Launch]:
    """All starts of a recorded run, in order; lines by step, micro batch and rank.

    Raises:
        FormatError: For invalid lines, or ranks that disagree in their start.
        ReadError: A file cannot be read.
    """
    starts: dict[int, RunStart] = {}
    lines: dict[int, list[Line]] = {}
    paths = sorted(Path(directory).glob("*.jsonl"))
    if not paths:
        raise ReadError(
            f"{directory}: found no record (<launch>.<dp_rank>.jsonl), expected what the ranks of a run wrote"
        )
    for path in paths:
        found = _read_file(path)
        head = next(found, None)
        if head is None:
            continue  # killed before its first line
        launch, start = head
        known = starts.setdefault(launch, start)
        if replace(known, time=start.time) != start:
            raise FormatError(
                path, f"start {launch} was {start} here, {known} on another rank", fix="expected the same start"
            )
        lines.setdefault(launch, []).extend(found)
    launches: list[Launch] = []
    stop: int | None = None
    for number in sorted(starts, reverse=True):
        ordered = sorted(lines[number], key=lambda line: (line.step, line.micro_batch, line.dp_rank))
        launches.insert(0, Launch(number=number, start=starts[number], lines=ordered, stop_step=stop))
        stop = starts[number].step if stop is None else min(stop, starts[number].step)
    return launches


def _line(entry: dict[str, Any], dp_rank: int) -> Line:
    """A line, of what it says. Raises: ValueError."""
    said = {name: entry.pop(name) for name in (*_NUMBERS, *_BY_SAMPLE, _IGNORED) if name in entry}
    line = build(Line, {**said, "dp_rank": dp_rank, "more": entry}, "")
    if len({len(getattr(line, name)) for name in _BY_SAMPLE}) > 1:
        raise ValueError(f"{', '.join(_BY_SAMPLE)}: found lists of several lengths, expected one of each a sample")
    return line


def _read_file(path: Path) -> Iterator[Any]:
    """(launch, start), then its lines. Nothing for a file that holds no whole line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReadError(f"{path}: cannot read the record: {error}") from error
    dp_rank = -1
    for number, line in enumerate(data.split(b"\n")[:-1], 1):  # without what a kill left unfinished
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or (number == 1) != ("record_version" in entry):
                raise ValueError("no line of a record")
            if number == 1:
                dp_rank = as_count(entry["dp_rank"], "dp_rank", 0)
                found: Any = as_count(entry["launch"], "launch", 0), build(RunStart, entry["start"], "start")
                if entry["record_version"] != RECORD_VERSION:
                    raise ValueError(f"record_version: found {entry['record_version']}, known is {RECORD_VERSION}")
            else:
                found = _line(entry, dp_rank)
        except KeyError as error:
            raise FormatError(f"{path}, line {number}", f"no {error}", "a line as BatchRecorder writes it") from error
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FormatError(
                f"{path}, line {number}", str(error), fix="expected a record as BatchRecorder writes it"
            ) from error
        yield found
