"""The batch log of a run, written by its ranks: a line for every micro batch. trace/record.py reads it.

A record is a directory with one file for each start of the run and rank: `<launch>.<dp_rank>.jsonl`. Its first line is
the RunStart of that start; the others say step, micro batch, samples, their datasets and a checksum of their tokens.
With `loader.batch_log` the loader writes one by itself, next to the run log, with a SHA-256 of each micro batch.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from conceptloader.base.strict import plain
from conceptloader.batch.digest import sha256_of
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.order.progress.runlog import RunStart
from conceptloader.order.progress.spec import SAVED_VERSION
from conceptloader.run.observer import OBSERVERS, Track
from conceptloader.run.training import TrainingRun
from conceptloader.storage.durable import make_directories

NEEDS = "batches", "which writes none"
FOLDER = "conceptloader_batches"
"""Next to the run log."""
SHA256 = "sha256"
NUMBERS, BY_SAMPLE = ("step", "micro_batch"), ("samples", "datasets", "checksums")
IGNORED = "ignore_index"


def checksums(input_ids: npt.ArrayLike, labels: npt.ArrayLike) -> list[str]:
    """xxh3-64, as 16 hex digits, of each sample's input_ids and then labels, little-endian int64. Both: [B, S]."""
    pairs = zip(np.asarray(input_ids, "<i8"), np.asarray(labels, "<i8"), strict=True)
    return [xxhash.xxh3_64_hexdigest(inputs.tobytes() + outputs.tobytes()) for inputs, outputs in pairs]


def noted(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What a record keeps of a micro batch. Raises: ConfigError if it lacks an array."""
    for name in ("sample_index", "dataset_id"):
        if name not in batch:
            raise ConfigError(
                f"outputs.{name}", "off, but a record needs it", "an array in each batch", f"omit outputs.{name}"
            )
    lowest = int(np.asarray(batch["labels"]).min(initial=0))
    return {
        "samples": np.asarray(batch["sample_index"]).tolist(),
        "datasets": np.asarray(batch["dataset_id"]).tolist(),
        "checksums": checksums(batch["input_ids"], batch["labels"]),
        **({IGNORED: lowest} if lowest < 0 else {}),
    }


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
            make_directories(str(self.path.parent))
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - open as long as the run
        except OSError as error:
            raise ReadError(
                f"{self.path}",
                f"cannot begin a record: {error}",
                fix="run `chmod u+w` on its folder, or give each of two runs a log folder of its own",
            ) from error
        self._write({"record_version": SAVED_VERSION, "launch": launch, "dp_rank": dp_rank, "start": asdict(start)})

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
        self.add(step, micro_batch, {**noted(batch), **more})

    def add(self, step: int, micro_batch: int, note: Mapping[str, Any]) -> None:
        """Record a micro batch of which `note` was made before (see noted). Raises: ReadError."""
        self._write({"step": step, "micro_batch": micro_batch, **note})

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


def begin_record(log: str | os.PathLike[str], dp_rank: int, start: RunStart) -> BatchRecorder:
    """The record of a rank that starts, next to the run log. Ranks find the number of their start without each other.

    It is that of the newest start there if that one began as this and lacks this rank, else the next one.

    Raises: ReadError; FormatError for other files there.
    """
    folder = Path(log) / FOLDER
    try:
        newest = max((int(path.name.partition(".")[0]) for path in folder.glob("*.*.jsonl")), default=0)
        mine = (folder / f"{newest:06d}.{dp_rank:06d}.jsonl").exists()
        heads = [path.read_bytes().partition(b"\n") for path in folder.glob(f"{newest:06d}.*.jsonl")]
        begun = [json.loads(head)["start"] for head, end, _ in heads if end]
    except OSError as error:
        raise ReadError(f"{folder}", f"cannot read a record: {error}", fix=f"run `chmod -R u+r {folder}`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            folder, f"a file that is no record ({error})", "records alone", f"move this file out of {folder}"
        ) from error
    started = {**plain(start), "time": None}
    joins = newest and not mine and all({**head, "time": None} == started for head in begun)
    return BatchRecorder(folder, newest if joins else newest + 1, dp_rank, start)


class BatchLog:
    """With `loader.batch_log`: what a rank yields, from where its launch is logged. An Observer."""

    def __init__(self, run: TrainingRun) -> None:
        self._run, self._wanted = run, run.blend.config.loader.batch_log
        self._record: BatchRecorder | None = None
        self._noted = 0  # samples of all ranks up to which it goes

    def launched(self) -> None:
        """Begin this rank's part."""
        if self._wanted and self._run.directory is not None:
            start, _ = self._run.launch()
            self._record, self._noted = begin_record(self._run.directory, self._run.dp_rank, start), 0

    def begins(self, consumed: int, track: Track) -> bool:
        """Another part, where what was yielded and not trained comes again."""
        if self._record is not None and consumed < self._noted:
            self.launched()
        return self._wanted

    def read(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What is kept of a micro batch."""
        return {**noted(batch), SHA256: sha256_of(batch)}

    def yielded(self, position: int, consumed: int, note: Mapping[str, Any], waited_s: float, ready: int) -> None:
        """Write its line."""
        if self._record is None:
            raise ConfigError(
                "loader.batch_log",
                "true, but no run log, next to which it is written",
                "a run log",
                "call log_start on every rank before the loop, or omit loader.batch_log",
            )
        place = self._run.plan.place(position)
        assert place is not None
        self._record.add(place.step, place.micro_batch, note)
        self._noted = consumed


OBSERVERS.append(BatchLog)
