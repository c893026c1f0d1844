"""The batch log of a run: written by its ranks, a line for every micro batch, and read to be compared (replay.py).

It is a directory with one file for each start of the run and rank: `<launch>.<dp_rank>.jsonl`. Its first line is the
RunStart of that start; the others say step, micro batch, samples, their datasets and a checksum of their tokens.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from conceptloader.base.checks import as_count
from conceptloader.base.strict import Natural, build
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.order.progress.runlog import RunStart
from conceptloader.order.progress.spec import SAVED_VERSION

_NUMBERS, _BY_SAMPLE = ("step", "micro_batch"), ("samples", "datasets", "checksums")


def checksums(batch: Mapping[str, Any]) -> list[str]:
    """xxh3-64, as 16 hex digits, of what is trained of each sample.

    That is of its input_ids and labels [B, S] as little-endian int64, and then, where the batch has one, of its
    loss_mask as little-endian float32.
    """
    arrays = [np.asarray(batch["input_ids"], "<i8"), np.asarray(batch["labels"], "<i8")]
    arrays += [np.asarray(batch["loss_mask"], "<f4")] if "loss_mask" in batch else []
    return [xxhash.xxh3_64_hexdigest(b"".join(row.tobytes() for row in rows)) for rows in zip(*arrays, strict=True)]


class BatchRecorder:
    """Appends to the batch log of one rank. A line is one write, so that a kill at any moment leaves whole lines.

    Args:
        launch: Number of this start of the run, the same on all ranks and larger than that of earlier starts.
        start: The last one of the run log (`RunLog(directory).starts`).

    Raises:
        ReadError: If the file exists or cannot be written.
    """

    def __init__(self, directory: str | os.PathLike[str], launch: int, dp_rank: int, start: RunStart) -> None:
        self.path = Path(directory) / f"{launch:06d}.{dp_rank:06d}.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - open as long as the run
        except OSError as error:
            raise ReadError(
                f"{self.path}",
                f"cannot begin a record: {error}",
                fix="run `chmod u+w` on its folder, or give each of two runs a log folder of its own",
            ) from error
        self._write({"record_version": SAVED_VERSION, "launch": launch, "dp_rank": dp_rank, "start": asdict(start)})

    def write(self, step: int, micro_batch: int, batch: Mapping[str, Any], **more: Any) -> None:
        """Record a micro batch: its samples, their datasets, and `checksums`.

        Args:
            step: Of the trainer, from 0.
            micro_batch: Its number in the step.
            batch: As the loader yields it.
            more: Further JSON fields of the line.

        Raises:
            ConfigError: If the batch lacks one of them.
            ReadError: If it cannot be written.
        """
        for name in ("sample_index", "dataset_id"):
            if name not in batch:
                raise ConfigError(
                    f"outputs.{name}", "off, but a record needs it", "an array in each batch", f"omit outputs.{name}"
                )
        found = {
            "samples": np.asarray(batch["sample_index"]).tolist(),
            "datasets": np.asarray(batch["dataset_id"]).tolist(),
            "checksums": checksums(batch),
        }
        self._write({"step": step, "micro_batch": micro_batch, **found, **more})

    def close(self) -> None:
        """End the record."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise ReadError(
                f"{self.path}",
                f"cannot write the record: {error}",
                fix="make room on its disk, or run `chmod u+w` on its folder",
            ) from error


@dataclass(frozen=True, kw_only=True)
class Line:
    """One micro batch on one rank.

    Attributes:
        samples: Trainer sample index of each row.
        datasets: dataset_id of each row.
        checksums: Of each row, see `checksums`.
        more: Further fields.
    """

    step: Natural
    micro_batch: Natural
    dp_rank: Natural
    samples: tuple[int, ...]
    datasets: tuple[int, ...]
    checksums: tuple[str, ...]
    more: Mapping[str, Any]

    @property
    def share(self) -> tuple[int, int, int]:
        """Of a step."""
        return self.step, self.micro_batch, self.dp_rank


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
            f"{directory}",
            "no file <launch>.<dp_rank>.jsonl",
            "the batch log that the ranks of a run wrote",
            "pass the directory that BatchRecorder writes to",
        )
    for path in paths:
        found = _read_file(path)
        head = next(found, None)
        if head is None:
            continue  # killed before its first line
        launch, start = head
        known = starts.setdefault(launch, start)
        if known != start:
            raise FormatError(
                path,
                f"start {launch} as {start}, but {known} on another rank",
                "the same start on all ranks",
                "give the records of one run",
            )
        lines.setdefault(launch, []).extend(found)
    return [
        Launch(
            number=number,
            start=start,
            lines=sorted(lines[number], key=lambda line: line.share),
            stop_step=min((later.step for after, later in starts.items() if after > number), default=None),
        )
        for number, start in sorted(starts.items())
    ]


def _line(entry: dict[str, Any], dp_rank: int) -> Line:
    """A line, of what it says. Raises: ValueError."""
    said = {name: entry.pop(name) for name in (*_NUMBERS, *_BY_SAMPLE) if name in entry}
    line = build(Line, {**said, "dp_rank": dp_rank, "more": entry}, "")
    if len({len(getattr(line, name)) for name in _BY_SAMPLE}) > 1:
        raise ValueError(f"{', '.join(_BY_SAMPLE)}: found lists of several lengths, expected one of each a sample")
    return line


def _read_file(path: Path) -> Iterator[Any]:
    """(launch, start), then its lines. Nothing for a file that holds no whole line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReadError(
            f"{path}", f"cannot read the record: {error}", fix=f"run `chmod u+r {path}`, or check its disk or mount"
        ) from error
    dp_rank = -1
    for number, line in enumerate(data.split(b"\n")[:-1], 1):  # without what a kill left unfinished
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict) or (number == 1) != ("record_version" in entry):
                raise ValueError("no line of a record")
            if number == 1:
                if entry["record_version"] != SAVED_VERSION:
                    raise ValueError(
                        f"record_version: found {entry['record_version']}, expected {SAVED_VERSION}: read it with the "
                        "release of conceptloader that wrote it"
                    )
                dp_rank = as_count(entry["dp_rank"], "dp_rank", 0)
                found: Any = as_count(entry["launch"], "launch", 0), build(RunStart, entry["start"], "start")
            else:
                found = _line(entry, dp_rank)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FormatError(
                f"{path}, line {number}",
                f"no {error}" if isinstance(error, KeyError) else f"a line that cannot be read ({error})",
                "a line as BatchRecorder writes it",
                "restore the file, or move it away",
            ) from error
        yield found
