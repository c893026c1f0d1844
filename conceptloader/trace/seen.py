"""How often windows were seen in steps of a run, and when first: by the inverse of the order, not step by step.

Steps that were re-run after a restart count once, as they are in the model once. Tokens are those of input_ids.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from conceptloader.base.lazy import lazy
from conceptloader.config.mask import NEVER
from conceptloader.format.read.bulk import pairs
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.trace.ranges import Member, by_value, ranges_of
from conceptloader.trace.run import Run

_SAMPLES = 1 << 20
_WALK = 8
"""Up to so many samples for each window it is as fast to walk them as to find those of all windows."""
Range = tuple[int, int, Any, Run]


def ranges_of_steps(run: Run, first: int, stop: int) -> list[Range]:
    """(first sample, end, plan, run of one order) of the steps [first, stop) as the run counts."""
    found = []
    for segment in run.steps.launches:
        plan, low = segment.plan, max(first, segment.start.step)
        high = min(one for one in (stop, segment.stop_step, plan.stop_step) if one is not None)
        if low < high:
            found.append((plan.consumed_at(low), plan.consumed_at(high), plan, run.at_step(low)))
    return found


class Windows:
    """What was seen of a member, by the parts of its windows (documents, packs); NEVER stands for none.

    parts: of all windows, as they lie in the data; counts, first_sample and first_step are of these.
    """

    def __init__(self, member: Member) -> None:
        parts = ranges_of(member, np.arange(member.view.count))
        self.parts = parts = parts.take(np.argsort(parts.start, kind="stable"))
        self._by_row = np.argsort(parts.row, kind="stable")
        self._begins = np.searchsorted(parts.row[self._by_row], np.arange(member.view.count + 1))
        self.counts = np.zeros_like(parts.row)
        self.first_sample, self.first_step = np.full((2, len(parts.row)), NEVER)
        self.masked = np.unique(parts.row[parts.since < NEVER])

    def add(self, windows: Ints, samples: Ints, steps: Ints) -> None:
        """Note that windows were drawn, each window's draws in the order of the run."""
        draw, place = pairs(self._begins[windows], self._begins[windows + 1])
        part = self._by_row[place]
        read = samples[draw] < self.parts.since[part]
        found, first, counts = np.unique(part[read], return_index=True, return_counts=True)
        self.counts[found] += counts
        new = self.first_sample[found] == NEVER
        at = draw[read][first[new]]
        self.first_sample[found[new]], self.first_step[found[new]] = samples[at], steps[at]

    def add_all(self, times: int) -> None:
        """Note that all windows but those that are masked were drawn, not for the first time."""
        self.counts += times * ~np.isin(self.parts.row, self.masked)

    @lazy
    def _before(self) -> Ints:
        """Before each part, and in all: samples that were read, by their first part; tokens seen; those of an epoch."""
        begin = (self.parts.place == 0) & (self.parts.inputs > 0)
        each = self.counts * begin, self.counts * self.parts.inputs, self.parts.inputs
        return np.stack([offsets_of(one) for one in each])

    def before(self, tokens: Ints) -> Ints:
        """[3, n]: before a place, samples that were read and begin there, tokens that were seen, those of an epoch."""
        if not len(self.counts):  # all packs are empty: what they would hold is excluded
            return np.zeros((3, len(tokens)), np.int64)
        starts, (samples, seen, size) = self.parts.start, self._before
        k = np.maximum(np.searchsorted(starts, tokens, side="right") - 1, 0)
        inside = np.clip(tokens - starts[k], 0, self.parts.inputs[k])
        return np.stack([samples[np.searchsorted(starts, tokens)], seen[k] + self.counts[k] * inside, size[k] + inside])

    def first_of(self, start: Ints, stop: Ints) -> Ints:
        """(sample, step) that first held tokens, or labels only, of each document [start, stop); NEVER if none did."""
        low = np.searchsorted(self.parts.stop, start, side="right")
        high = np.searchsorted(self.parts.start, stop)
        some = (low < high) & (start < stop)
        ends = np.stack([low[some], high[some]], 1).reshape(-1)
        firsts = np.pad([self.first_sample, self.first_step], ((0, 0), (0, 1)), constant_values=NEVER)
        found = np.full((2, len(start)), NEVER)
        found[:, some] = np.minimum.reduceat(firsts, ends, axis=1)[:, ::2]
        return found


