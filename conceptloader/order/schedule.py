"""Batch sizes over a run, and with them the exact map between steps and consumed samples.

A rule says how large the batch is that starts at a number of consumed samples. Since that number never skips, a rule
with k sizes makes at most k stretches of equal steps, and everything below is a bisection over those.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conceptloader.base.checks import as_count, falls
from conceptloader.errors import ConfigError
from conceptloader.kernels.kernel import U64Array


@dataclass(frozen=True)
class BatchSchedule:
    """Global batch size as a function of consumed samples, counted on from one known position.

    Attributes:
        rule: ((from_consumed, batch_size), ...) in samples, the first from 0: a step that starts at consumed samples c
            has the size of the last entry with from_consumed <= c. This is Megatron's --step-batch-size-schedule; a
            constant size and --rampup-batch-size are written as such rules.
        step: A step whose position is known, counted from 0.
        consumed: Samples consumed before that step.

    Raises:
        ConfigError: For an empty, unsorted or negative rule.
    """

    rule: tuple[tuple[int, int], ...]
    step: int = 0
    consumed: int = 0
    stretches: tuple[tuple[int, int, int], ...] = field(init=False, repr=False, compare=False)
    """Runs of equal steps from the known position on: (first step, samples consumed before it, batch size)."""

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Sequence) or any(not isinstance(e, Sequence) or len(e) != 2 for e in self.rule):
            raise ConfigError(
                "global_batch_size",
                repr(self.rule),
                "((from_consumed, batch_size), ...)",
                "pass pairs of (first sample, size), such as ((0, 256), (100000, 512))",
            )
        rule = tuple(
            (as_count(at, f"rule[{k}]: from_consumed", 0), as_count(size, f"rule[{k}]: batch size"))
            for k, (at, size) in enumerate(self.rule)
        )
        starts = [at for at, _ in rule]
        if not rule or starts[0] != 0 or falls(starts) is not None:
            raise ConfigError(
                "global_batch_size",
                f"entries that start at {starts} consumed samples",
                "the first at 0 and each later one after the one before it",
                "pass pairs of (first sample, size), such as ((0, 256), (100000, 512))",
            )
        object.__setattr__(self, "rule", rule)
        as_count(self.step, "step", 0)
        as_count(self.consumed, "consumed", 0)
        object.__setattr__(self, "stretches", self._count_stretches())

    @classmethod
    def constant(cls, batch_size: int) -> "BatchSchedule":
        """The same size at every step."""
        return cls(((0, batch_size),))

    @classmethod
    def ramp_up(cls, start: int, increment: int, ramp_samples: int, batch_size: int) -> "BatchSchedule":
        """Megatron's `--rampup-batch-size start increment ramp_samples` on the way to `--global-batch-size batch_size`.

        With n = (batch_size - start) / increment, the size is start + k * increment from the first c with
        int(c / (ramp_samples / n)) = k, and batch_size for c > ramp_samples at the latest. The divisions are
        Megatron's, in floating point, since their rounding decides at which step the size changes (up to core 0.16;
        later versions take step schedules instead).
        """
        start, increment = as_count(start, "ramp-up: start"), as_count(increment, "ramp-up: increment")
        batch_size, ramp_samples = as_count(batch_size, "batch_size"), as_count(ramp_samples, "ramp-up: samples")
        if batch_size < start or (batch_size - start) % increment:
            raise ConfigError(
                "batch size ramp-up",
                f"{start} to {batch_size} in steps of {increment}",
                "a final size that is the first plus a whole number of increments",
                f"set --rampup-batch-size START INCREMENT SAMPLES so that {batch_size} is START plus a "
                "whole number of increments",
            )
        increments = (batch_size - start) // increment
        samples, rule = range(ramp_samples + 1), [(0, start)]
        for k in range(1, increments + 1):
            first = bisect_left(samples, k, key=lambda c: int(c / (ramp_samples / increments)))  # it rises with c
            rule.append((first, start + k * increment))
        return cls(tuple(dict(rule).items()))

    def at(self, step: int, consumed: int) -> "BatchSchedule":
        """The same rule, counted on from another known position (a restart)."""
        return replace(self, step=step, consumed=consumed)

    def after(self, samples: int) -> "BatchSchedule":
        """The same steps after so many samples of others: the rule holds from there on as it does from 0 here."""
        (_, first), *rest = self.rule
        rule = ((0, first), *((at + samples, size) for at, size in rest))
        return replace(self, rule=rule, consumed=self.consumed + samples)

    def rounded_down(self, multiple: int) -> "BatchSchedule":
        """Every size rounded down to a multiple of `multiple` (Megatron's --decrease-batch-size-if-needed)."""
        multiple = as_count(multiple, "micro_batch_size * dp_size")
        if any(size < multiple for _, size in self.rule):
            raise ConfigError(
                "global_batch_size",
                f"{[size for _, size in self.rule]}",
                f"each at least micro_batch_size * dp_size = {multiple} samples",
                "lower micro_batch_size or dp_size, or raise global_batch_size",
            )
        return replace(self, rule=tuple((at, size // multiple * multiple) for at, size in self.rule))

    def batch_size(self, consumed: int) -> int:
        """Size of the batch that starts at `consumed` samples, by the rule alone."""
        return self.rule[bisect_right(self.rule, (consumed, 1 << 64)) - 1][1]

    def consumed_at(self, step: int) -> int:
        """Samples consumed before `step`, for any step from self.step on."""
        return self.range_of(step)[0]

    def range_of(self, step: int) -> tuple[int, int]:
        """[first, last + 1) of the samples of `step`.

        Raises:
            ConfigError: For a step before self.step.
        """
        if step < self.step:
            raise ConfigError(
                f"step {step}",
                "a step before the start of this schedule",
                f"step {self.step} or later",
                "pass the run log (--run-log), which has the starts before",
            )
        first, consumed, size = self.stretches[bisect_right(self.stretches, (step, 1 << 64)) - 1]
        start = consumed + (step - first) * size
        return start, start + size

    def step_of(self, sample: int) -> int:
        """The step that takes `sample`.

        Raises:
            ConfigError: For a sample before self.consumed.
        """
        if sample < self.consumed:
            raise ConfigError(
                f"sample {sample}",
                "a sample before the start of this schedule",
                f"sample {self.consumed} or later",
                "pass the run log (--run-log), which has the starts before",
            )
        k = bisect_right([consumed for _, consumed, _ in self.stretches], sample) - 1
        first, consumed, size = self.stretches[k]
        return first + (sample - consumed) // size

    def steps_of(self, samples: U64Array) -> tuple[U64Array, U64Array, U64Array]:
        """(step, first sample of that step, its batch size) of each of `samples`: uint64 arrays like `samples`."""
        if len(samples) and int(samples.min()) < self.consumed:
            self.step_of(int(samples.min()))
        first, consumed, size = np.array(self.stretches, dtype=np.uint64).T
        k = np.searchsorted(consumed, samples, side="right") - 1
        done = (samples - consumed[k]) // size[k]
        return first[k] + done, consumed[k] + done * size[k], size[k]

    def _count_stretches(self) -> tuple[tuple[int, int, int], ...]:
        step, consumed = self.step, self.consumed
        stretches = []
        ends = [*(at for at, _ in self.rule[1:]), None]
        for (_, size), end in zip(self.rule, ends, strict=True):
            if end is not None and consumed >= end:
                continue
            stretches.append((step, consumed, size))
            if end is not None:
                steps = -(-(end - consumed) // size)
                step, consumed = step + steps, consumed + steps * size
        return tuple(stretches)
