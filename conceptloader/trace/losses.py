"""The loss of every sample, which any trainer logs with one line of code, and an explanation of a step's loss.

A log is a directory. Each start of each rank appends rows of LOSS to <time>.<rank>.journal, which survives a
crash; from time to time, and at the end, they become <time>.<rank>.<part>.parquet.
"""

import errno
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.forks import renew_in_children
from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.storage.durable import write_file
from conceptloader.storage.lock import hold, release
from conceptloader.storage.reads import named
from conceptloader.trace.bulk import trace_steps
from conceptloader.trace.run import Run
from conceptloader.trace.samples import trace_sample

LOSS = np.dtype([("step", "<i8"), ("sample", "<i8"), ("span", "<i4"), ("loss", "<f4")])
"""span: -1 for the whole sample, or the number of a span in it."""
_ROWS = 1 << 20
_NO_ARROW = "a loss log: found no pyarrow package, which it is written with"


class LossLog:
    """Writes the losses of one data-parallel rank; after a restart the last run of a step counts.

    Args:
        directory: Of the logs; all ranks may have the same.
        dp_rank: Of this process.
        track: Also the loss of each span of this track, for which a batch has to hold its spans (layout padded).

    Raises:
        ConfigError: Without pyarrow, or while another log of this rank is open there.
        ReadError: If nothing can be written.
    """

    def __init__(self, directory: str | os.PathLike[str], dp_rank: int = 0, *, track: str | None = None) -> None:
        need("pyarrow.parquet", _NO_ARROW)
        self._track, self._rows = track, 0
        self._waiting: deque[tuple[Any, int, dict[str, NDArray[Any]], Any]] = deque()
        taken = f"another log of dp_rank {dp_rank} is open there ({{holder}}), expected one; "
        taken += "end it, or give each process a dp_rank or a directory of its own"
        try:
            os.makedirs(directory, exist_ok=True)
            self._lock = hold(os.path.join(os.path.abspath(directory), f".{dp_rank:06d}.lock.tmp"), taken)
            renew_in_children(self)
            for left in Path(directory).glob(f"*.{dp_rank:06d}.journal"):  # of a start that was killed
                _to_parquet(left)
                left.unlink()
            self._path = Path(directory, f"{time.time_ns():020d}.{dp_rank:06d}.journal")
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            message = f"cannot begin a loss log: {error.strerror or error}"
            raise ReadError(
                directory, message, fix="check free space and permissions of the folder", errno=error.errno
            ) from error

    def write(self, step: int, batch: Mapping[str, Any], losses: Any) -> None:
        """Note the losses of a micro batch.

        They are [B], one a sample, or [B, S], one a label, of which the mean counts (over loss_mask, if there is one).
        A CUDA tensor is copied while the device works on, and written with a later call.

        Raises:
            ConfigError: If the batch has no sample_index, or not as many.
            ReadError: A file cannot be read.
        """
        if "sample_index" not in batch:
            raise ConfigError(
                "outputs.sample_index", "off, but a loss log needs it", "an array in each batch", "switch it on"
            )
        names = ["sample_index", *(["loss_mask"] * (len(losses.shape) == 2 and "loss_mask" in batch))]
        if self._track is not None:
            names += [f"{self._track}_spans", f"{self._track}_num_spans"]
            if len(losses.shape) != 2 or names[-2] not in batch:
                raise ConfigError(
                    "track",
                    f"no {names[-2]} in the batch, or not a loss for each label [B, S]",
                    "a track in the batch, and losses by label",
                    "add the track to outputs, or omit track",
                )
        if len(losses) != len(batch["sample_index"]):
            raise ConfigError(
                "losses", len(losses), f"{len(batch['sample_index'])}, one a sample", "pass one loss a sample"
            )
        kept, copied = {name: _on_the_way(batch[name]) for name in names}, _on_the_way(losses)
        event = None
        if any(getattr(value, "is_cuda", False) for value in (losses, *(batch[name] for name in names))):
            event = sys.modules["torch"].cuda.Event()
            event.record()
        self._waiting.append((event, step, kept, copied))
        while self._waiting and (self._waiting[0][0] is None or self._waiting[0][0].query()):
            self._append(*self._waiting.popleft()[1:])

    def close(self) -> None:
        """Write what is left, as parquet."""
        while self._waiting:
            event, *rest = self._waiting.popleft()
            if event is not None:
                event.synchronize()
            self._append(*rest)
        self._pack()
        os.close(self._file)
        self._path.unlink()
        release(self._lock)

    def renew(self) -> None:
        """See forks.Renewed: a child that outlives its parent does not hold the parent's log."""
        self._lock.close()

    def __enter__(self) -> "LossLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, step: int, batch: Mapping[str, Any], losses: Any) -> None:
        values = np.asarray(losses.float() if hasattr(losses, "float") else losses, np.float64)
        samples = np.asarray(batch["sample_index"], np.int64)
        mean, spans = values, np.zeros((3, 0))
        if values.ndim == 2:
            mask = np.asarray(batch.get("loss_mask", np.ones_like(values)), np.float64)
            mean = (values * mask).sum(1) / np.maximum(mask.sum(1), 1)
        if self._track is not None:
            track = self._track
            spans = _span_losses(values, np.asarray(batch[f"{track}_spans"]), np.asarray(batch[f"{track}_num_spans"]))
        rows = np.empty(len(mean) + spans.shape[1], LOSS)
        rows["step"], rows["span"] = step, np.append(np.full(len(mean), -1), spans[1])
        rows["sample"] = np.append(samples, samples[spans[0].astype(int)])
        rows["loss"] = np.append(mean, spans[2])
        with named(os.fspath(self._path), "written"):
            if os.write(self._file, rows.tobytes()) < rows.nbytes:  # as on a disk that is full: half a row is none
                os.ftruncate(self._file, self._rows * LOSS.itemsize)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._rows += len(rows)
        if self._rows >= _ROWS:
            self._pack()

    def _pack(self) -> None:
        _to_parquet(self._path)
        os.ftruncate(self._file, 0)
        self._rows = 0


