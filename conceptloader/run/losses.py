"""Losses of samples, in files next to the run log: what `metrics: {losses: true}` writes, and SQL reads.

A process appends to a file of its own in each launch, so ranks neither wait for each other nor lock anything. What is
written says nothing of steps: which launch counts for a step is known by the run log alone, in which a line of the
name's number and fingerprint stands for the launch.
"""

import logging
import os
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import plain
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError
from conceptloader.order.progress.runlog import Launch, RunLog, RunStart
from conceptloader.storage.reads import named

logger = logging.getLogger(__name__)

FOLDER = "conceptloader_losses"
ROW = np.dtype([("sample", "<i8"), ("loss", "<f8"), ("tokens", "<f8")])
"""The trainer's sample; the sum of its losses, each times its weight; the sum of these weights."""
Rows = NDArray[Any]


def as_rows(samples: Any) -> Rows:
    """A row for each sample of a step: of their numbers int [N], sums of losses and, over how much, float [N].

    Raises ConfigError for anything else.
    """
    given = [np.asarray(one) for one in samples] if isinstance(samples, tuple | list) else [np.asarray(samples)]
    kinds = ("iu", "iuf", "iuf")
    fits = len(given) == len(kinds) and all(one.shape == (given[0].size,) for one in given)
    if not fits or any(one.size and one.dtype.kind not in kind for one, kind in zip(given, kinds, strict=True)):
        raise ConfigError(
            "metrics.losses",
            ", ".join(f"{one.dtype}{list(one.shape)}" for one in given),
            "of the samples of a step their sample_index, int [N], sums of losses and labels, float [N]",
            "pass samples=(sample_index, losses, labels), one number for each sample",
        )
    rows = np.empty(len(given[0]), ROW)
    rows["sample"], rows["loss"], rows["tokens"] = given
    return rows


class LossFile:
    """Of this process in one launch, which is that of the last start in the run log when the first row is written.

    Args:
        directory: Of the run log.
        start: The launch, as every rank knows it; another time may stand in the log.
    """

    def __init__(self, directory: str | os.PathLike[str], start: RunStart) -> None:
        self._directory, self._start, self._path = os.fspath(directory), start, ""

    def write(self, rows: Rows) -> None:
        """Append rows, by one write; nothing for none.

        Raises:
            ConfigError: If the last launch of the run log is another one.
            ReadError: If it cannot be written.
        """
        if not len(rows):
            return
        self._path = self._path or self._named()
        with named(self._path, "written"):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "ab", 0) as file:
                if file.write(rows.tobytes()) != rows.nbytes:
                    raise OSError("short write, is the disk full?")

    def _named(self) -> str:
        log = RunLog(self._directory)
        if not log.starts or replace(log.starts[-1], time=self._start.time) != self._start:
            raise ConfigError(
                "metrics.losses",
                f"another last launch in {log.path} than this one, at step {self._start.step}",
                "the launch of this run",
                "call log_start on every rank before the first step, and log each run in a folder of its own",
            )
        return os.path.join(self._directory, FOLDER, f"{_name(log, log.starts[-1])}{uuid4().hex}")


def _name(log: RunLog, start: RunStart) -> str:
    """What the files of a launch begin with."""
    return f"{log.number(start)}-{fingerprint(plain(start))}-"


def read_losses(log: RunLog, launch: Launch, low: int, high: int) -> Rows:
    """The samples [low, high) that a launch has trained, sorted.

    A torn last row, of a process that was killed, is skipped, with a warning.

    Raises:
        ConfigError: If the run has written no losses at all.
        ReadError: If a file cannot be read.
    """
    folder = log.path.parent / FOLDER
    if not folder.is_dir():
        raise ConfigError(
            "losses",
            f"no folder {folder}",
            "losses that a run has written",
            f"train with `metrics: {{losses: true}}`, and hand over losses as in {PAGES}/losses.md",
        )
    found, torn = [np.empty(0, ROW)], 0
    for path in sorted(folder.glob(_name(log, launch.start) + "*")):
        with named(str(path), "read"):
            data = path.read_bytes()
        torn += bool(len(data) % ROW.itemsize)
        rows = np.frombuffer(data[: len(data) // ROW.itemsize * ROW.itemsize], ROW)[::-1]
        rows = rows[(rows["sample"] >= low) & (rows["sample"] < high)]
        # A loop that was left and begun again trains samples twice: the last row of a file counts.
        found.append(rows[np.unique(rows["sample"], return_index=True)[1]])
    if torn:
        logger.warning("%s: the last rows of %d files are incomplete, and are skipped", folder, torn)
    # Context-parallel ranks have parts of a sample each.
    parts = np.concatenate(found)
    samples, place = np.unique(parts["sample"], return_inverse=True)
    rows = np.zeros(len(samples), ROW)
    rows["sample"] = samples
    for name in ("loss", "tokens"):
        np.add.at(rows[name], place, parts[name])
    return rows
