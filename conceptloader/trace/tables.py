"""A run as tables that SQL asks: its samples, what they are made of, and how much of its data was seen."""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.config.mask import NEVER
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import Pieces, documents_of
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.jsonfile import each_once
from conceptloader.trace import documents as data
from conceptloader.trace.ranges import Member, by_value, ranges_by_shard, ranges_of
from conceptloader.trace.run import Run
from conceptloader.trace.seen import Seen, ranges_of_steps
from conceptloader.trace.sql import EXTRA, Relation, ask

_SAMPLES = 1 << 17
_PLACES = "step", "rank", "micro_batch", "row"
_SUMS = "samples", "seen", "size"
_FIRST = "first_sample", "first_step"


def query(
    run: Run,
    text: str,
    *,
    steps: tuple[int, int] | None = None,
    samples: int | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Any:
    """What a SELECT over the tables of a run gives, a pyarrow Table. docs/queries.md describes them.

    Args:
        run: The run, see `open_run`.
        text: SQL of DuckDB over `samples`, `parts`, `documents`, `spans` and `datasets`.
        steps: Only these, [first, stop), past or future ones.
        samples: For a run whose steps are not known: only so many samples.
        tables: Further Arrow tables, by name.

    Raises:
        ConfigError: Unless one of steps and samples is given; for steps before the run log; for what is no query.
    """
    return need("pyarrow", "query").Table.from_batches([*batches(run, text, steps, samples, tables)])


def batches(
    run: Run, text: str, steps: tuple[int, int] | None, samples: int | None, tables: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """The same as record batches, of which there is one also where no row is found."""
    if (steps is None) == (samples is None):
        found = f"{'neither' if steps is None else 'both'} of steps and samples"
        raise ConfigError("query", found, "steps, or samples of a run without a run log", "pass one (--steps A:B)")
    if steps is not None:
        if not 0 <= steps[0] < steps[1]:
            raise ConfigError("steps", f"{steps[0]}:{steps[1]}", "A:B with A below B", "pass --steps A:B")
        run.at_step(steps[0])
        ranges = ranges_of_steps(run, *steps) or [(0, 0, None, run.at_step(steps[0]))]
    else:
        stop = samples or 0
        ranges = [(max(0, era.first), min(stop, era.stop), None, era) for era in run.eras(0, max(1, stop))]
    return ask(text, {**_Tables(run, Seen(run, ranges)).relations(), **(tables or {})})


class _Tables:
    def __init__(self, run: Run, seen: Seen) -> None:
        self._run, self._seen, self._arrow = run, seen, need("pyarrow", EXTRA.format("pyarrow"))

    def relations(self) -> dict[str, Relation]:
        text, number = self._arrow.string(), self._arrow.int64()
        placed = {**dict.fromkeys([*_PLACES, "sample"], number), "dataset": text, "epoch": number, "window": number}
        lists = self._merged({name: data.track_types(one) for name, one in self._seen.datasets.items()})
        parts = {**placed, "document": number, "id": self._arrow.large_string()}
        parts |= dict.fromkeys(("start", "stop", "inputs", "source_document"), number) | lists
        having = {name: data.document_types(one) for name, one in self._seen.datasets.items() if one.num_documents}
        documents = {"dataset": text, "document": number, **self._merged(having), **dict.fromkeys(_SUMS, number)}
        spans = {"dataset": text, "track": text, "concept": number, "name": text}
        spans |= dict.fromkeys(("start", "stop", "seen"), number)
        datasets = {
            "dataset": text,
            "samples": number,
            "tokens": number,
            "size": number,
            "epochs": self._arrow.float64(),
        }
        return {
            "samples": Relation(placed, self._samples),
            "parts": Relation(parts, lambda names: self._samples(names, self._parts)),
            "documents": Relation({**documents, **dict.fromkeys(_FIRST, number)}, self._documents),
            "spans": Relation(spans, self._spans),
            "datasets": Relation(datasets, lambda _: map(self._dataset, self._seen.datasets)),
        }

    def _merged(self, types: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The columns of all datasets: as text where they are of several types."""
        found: dict[str, Any] = {}
        for some in types.values():
            for name, kind in some.items():
                text = self._arrow.string()
                as_text = self._arrow.list_(text) if self._arrow.types.is_list(kind) else text
                found[name] = kind if found.get(name, kind) == kind else as_text
        return found

    def _samples(
        self, names: Collection[str], parts: Callable[..., Iterator[tuple[Ints, data.Columns]]] | None = None
    ) -> Iterator[data.Columns]:
        for low, high, plan, era in self._seen.ranges:
            known = self._arrow.array([era.name(k) for k in range(len(era.members))], self._arrow.string())
            for at in range(low, high, _SAMPLES):
                samples = np.arange(at, min(at + _SAMPLES, high))
                members, epochs, windows = era.blend.order.sample_many(samples)
                found = {"sample": samples, "epoch": epochs.astype(np.int64), "window": windows.astype(np.int64)}
                if plan is not None and not set(_PLACES).isdisjoint(names):
                    places = plan.places(samples.astype(np.uint64))
                    found |= dict(
                        zip(_PLACES, (places.step, places.dp_rank, places.micro_batch, places.slot), strict=True)
                    )
                if parts is None:
                    yield {**found, "dataset": known.take(members)}
                    continue
                for index, rows in by_value(members):
                    mine = {name: column[rows] for name, column in found.items()}
                    for row, more in parts(era.member(index), mine, names):
                        dataset = known.take(np.full(len(row), index))
                        yield {**{name: column[row] for name, column in mine.items()}, **more, "dataset": dataset}

    def _parts(self, member: Member, mine: Mapping[str, Ints], names: Collection[str]) -> Iterator[tuple[Ints, Any]]:
        """(rows, columns) of the documents in some windows of a member, none of what is excluded."""
        dataset, read = member.dataset, ranges_of(member, mine["window"])
        read = read.take((read.since > mine["sample"][read.row]) & (read.start < read.stop)).joined()
        read = read.take(np.argsort(read.start, kind="stable"))
        for shard, cut in ranges_by_shard(dataset, read.start, read.stop):
            a, b, rows = cut.first, cut.end, cut.row
            if dataset.runs is None:
                found = documents_of(dataset.files, shard, a, b)
                document = np.where(found.number < 0, -1, found.number + dataset.first_documents[shard])
            else:
                found, document = Pieces(np.arange(len(a)), cut.run, a, b), cut.run
            first, end = np.maximum(found.first, a[found.row]), np.minimum(found.end, b[found.row])
            # What is only a label carries no concept into the inputs.
            inputs = np.minimum(b, (read.start + read.inputs)[rows] - cut.base)
            base, count = cut.base[found.row], np.maximum(np.minimum(end, inputs[found.row]) - first, 0)
            columns: dict[str, Any] = {"document": self._known(document), "inputs": count}
            columns |= {"start": first + base, "stop": end + base}
            if "id" in names:
                columns["id"] = data.document_ids(dataset, document)
            if "source_document" in names and dataset.runs is not None:
                columns["source_document"] = self._known(dataset.sources(document))
            for track in set(dataset.concept_tracks) & {*names}:
                pairs = data.concepts_in(dataset, shard, track, (a, inputs), (found.row, first, end))
                columns[track] = data.id_lists(dataset, track, len(first), *pairs)
            yield read.row[rows][found.row], columns

    def _documents(self, names: Collection[str]) -> Iterator[data.Columns]:
        for name, dataset in self._seen.datasets.items():
            sums, first = (not set(names).isdisjoint(some) for some in (_SUMS, _FIRST))
            rest = self._seen.totals(name) if sums else np.zeros(3, np.int64)
            for found in data.documents(dataset, names):
                start, stop = found["start"], found["stop"]
                if sums:
                    counts = self._seen.between(name, start, stop)
                    rest = rest - counts.sum(1)
                    found |= dict(zip(_SUMS, counts, strict=True))
                if first:
                    firsts = self._seen.first_of(name, start, stop)
                    found |= dict(
                        zip(_FIRST, (self._known(np.where(one == NEVER, -1, one)) for one in firsts), strict=True)
                    )
                yield {**found, "dataset": [name] * len(start)}
            if rest.any():  # what belongs to no document, such as samples that read nothing
                yield {"dataset": [name], **dict(zip(_SUMS, rest[:, None], strict=True))}

    def _spans(self, names: Collection[str]) -> Iterator[data.Columns]:
        for name, dataset in self._seen.datasets.items():
            for track in dataset.concept_tracks:
                for found in data.spans(dataset, track):
                    if "seen" in names:
                        found["seen"] = self._seen.between(name, found["start"], found["stop"])[1]
                    count = len(found["start"])
                    yield {**found, "dataset": [name] * count, "track": [track] * count}

    def _dataset(self, name: str) -> data.Columns:
        samples, tokens, size = self._seen.totals(name).tolist()
        row = {"dataset": name, "samples": samples, "tokens": tokens, "size": size}
        return {key: [value] for key, value in {**row, "epochs": tokens / size if size else 0.0}.items()}

    def _known(self, column: Ints) -> Any:
        return self._arrow.array(column, mask=column < 0)


def read_table(path: str) -> Any:
    """The rows of a Parquet or JSONL file, an Arrow table: no type is guessed from texts, and no number is rounded.

    A column of JSONL is of true and false, 64-bit integers, numbers, text, or else JSON as text; never of two kinds.

    Raises:
        ConfigError: If it cannot be read, or a column has values of two kinds.
    """
    arrow = need("pyarrow", f"{path}: found no pyarrow package, which makes the tables")
    try:
        if path.endswith(".parquet"):
            return need("pyarrow.parquet", path).read_table(path)
        columns: dict[str, list[Any]] = {}
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(line for line in file if not line.isspace()):
                row = json.loads(line, object_pairs_hook=each_once, parse_constant=_no_number)
                if not isinstance(row, dict):
                    raise ValueError(f"row {number + 1}: found no object")
                for name in row.keys() - columns.keys():
                    columns[name] = [None] * number
                for name, values in columns.items():
                    values.append(row.get(name))
        return arrow.table({name: _column(arrow, name, values) for name, values in columns.items()})
    except (OSError, ValueError, OverflowError, RecursionError, arrow.ArrowException) as error:
        expected = "a Parquet or JSONL file with a kind of values for each column"
        raise ConfigError(os.fspath(path), f"{error}", expected, "convert the file, or write it again") from error


def _column(arrow: Any, name: str, values: list[Any]) -> Any:
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {list, dict}:
        texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
        return arrow.array(texts, arrow.string())
    if kinds == {int, float}:
        if any(type(value) is int and abs(value) > 1 << 53 for value in values):
            raise ValueError(f"{name}: found integers above 2^53 among numbers with a point")
        values, kinds = [None if value is None else float(value) for value in values], {float}
    if len(kinds) > 1:
        raise ValueError(f"{name}: found {' and '.join(sorted(kind.__name__ for kind in kinds))}")
    big = kinds == {int} and max(value for value in values if value is not None) >= 1 << 63
    types = {bool: arrow.bool_(), int: arrow.uint64() if big else arrow.int64(), float: arrow.float64()}
    return arrow.array(values, types.get(next(iter(kinds)), arrow.string()))


def _no_number(name: str) -> Any:
    raise ValueError(f"found {name}, expected JSON, which has no such number")
