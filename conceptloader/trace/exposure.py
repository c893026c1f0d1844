"""How often each source, document and concept was seen until a step: one pass over the order, and one over the data.

Steps that were re-run after a restart count once, as they are in the model once. Tokens are those of input_ids.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from conceptloader.base.lazy import lazy
from conceptloader.base.packages import need
from conceptloader.blend.mask import NEVER
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import pairs
from conceptloader.format.read.concepts import concept_pairs
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.trace.bulk import document_ids, sample_ranges
from conceptloader.trace.ranges import Member, by_value, document_ranges, ranges_of
from conceptloader.trace.run import Run

_SAMPLES = 1 << 20
_ROWS = 1 << 20
_CONCEPTS = {"dataset": "string", "track": "string", "concept": "int64", "name": "string"}
_CONCEPTS |= {"tokens": "int64", "seen": "int64", "epochs": "float64"}
_DOCUMENTS = {"dataset": "string", "document": "int64", "id": "large_string", "tokens": "int64", "seen": "int64"}
_DOCUMENTS |= {"epochs": "float64", "first_sample": "int64", "first_step": "int64", "first_checkpoint": "int64"}


class Windows:
    """What was seen of a member, by the parts of its windows (documents, packs): how often, and when first.

    NEVER stands for none.
    samples: all that were drawn, including excluded ones, which are counted nowhere else. parts: of all windows, as
    they lie in the data; counts, first_sample and first_step are of these.
    """

    def __init__(self, run: Run, member: Member) -> None:
        self.run, self.member, self.samples = run, member, 0
        parts = ranges_of(member, np.arange(member.view.count))
        self.parts = parts = parts.take(np.argsort(parts.start, kind="stable"))
        self._by_row = np.argsort(parts.row, kind="stable")
        self._begins = np.searchsorted(parts.row[self._by_row], np.arange(member.view.count + 1))
        self.counts = np.zeros_like(parts.row)
        self.first_sample, self.first_step = np.full((2, len(parts.row)), NEVER)

    def add(self, windows: Ints, samples: Ints, steps: Ints) -> None:
        """Note that windows were drawn, in the order of the run."""
        self.samples += len(windows)
        draw, place = pairs(self._begins[windows], self._begins[windows + 1])
        part = self._by_row[place]
        read = samples[draw] < self.parts.since[part]
        found, first, counts = np.unique(part[read], return_index=True, return_counts=True)
        self.counts[found] += counts
        new = self.first_sample[found] == NEVER
        at = draw[read][first[new]]
        self.first_sample[found[new]], self.first_step[found[new]] = samples[at], steps[at]

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

    def between(self, start: Ints, stop: Ints) -> Ints:
        """[3, n] of tokens [start, stop), as `before`."""
        return self.before(stop) - self.before(start)

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

    @property
    def totals(self) -> Ints:
        """(samples that were drawn, tokens that were seen, tokens of an epoch)."""
        return np.array([self.samples, *self._before[1:, -1]])


class Exposure:
    """What a run has seen until some step; tables are pyarrow Tables. Made by `exposure`.

    by_dataset: what was seen of the members of each dataset, by `Run.data_name`; of all eras, in order.
    """

    def __init__(self, run: Run, windows: Iterable[Windows]) -> None:
        self.by_dataset: dict[str, list[Windows]] = {}
        for one in windows:
            self.by_dataset.setdefault(run.data_name(one.run, one.member.view.name), []).append(one)
        self._arrow = need("pyarrow", "exposure: found no pyarrow package, which makes the tables")

    def sources(self) -> Any:
        """A row for each dataset: samples and tokens that were drawn, its size in tokens, and epochs, their ratio."""
        rows = []
        for name, some in self.by_dataset.items():
            samples, tokens, size = totals(some).tolist()
            row = {"dataset": name, "samples": samples, "tokens": tokens, "size": size}
            rows.append({**row, "epochs": tokens / size if size else 0.0})
        return self._arrow.Table.from_pylist(rows)

    def documents(self, ids: Sequence[str] | None = None, checkpoints: Sequence[int] = ()) -> Any:
        """A row for each document, or for those with one of these ids: its dataset, number, id, tokens.

        Also how many of them were seen, repetitions included, and epochs, the ratio; the first sample and step that
        hold any of it, also only as a label, and the first of `checkpoints` after it, null if there is none.

        Args:
            ids: Ids of documents; by default all documents.
            checkpoints: Numbers of steps that were completed when they were saved, ascending. An id that no dataset has
                gives a row with only the id.
        """
        return self._arrow.Table.from_batches(list(self.document_batches(ids, checkpoints)))

    def document_batches(self, ids: Sequence[str] | None = None, checkpoints: Sequence[int] = ()) -> Iterator[Any]:
        """The rows of `documents`, about a million at a time."""
        unknown = set(ids or ())
        for name, some in self.by_dataset.items():
            dataset = some[0].member.dataset
            chunks: Iterable[Ints]
            if ids is None:
                lows, highs = zip(*(_documents(one.member) for one in some), strict=True)
                first, last = min(lows), max(highs)
                chunks = (np.arange(at, min(at + _ROWS, last)) for at in range(first, last, _ROWS))
            else:
                found = {number: one for one in ids for number in dataset.find_document(one)}
                unknown -= set(found.values())
                chunks = [np.array(sorted(found), np.int64)]
            for documents in chunks:
                yield self._document_batch(name, some, dataset, documents, checkpoints)
        rows = [{"id": one, "tokens": 0, "seen": 0, "epochs": 0.0} for one in sorted(unknown)]
        yield self._arrow.RecordBatch.from_pylist(rows, schema=self._arrow.schema(_DOCUMENTS))

    def concepts(self, track: str = "concepts", dataset: str | None = None) -> Any:
        """A row for each concept of a track and dataset: its id and name.

        Also the tokens that carry it, how many of them were seen, and epochs, the ratio. The track is read once.

        Raises:
            ConfigError: If no dataset has it.
        """
        tables = []
        for name, some in self.by_dataset.items():
            source = some[0].member.dataset
            if dataset in (None, name) and track in source.concept_tracks:
                tables.append(self._concept_table(name, some, source, track))
        if not tables:
            raise ConfigError(
                "track",
                f"{track!r}",
                "a track of concepts of a dataset of the run",
                "pass a track of `conceptloader inspect DATASET` (--track)",
            )
        return self._arrow.concat_tables(tables)

    def _document_batch(
        self, name: str, some: Sequence[Windows], dataset: Dataset, documents: Ints, checkpoints: Sequence[int]
    ) -> Any:
        start, stop = document_ranges(dataset, documents)
        tokens, seen = stop - start, sum(one.between(start, stop)[1] for one in some)
        sample, step = np.min([one.first_of(start, stop) for one in some], 0)
        saved = np.append(np.array(checkpoints, np.int64), NEVER)
        firsts = {"sample": sample, "step": step, "checkpoint": saved[np.searchsorted(saved[:-1], step, side="right")]}
        columns = {
            "dataset": [name] * len(documents),
            "document": documents,
            "id": document_ids(dataset, documents),
            "tokens": tokens,
            "seen": seen,
            "epochs": seen / np.maximum(tokens, 1),
            **{f"first_{what}": self._arrow.array(one, mask=one == NEVER) for what, one in firsts.items()},
        }
        return self._arrow.RecordBatch.from_pydict(columns, schema=self._arrow.schema(_DOCUMENTS))

    def _concept_table(self, name: str, some: Sequence[Windows], dataset: Dataset, track: str) -> Any:
        tokens, seen = Counter[int](), Counter[int]()
        for shard in range(dataset.num_shards):
            base = dataset.shard_starts[shard]
            for ids, start, end in concept_pairs(dataset, track, shard):
                inside, start, end = dataset.placed(start + base, end + base)
                lengths, times = end - start, sum(one.between(start, end)[1] for one in some)
                for concept, places in by_value(ids[inside]):
                    tokens[concept] += int(lengths[places].sum())
                    seen[concept] += int(times[places].sum())
        names = dataset.vocabulary(track)
        rows = [
            {"dataset": name, "track": track, "concept": one, "name": names[one] if names else None,
             "tokens": tokens[one], "seen": seen[one], "epochs": seen[one] / tokens[one]}
            for one in sorted(tokens)
        ]  # fmt: skip
        return self._arrow.Table.from_pylist(rows, schema=self._arrow.schema(_CONCEPTS))


def exposure(run: Run, until: int | None = None, num_samples: int | None = None) -> Exposure:
    """What a run has seen of its data.

    Args:
        run: The run, see `open_run`.
        until: The step before which to count, past or future, of a run with a run log.
        num_samples: For a run without one, how many samples it reads. Memory: some 100 bytes a window of the datasets.

    Raises:
        ConfigError: Unless one of them is given, and for until without a run log.
    """
    if (until is None) == (num_samples is None):
        raise ConfigError(
            "exposure",
            f"{'neither' if until is None else 'both'} of until and num_samples",
            "until, a step, or else num_samples, without a run log",
            "pass until with a run log, or num_samples without one",
        )
    windows: dict[tuple[int, int], Windows] = {}
    for low, high, plan, era in _ranges(run, until, num_samples):
        for index, member in enumerate(era.members):
            if member is not None and (id(era), index) not in windows:
                windows[id(era), index] = Windows(era, member)
        for at in range(low, high, _SAMPLES):
            samples = np.arange(at, min(at + _SAMPLES, high))
            steps = np.full_like(samples, NEVER)
            if plan is not None:
                steps = plan.schedule.steps_of(samples.astype(np.uint64))[0].astype(np.int64)
            members, _, numbers = era.blend.order.sample_many(samples)
            for index, drawn in by_value(members):
                era.member(index)  # whose dataset has left is an error
                windows[id(era), index].add(numbers[drawn].astype(np.int64), samples[drawn], steps[drawn])
    return Exposure(run, windows.values())


def _ranges(run: Run, until: int | None, num_samples: int | None) -> list[tuple[int, int, Any, Run]]:
    """As `sample_ranges`, of all samples that are counted."""
    if until is None:
        stop = num_samples or 0
        return [(max(0, era.first), min(stop, era.stop), None, era) for era in run.eras(0, max(1, stop))]
    run.at(0)  # or else what was seen before the run log begins is missing
    return [*sample_ranges(run, 0, until)] or [(0, 0, None, run.at(0))]


def totals(some: Sequence[Windows], tokens: tuple[Ints, Ints] | None = None) -> Ints:
    """Of what was seen of a dataset, in all or of ranges of tokens: samples, tokens, and those of an epoch.

    An epoch is the windows of the last era.
    """
    found = [one.totals if tokens is None else one.between(*tokens) for one in some]
    for one, sums in zip(some, found, strict=True):
        sums[2] *= one.run is some[-1].run
    total: Ints = np.sum(found, 0)
    return total


def _documents(member: Member) -> tuple[int, int]:
    """The documents [low, high) that a member's windows may touch."""
    dataset = member.dataset
    if member.by_document:
        return member.view.start, member.view.start + member.view.count
    if member.kind == "pack":
        low, high = member.view.member.token_range
    else:
        low, high = member.token_range(0)[0], member.token_range(member.view.count - 1)[1]
    known = [n for at in (low, high - 1) for n in dataset.documents_in(at, at + 1).ids.tolist()]
    return (known[0], known[-1] + 1) if min(known) >= 0 else (0, dataset.num_documents)
