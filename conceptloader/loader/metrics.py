"""Data metrics of a run, step by step: to the trainer's loggers, or to a callback.

metrics: true                                               # in the configuration: those loggers
metrics: {losses: true}                                     # and losses of samples, see run/losses.py
cl.metrics.on_step(lambda metrics: writer.log(metrics.flat()))      # before the loop, in any trainer
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from conceptloader.errors import ConfigError
from conceptloader.loader.batch.measure import bytes_read
from conceptloader.run.observer import OBSERVERS, Track
from conceptloader.run.training import TrainingRun
from conceptloader.storage import reads

__all__ = ["StepMetrics", "on_step"]
NEEDS = "observers", "which measures no steps"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Of a step whose last micro batch was yielded on this rank.

    Attributes:
        step: Counted from 0, as in the run log.
        consumed_samples: Over all ranks, with those of the step.
        seconds: Since the step before.
        waited_seconds: Of these, for data.
        ready: Micro batches prefetched.
        bytes_read: That this process has read since the step before, from files (as Linux counts, other readers
            included) and from object stores.
        retries: Of failed reads, in that time. Worker processes of a DataLoader are not counted.
        weights: Of the datasets in force, of a sum of 1.
        samples: Of each dataset, drawn since the beginning of the run.
        epochs: The same as epochs of each dataset.
        tokens: The same as tokens, seq_len for a sample, padding included.
        masked: The share of this rank's labels in the step whose loss mask is 0; None without a loss mask.
        without_loss: This rank's samples in the step whose loss mask is 0 everywhere; None without a loss mask.
    """

    step: int
    consumed_samples: int
    seconds: float
    waited_seconds: float
    ready: int
    bytes_read: int
    retries: int
    weights: Mapping[str, float]
    samples: Mapping[str, int]
    epochs: Mapping[str, float]
    tokens: Mapping[str, int]
    masked: float | None
    without_loss: int | None

    def flat(self, prefix: str = "data/") -> dict[str, float]:
        """As TensorBoard and W&B take it: data/waited_seconds, data/samples/web, ...; without what is None."""
        found: dict[str, float] = {}
        for name, value in asdict(self).items():
            parts = {f"{name}/{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
            found |= {prefix + key: one for key, one in parts.items() if one is not None}
        return found


Callback = Callable[[StepMetrics], object]
callbacks: list[Callback] = []
"""Of this process."""


def on_step(callback: Callback) -> Callable[[], None]:
    """Call `callback` after each step of every training loader of this process whose loop begins later.

    It is called in the thread that trains, before the last micro batch of the step is yielded.

    Args:
        callback: What it raises ends the loop, and the next loop, or a resumed run, begins with the micro batch that
            would have been yielded.

    Returns:
        A function that ends this.
    """
    callbacks.append(callback)
    return lambda: callbacks.remove(callback)


Labels = tuple[int, int, int]
"""Of a micro batch: labels, those with a loss, samples without any."""


def _to_log(metrics: StepMetrics) -> None:
    """Of every 100th step a line, at INFO, as conceptloader.loader.metrics."""
    if metrics.step % 100 == 0:
        drawn = ", ".join(f"{name} {epochs:.3f}" for name, epochs in metrics.epochs.items())
        logger.info(
            "step %d: waited %.3f of %.3f s for data, %d micro batches ahead, %d retries; epochs: %s",
            metrics.step, metrics.waited_seconds, metrics.seconds, metrics.ready, metrics.retries, drawn,
        )  # fmt: skip


class Meter:
    """What happens on a rank between the ends of its steps. An Observer."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._labels: list[Labels] = []  # of the step so far

    def begins(self, consumed: int, track: Track) -> bool:
        """True where somebody is to be called: callbacks, and with `metrics: true` the trainer's loggers or the log."""
        if self._run.blend.config.writes_losses and self._run.directory is None:
            raise ConfigError(
                "metrics.losses",
                "no run log, next to which losses are written",
                "the folder of the checkpoints",
                "pass the adapter's run_log (Megatron-LM: --save), or call loader.log_start(folder, step) before the "
                "first batch",
            )
        own = _to_log if track is None else lambda metrics: track(metrics.step, metrics.flat())
        wanted = self._run.blend.config.metrics and (track is not None or not self._run.dp_rank)
        self._own: list[Callback] = [own] if wanted else []
        self._waited, self._before = 0.0, (time.monotonic(), *_read())
        self._labels.clear()
        return bool(callbacks or self._own)

    def read(self, batch: Mapping[str, Any]) -> Labels | None:
        """Of its loss mask [B, S], array or tensor; None without one."""
        mask = batch.get("loss_mask")
        if mask is None:
            return None
        kept = (mask != 0).sum(1)
        return len(mask) * mask.shape[1], int(kept.sum()), int((kept == 0).sum())

    def yielded(self, position: int, consumed: int, note: Labels | None, waited_s: float, ready: int) -> None:
        """Count it; the last one of a step makes its metrics."""
        run, blend = self._run, self._run.blend
        self._waited += waited_s
        if note is not None:
            self._labels.append(note)
        step = run.plan.schedule.step_of(consumed - 1)
        if consumed not in (run.plan.schedule.range_of(step)[1], run.plan.stop):
            return
        now, spec = (time.monotonic(), *_read()), blend.spec
        seconds, size, retries = (late - early for late, early in zip(now, self._before, strict=True))
        members, counts = list(spec.members.values()), blend.order.counts(consumed)
        shares = [one.shares for one in blend.order.segments if one.at < consumed][-1]
        names = [member.dataset for member in members]
        samples, epochs, tokens = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        for member, count, windows in zip(members, counts, blend.order.sizes, strict=True):
            samples[member.dataset] += count
            epochs[member.dataset] += count / max(windows, 1)
            tokens[member.dataset] += count * (member.seq_len or blend.config.seq_len or 0)
        labels, kept, empty = map(sum, zip(*self._labels, strict=True)) if self._labels else (0, 0, 0)
        metrics = StepMetrics(
            step=step, consumed_samples=consumed, seconds=seconds, waited_seconds=self._waited, ready=ready,
            bytes_read=int(size), retries=int(retries), samples=samples, epochs=epochs, tokens=tokens,
            masked=1 - kept / labels if labels else None, without_loss=empty if self._labels else None,
            weights={spec.members[key].dataset: share for key, share in shares.items()},
        )  # fmt: skip
        self._waited, self._before = 0.0, now
        self._labels.clear()
        for callback in (*callbacks, *self._own):
            callback(metrics)


OBSERVERS.append(Meter)


def _read() -> tuple[int, int]:
    """(bytes read, retries) of this process."""
    return (bytes_read() or (0, 0))[0] + reads.counts["bytes"], reads.counts["retries"]
