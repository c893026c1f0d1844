"""A run as tables that SQL asks: its samples, what they are made of, and how much of its data was seen."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.config.mask import NEVER
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import Pieces, documents_of
from conceptloader.format.spec.columns import Ints
from conceptloader.run.losses import ROW, read_losses
from conceptloader.trace import documents as data
from conceptloader.trace.ranges import Member, by_value, ranges_by_shard, ranges_of
from conceptloader.trace.run import Run
from conceptloader.trace.seen import Seen, ranges_of_steps
from conceptloader.trace.sql import EXTRA, Relation, ask

_SAMPLES = 1 << 17
_PLACES = "step", "rank", "micro_batch", "row"
_SUMS = "samples", "seen", "size"
_FIRST = "first_sample", "first_step"
_OURS = "samples", "parts", "documents", "spans", "datasets", "ids", "losses"


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
        text: SQL of DuckDB over `samples`, `parts`, `documents`, `spans`, `losses` and `datasets`.
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
        sums = dict.fromkeys(("loss", "tokens"), self._arrow.float64())
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
            "losses": Relation({**dict.fromkeys(("step", "rank", "sample"), number), **sums}, lambda _: self._losses()),
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

    def _losses(self) -> Iterator[data.Columns]:
        for low, high, plan, _ in self._seen.ranges:
            if self._run.log is None or plan is None:
                raise ConfigError("losses", "no steps of a run log", "those of a run", "pass --run-log and --steps A:B")
            launch = self._run.steps.launch(plan.schedule.step_of(low))
            rows = read_losses(self._run.log, launch, low, high)
            places = plan.places(rows["sample"].astype(np.uint64))
            yield {**{name: rows[name] for name in ROW.names or ()}, "step": places.step, "rank": places.dp_rank}

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


def read_tables(given: Sequence[str]) -> dict[str, Any]:
    """The Parquet files of NAME=FILE as Arrow tables, by name; NaN, which to SQL is above all numbers, as null.

    Raises:
        ConfigError: If one is something else, or cannot be read.
    """
    arrow, compute, parquet = (need(f"pyarrow{one}", EXTRA.format("pyarrow")) for one in ("", ".compute", ".parquet"))
    found = {}
    for name, equals, path in (one.partition("=") for one in given):
        if not equals or name in _OURS:
            raise ConfigError("table", repr(name), "a name of its own for a file", "pass --table NAME=FILE")
        try:
            with open(path, "rb") as file:
                table = parquet.read_table(file)
        except (OSError, arrow.ArrowException) as error:
            fix = "make one of JSON or CSV: duckdb -c \"copy (from 'a.jsonl') to 'a.parquet'\""
            raise ConfigError(path, f"{error}", "a Parquet file", fix) from error
        for k, column in enumerate(table.columns):
            if arrow.types.is_floating(column.type):
                known = compute.if_else(compute.is_nan(column), None, column)
                table = table.set_column(k, table.column_names[k], known)
        found[name] = table
    return found
