"""What a run has seen by columns of its documents, such as domain and license: a summary of training content."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError
from conceptloader.trace.columns import DocumentColumns
from conceptloader.trace.exposure import Exposure, Windows, totals
from conceptloader.trace.ranges import document_ranges

_CHUNK = 1 << 16
SOURCE = "source"
SUMS = "documents", "samples", "tokens", "size"


def exposure_by(seen: Exposure, by: Sequence[str], metadata: str | None = None, on: str | None = None) -> Any:
    """A row for each combination of values, a pyarrow Table.

    Columns: `dataset`, for "source", and the others by their names, null where documents have no value; then documents
    of which tokens were seen, samples that begin in one of them, tokens that were seen, their number in an epoch
    (size), and epochs, their ratio. The sums over all rows are those of `seen.sources()`: what belongs to no document,
    such as samples that read nothing, counts as without a value.

    Args:
        seen: What `exposure` found.
        by: "source", and columns of documents as in `subset`: also TRACK.KEY, tracks of which a document has one
            concept at most, and those of `metadata`.
        metadata: A parquet or jsonl file with a row for each document, as in `subset`.
        on: Its column with ids of documents, by default "id".

    Raises:
        ConfigError: For a column that no dataset has, or that has several values for a document.
    """
    arrow, names = need("pyarrow", "exposure_by"), [one for one in by if one != SOURCE]
    header = ["dataset" if one == SOURCE else one for one in by]
    if len({*header, *SUMS, "epochs"}) < len(header) + len(SUMS) + 1:
        raise ConfigError(
            "by", ",".join(by), f"each column once, and none called {', '.join(SUMS)} or epochs", "correct the list"
        )
    datasets = {name: some[0].member.dataset for name, some in seen.by_dataset.items()}
    known = {name: DocumentColumns(ds, metadata=metadata, on=on) for name, ds in datasets.items() if ds.num_documents}
    for one in names:
        kinds = [columns.types.get(one, arrow.string()) for columns in known.values() if _has(columns, one)]
        if not kinds:
            raise unknown(
                "by", one, [SOURCE, *sorted({name for columns in known.values() for name in columns.types})], "column"
            )
        if any(arrow.types.is_nested(kind) and not arrow.types.is_list(kind) for kind in kinds):
            raise ConfigError("by", repr(one), "a column with one value for each document")
    groups: dict[str, tuple[tuple[Any, ...], Any]] = {}  # by repr, since True and 1 are equal

    def add(key: tuple[Any, ...], sums: Any) -> None:
        groups[repr(key)] = key, groups.get(repr(key), (key, 0))[1] + sums

    for name, some in seen.by_dataset.items():
        rest = np.array([0, *totals(some)])
        for values, sums in _of_documents(some, known.get(name), names):
            add(tuple(name if one == SOURCE else values[one] for one in by), sums)
            rest -= sums * (0, 1, 1, 1)
        if rest.any():
            add(tuple(name if one == SOURCE else None for one in by), rest)
    if known and metadata is not None and not any(columns.with_row for columns in known.values()):
        next(iter(known.values())).check_metadata(0)
    rows = [
        {**dict(zip(header, key, strict=True)), **dict(zip(SUMS, sums.tolist(), strict=True)),
         "epochs": int(sums[2]) / int(sums[3]) if sums[3] else 0.0}
        for key, sums in sorted(groups.values(), key=lambda one: [(value is None, str(value)) for value in one[0]])
        if sums.any()
    ]  # fmt: skip
    return arrow.Table.from_pylist(_alike(rows, names))


def _of_documents(some: Sequence[Windows], columns: DocumentColumns | None, names: Sequence[str]) -> Any:
    """(values by column, sums) of each combination of values in a chunk of documents."""
    if columns is None:
        return
    arrow: Any = need("pyarrow", "exposure_by")
    dataset, having = columns.dataset, [one for one in names if _has(columns, one)]
    for low in range(0, dataset.num_documents, _CHUNK):
        documents = np.arange(low, min(low + _CHUNK, dataset.num_documents))
        samples, tokens, size = totals(some, document_ranges(dataset, documents))
        table = columns.table(documents, having).select(having)
        for k, name in enumerate(having):
            kind = columns.types.get(name)
            if kind is not None and arrow.types.is_list(kind):
                table = table.set_column(k, name, [arrow.array(_only(name, table[name].to_pylist()), kind.value_type)])
        for name, column in zip(SUMS, (tokens > 0, samples, tokens, size), strict=True):
            table = table.append_column(name, [column.astype(np.int64)])
        summed = table.group_by(having, use_threads=False).aggregate([(name, "sum") for name in SUMS])
        for row in summed.to_pylist():
            values = {name: _value(columns, name, row[name]) if name in having else None for name in names}
            yield values, np.array([row[f"{name}_sum"] for name in SUMS])


def _has(columns: DocumentColumns, name: str) -> bool:
    return name in columns.types or columns.record_of(name) is not None


def _only(name: str, lists: list[Any]) -> list[Any]:
    """Of a list of each document, such as its concepts, the one value in it, None for none."""
    several = next((one for one in lists if one is not None and len(one) > 1), None)
    if several is not None:
        found = f"{', '.join(map(str, several))!r:.100} in a document"
        raise ConfigError(
            f"by: {name}", found, "at most one value in each document", "count concepts by token: --by concept"
        )
    return [one[0] if one else None for one in lists]


def _value(columns: DocumentColumns, name: str, value: Any) -> Any:
    """As JSON has it; of a key of records its value, of text without quotes."""
    if value is not None and name not in columns.types:
        found = json.loads(value)
        value = value if isinstance(found, (list, dict)) else found
    return None if value != value else value if isinstance(value, (str, int, float, type(None))) else str(value)


def _alike(rows: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Values of a column as text where they are of several types."""
    for name in names:
        if len({type(row[name]) for row in rows} - {type(None)}) > 1:
            for row in rows:
                row[name] = None if row[name] is None else str(row[name])
    return rows