class Seen:
    """What was seen of the data in some ranges of samples, see `ranges_of_steps`; of those without a plan no step.

    Memory, once documents or spans are asked about: some 100 bytes for each window of the datasets.

    Attributes:
        datasets: Those of all eras, by `Run.data_name`.
    """

    def __init__(self, run: Run, ranges: Sequence[Range]) -> None:
        self._run, self.ranges = run, ranges
        self._eras = list({id(era): era for *_, era in ranges}.values())
        self.datasets: dict[str, Dataset] = {}
        self._members: dict[str, list[tuple[Run, int, Member]]] = {}
        for era in self._eras:
            for index, member in enumerate(era.members):
                if member is not None:
                    name = run.data_name(era, member.view.name)
                    self.datasets[name] = member.dataset
                    self._members.setdefault(name, []).append((era, index, member))

    def totals(self, name: str) -> Ints:
        """Of a dataset: samples that were drawn, tokens that were seen, tokens of an epoch by the last order."""
        found = np.zeros(3, np.int64)
        for era, index, member in self._members[name]:
            view = member.view
            drawn = sum(high[index] - low[index] for *_, low, high in self._pieces[id(era)])
            if view.kind == "window" and not len(view.mask.at) and not len(view.own.at):
                tokens, size = drawn * member.seq_len, view.count * member.seq_len
            else:
                _, tokens, size = self._windows[id(era), index]._before[:, -1].tolist()
            found += np.array([drawn, tokens, size * (era is self._eras[-1])])
        return found

    def between(self, name: str, start: Ints, stop: Ints) -> Ints:
        """[3, n] of tokens [start, stop) of a dataset, see Windows.before; of an epoch by the last order."""
        found = np.zeros((3, len(start)), np.int64)
        for era, index, _ in self._members[name]:
            windows = self._windows[id(era), index]
            found += (windows.before(stop) - windows.before(start)) * np.array([[1], [1], [era is self._eras[-1]]])
        return found

    def first_of(self, name: str, start: Ints, stop: Ints) -> Ints:
        """[2, n]: see Windows.first_of."""
        some = [self._windows[id(era), index].first_of(start, stop) for era, index, _ in self._members[name]]
        found: Ints = np.min(some, 0)
        return found

    @lazy
    def _pieces(self) -> dict[int, list[tuple[int, int, list[int], list[int]]]]:
        """By era: runs of samples [low, high) without a skip inside, and the draws of each member before and after."""
        found: dict[int, list[tuple[int, int, list[int], list[int]]]] = {id(era): [] for era in self._eras}
        joined: list[tuple[int, int, Run]] = []
        for low, high, _, era in self.ranges:
            if joined and joined[-1][1:] == (low, era):
                low = joined.pop()[0]
            joined.append((low, high, era))
        for low, high, era in joined:
            found[id(era)] += _without_skips(era, low, high)
        return found

    @lazy
    def _windows(self) -> dict[tuple[int, int], Windows]:
        found = {(id(era), index): Windows(one) for some in self._members.values() for era, index, one in some}
        for era in self._eras:
            for low, high, before, after in self._pieces[id(era)]:
                mine = {k: b for k, (a, b) in enumerate(zip(before, after, strict=True)) if a < b}
                windows = {index: found[id(era), index] for index in mine if era.member(index)}  # or an error
                if high - low <= _WALK * sum(era.blend.order.sizes[index] for index in mine):
                    self._walk(era, windows, low, high)
                else:
                    for index, one in windows.items():
                        self._invert(era, index, one, low, high, before[index], after[index])
        return found

    def _walk(self, era: Run, windows: dict[int, Windows], low: int, high: int) -> None:
        for at in range(low, high, _SAMPLES):
            samples = np.arange(at, min(at + _SAMPLES, high))
            members, _, numbers = era.blend.order.sample_many(samples)
            steps = self._steps(era, samples)
            for index, drawn in by_value(members):
                windows[index].add(numbers[drawn].astype(np.int64), samples[drawn], steps[drawn])

    def _invert(self, era: Run, index: int, windows: Windows, low: int, high: int, before: int, after: int) -> None:
        """Note the draws [before, after) of a member: of whole epochs the first, and then only how many there are."""
        order, size = era.blend.order, era.blend.order.sizes[index]
        whole = range(-(-before // size), after // size)
        once = {before // size, (after - 1) // size}.difference(whole).union(whole[:1])
        for epoch in sorted(once.union(whole if len(windows.masked) else ())):
            numbers = np.arange(size) if epoch in once else windows.masked
            for part in np.split(numbers, range(_SAMPLES, len(numbers), _SAMPLES)):
                samples = order.indices_of_windows(index, epoch, part)
                read = (low <= samples) & (samples < high)
                windows.add(part[read], samples[read], self._steps(era, samples[read]))
        windows.add_all(max(len(whole) - 1, 0))

    def _steps(self, era: Run, samples: Ints) -> Ints:
        """The first step of each sample, NEVER where steps are not known."""
        steps = np.full_like(samples, NEVER)
        for low, high, plan, one in self.ranges:
            inside = (
                np.flatnonzero((low <= samples) & (samples < high) & (steps == NEVER)) if plan and one is era else ()
            )
            if len(inside):
                steps[inside] = plan.schedule.steps_of(samples[inside].astype(np.uint64))[0].astype(np.int64)
        return steps


def _without_skips(era: Run, low: int, high: int) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """Pieces of [low, high) in which each draw is a sample: draws that a skip passes over count, too."""
    if low < high:
        order = era.blend.order
        before, after = order.counts(low), list(order.counts(high - 1))
        after[order.sample(high - 1)[0]] += 1
        if sum(after) - sum(before) == high - low:
            yield low, high, before, after
        else:
            middle = (low + high) // 2
            yield from _without_skips(era, low, middle)
            yield from _without_skips(era, middle, high)