def _on_the_way(value: Any) -> Any:
    """A tensor's copy in host memory, complete once the device has come to it."""
    return value.detach().to("cpu", non_blocking=True) if hasattr(value, "detach") else value


def _span_losses(losses: NDArray[Any], spans: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """(row, span, mean loss) as columns; the loss of a token is that of the position before it."""
    sums = np.pad(np.cumsum(losses, 1), ((0, 0), (1, 0)))
    row, number = np.nonzero(np.arange(spans.shape[1]) < counts[:, None])
    low, high = np.maximum(spans[row, number, 0] - 1, 0), spans[row, number, 1] - 1
    real = low < high
    row, number, low, high = row[real], number[real], low[real], high[real]
    return np.stack([row, number, (sums[row, high] - sums[row, low]) / (high - low)])


def _journal(path: Path) -> NDArray[Any]:
    """Its rows, without one that a kill truncated."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // LOSS.itemsize * LOSS.itemsize], LOSS)


def _to_parquet(journal: Path) -> None:
    """Write its rows as the next part of its start."""
    rows, arrow = _journal(journal), need("pyarrow", _NO_ARROW)
    part = len(list(journal.parent.glob(f"{journal.stem}.*.parquet")))
    if len(rows):
        sink = arrow.BufferOutputStream()
        table = arrow.table({name: np.ascontiguousarray(rows[name]) for name in LOSS.names or ()})
        need("pyarrow.parquet", _NO_ARROW).write_table(table, sink, compression="zstd")
        write_file(os.fspath(journal.with_suffix(f".{part:06d}.parquet")), sink.getvalue().to_pybytes())


def read_losses(directory: str | os.PathLike[str], first: int, stop: int) -> NDArray[Any]:
    """Return the losses of the steps [first, stop) that any rank logged.

    Returns:
        Rows of LOSS in order of step, sample and span; of a row that was logged again, the last one.

    Raises:
        ReadError: Without any log.
        FormatError: For a corrupt one.
    """
    arrow, parquet = need("pyarrow", _NO_ARROW), need("pyarrow.parquet", _NO_ARROW)
    paths = sorted(p for p in Path(directory).glob("*.*") if p.suffix in (".journal", ".parquet") and p.name[0] != ".")
    if not paths:
        raise ReadError(f"{directory}", "no loss log", "the directory that a LossLog writes to", "pass that directory")
    found = [np.zeros(0, LOSS)]
    for path in paths:
        try:
            if path.suffix == ".journal":
                rows = _journal(path)
            else:
                within = [("step", ">=", first), ("step", "<", stop)]
                table = parquet.read_table(path, filters=within)
                rows = np.empty(len(table), LOSS)
                for name in LOSS.names or ():
                    rows[name] = table[name].to_numpy()
        except (arrow.ArrowException, KeyError) as error:
            raise FormatError(
                path, f"a file that cannot be read ({error})", "a part of a loss log", f"move {path} out of the folder"
            ) from error
        found.append(rows[(rows["step"] >= first) & (rows["step"] < stop)])
    rows = np.concatenate(found)[::-1]  # the latest first
    keys = np.stack([rows[name].astype(np.int64) for name in ("step", "sample", "span")], 1)
    return rows[np.unique(keys, axis=0, return_index=True)[1]]


def explain(
    run: Run,
    directory: str | os.PathLike[str],
    step: int,
    *,
    top: int = 10,
    baseline: int = 100,
    track: str = "concepts",
) -> dict[str, Any]:
    """Explain the loss of a step by documents and concepts, as plain JSON.

    loss, usual: the mean over its samples, and over those of the `baseline` steps before (None if none was logged).
    samples, logged: of the step, and how many of them have a loss. documents: the `top` that raised the loss most, by
    `excess`: their part of the step, times what the loss of their sample is above the usual one, so that all of them
    sum up to the rise. concepts: likewise by the tokens that they are in, with the mean loss of their spans where that
    was logged.

    Raises:
        ConfigError: If none of the step's losses was logged, or steps are not known.
    """
    first, stop = run.steps.range_of(step)
    rows = read_losses(directory, max(0, step - baseline), step + 1)
    rows = rows[_planned(run, rows)]
    whole, now = rows[rows["span"] == -1], rows[rows["step"] == step]
    losses = {int(row["sample"]): float(row["loss"]) for row in now[now["span"] == -1]}
    if not losses:
        raise ConfigError(
            f"step {step}",
            f"no loss in {directory}",
            f"losses of samples {first} to {stop - 1}",
            "ask for a step that was logged",
        )
    before = whole[(whole["step"] < step) & np.isfinite(whole["loss"])]["loss"].astype(np.float64)
    usual = float(before.mean()) if len(before) else None
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    level = (float(np.mean(finite)) if finite else 0.0) if usual is None else usual
    documents: list[dict[str, Any]] = []
    concepts: dict[Any, float] = {}
    era = run.at_step(step)
    for batch in trace_steps(run, step, step + 1):
        for part in batch.to_pylist():
            loss = losses.get(part["sample"])
            if loss is None or part["start"] is None:
                continue
            member = era.member(era.blend.order.names.index(part["dataset"]))
            share = part["inputs"] / member.seq_len / len(losses)
            excess = (loss - level) * share if share else 0.0
            names = member.dataset.vocabulary(track) if track in member.dataset.tracks else None
            shown = [names[k] if names else k for k in part.pop(track, None) or ()]
            documents.append({**part, track: shown, "loss": loss, "excess": excess})
            for name in shown:
                concepts[name] = concepts.get(name, 0.0) + excess
    spans = _by_concept(era, now[now["span"] >= 0], track)
    order = sorted(concepts, key=lambda name: _height(concepts[name]))[:top]
    return {
        "step": step,
        "loss": float(np.mean(list(losses.values()))),
        "usual": usual,
        "samples": stop - first,
        "logged": len(losses),
        "documents": sorted(documents, key=lambda one: _height(one["excess"]))[:top],
        "concepts": [{"concept": k, "excess": concepts[k], "span_loss": spans.get(k)} for k in order],
    }


def _height(excess: float) -> float:
    """A sort key: the highest first, NaN before it."""
    return -math.inf if math.isnan(excess) else -excess


def _by_concept(run: Run, rows: NDArray[Any], track: str) -> dict[Any, float]:
    """The mean loss of the spans that carry each concept."""
    found: dict[Any, list[float]] = {}
    for sample in np.unique(rows["sample"]).tolist():
        spans = trace_sample(run, sample).spans.get(track, [])
        for row in rows[rows["sample"] == sample]:
            if row["span"] < len(spans):
                span = spans[row["span"]]
                for name in span.record if span.names is None else span.names:
                    found.setdefault(name, []).append(float(row["loss"]))
    return {name: float(np.mean(losses)) for name, losses in found.items()}


def _planned(run: Run, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows of samples that the final run trained in their steps; an earlier start may have logged others."""
    steps, which = np.unique(rows["step"], return_inverse=True)
    begin = run.steps.segments[0].start.step
    ranges = [run.steps.range_of(step) if step >= begin else (0, 0) for step in steps.tolist()]
    low, high = np.array(ranges, np.int64).reshape(-1, 2)[which].T
    planned: NDArray[np.bool_] = (low <= rows["sample"]) & (rows["sample"] < high)
    return planned
