"""Reading the batch log of a run (batch_log/record.py), to compare it with the plan (replay.py)."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conceptloader.base.checks import as_count
from conceptloader.base.strict import Natural, build
from conceptloader.batch_log.record import BY_SAMPLE, IGNORED, NUMBERS, BatchRecorder, checksums
from conceptloader.errors import FormatError, ReadError
from conceptloader.order.progress.runlog import RunStart
from conceptloader.order.progress.spec import SAVED_VERSION

__all__ = ["BatchRecorder", "Launch", "Line", "checksums", "read_record"]


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
        if replace(known, time=start.time) != start:
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
    said = {name: entry.pop(name) for name in (*NUMBERS, *BY_SAMPLE, IGNORED) if name in entry}
    line = build(Line, {**said, "dp_rank": dp_rank, "more": entry}, "")
    if len({len(getattr(line, name)) for name in BY_SAMPLE}) > 1:
        raise ValueError(f"{', '.join(BY_SAMPLE)}: found lists of several lengths, expected one of each a sample")
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
