"""Subsets: any number of tasks test chunks of documents, and their results are concatenated in order."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from conceptloader.base.checks import check_task
from conceptloader.base.hashing import fingerprint
from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.viewfile import Runs
from conceptloader.format.tools.derived import check_new_directory, new_directory
from conceptloader.format.write.view import write_view
from conceptloader.storage.durable import make_directories, require_own, write_file
from conceptloader.subset.holds import DocumentTest, TokenTest
from conceptloader.trace.columns import DocumentColumns
from conceptloader.trace.ranges import document_ranges

CHUNK = 1 << 15  # documents that are asked at once
_MOST_VIEWS = 4096
_NAME, _OTHERS = re.compile(r"[\w .,&'()/+#:-]{1,100}"), re.compile(r"[^\w.-]+")


@dataclass(frozen=True, kw_only=True)
class SubsetOptions:
    """What to keep.

    where: an expression of documents (docs/subsets.md). ids: only documents with one of
    these. spans: an expression of concepts: of the documents only the tokens of which it holds. by: a column, of which
    each value makes a subset (of a track of concepts, each concept; documents have one at most), or "column:0,0.5,1",
    of which each interval [0, 0.5), [0.5, 1] does. metadata, on, seed: see DocumentColumns.
    """

    where: str | None = None
    ids: Sequence[str] | None = None
    spans: str | None = None
    by: str | None = None
    metadata: str | None = None
    on: str | None = None
    seed: int = 0

    def described(self) -> dict[str, Any]:
        """What the manifest of a subset says of it."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        if self.ids is not None:
            said["ids"] = fingerprint(sorted(set(self.ids)))
        return said


@dataclass
class Selected:
    """documents: that were tested; unknown: of which `where` gives null, with_id: that have one of the ids.

    with_row: that have a row of the metadata; without_view: kept, but with no value of `by`, or none in its intervals.
    views: path -> (documents, tokens).
    """

    documents: int = 0
    unknown: int = 0
    with_id: int = 0
    with_row: int = 0
    without_view: int = 0
    views: dict[str, tuple[int, int]] = field(default_factory=dict)


def make_subsets(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    ask: SubsetOptions,
    *,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    task: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Selected:
    """Write a subset of the documents of a dataset to `out`, or with `by` one for each value, to `out`-value.

    task: (number, tasks): process only the part of this task, and write its result next to `out`; a call without it
    combines the parts of all tasks into the subsets. The bytes are the same either way.

    Raises: ConfigError for an invalid expression, column or value, and if no document matches; FormatError and
    ReadError for the dataset.
    """
    check_task(task)
    target = os.path.abspath(out)
    check_new_directory(target)
    with open_dataset(path, roots=roots) as dataset:
        if "://" in dataset.path:
            raise ConfigError(
                dataset.path,
                "a URL",
                "a local directory",
                "copy the dataset to a disk, and run `conceptloader subset` on that",
            )
        asking = _Asking(dataset, ask, f"{target}.parts")
        if task is not None:
            asking.write_part(task, progress)
            return Selected(documents=dataset.num_documents)
        tables = asking.read_parts() if os.path.isdir(asking.directory) else [asking.find((0, 1), progress)]
        found = _write(asking, target, tables)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(asking.directory)
    return found


class _Asking:
    def __init__(self, dataset: Dataset, ask: SubsetOptions, directory: str) -> None:
        self.dataset, self.ask, self.directory = dataset, ask, directory
        self._arrow: Any = need("pyarrow", "subset: found no pyarrow package, which makes the tables")
        self._schema = self._arrow.schema([("start", "int64"), ("stop", "int64"), ("view", "string")])
        self.columns = DocumentColumns(dataset, ask.seed, ask.metadata, ask.on)
        self.where = None if ask.where is None else DocumentTest(dataset, ask.where, self.columns)
        self.by = None if ask.by is None else _By(ask.by, self.columns)
        self.spans = None if ask.spans is None else TokenTest(dataset, ask.spans)
        self.names = set() if self.where is None else {*self.where.columns}
        self.names |= set() if self.by is None else {self.by.column}
        status = None if ask.metadata is None else (os.stat(ask.metadata).st_size, os.stat(ask.metadata).st_mtime_ns)
        self.print = fingerprint(
            [dataset.stream_fingerprint, dataset.tracks_fingerprint, ask.described(), status, *vars(Selected())]
        )

    def find(self, task: tuple[int, int], progress: Callable[[int, int], None] | None) -> Any:
        """What a task finds, an Arrow table: token ranges, and the name of each one's subset; counts as metadata."""
        chunks = -(-self.dataset.num_documents // CHUNK)
        mine = range(*(chunks * k // task[1] for k in (task[0], task[0] + 1)))
        counted, parts = Selected(), []
        for done, chunk in enumerate(mine):
            parts.append(self._ask(chunk, counted))
            if progress is not None:
                progress(done + 1, len(mine))
        counted.with_row = self.columns.with_row
        facts = {"ask": self.print, **{name: str(value) for name, value in vars(counted).items()}}
        return self._arrow.concat_tables([self._schema.empty_table(), *parts]).replace_schema_metadata(facts)

    def _ask(self, chunk: int, counted: Selected) -> Any:
        documents = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, self.dataset.num_documents))
        compute: Any = need("pyarrow.compute", "subset")
        table = self.columns.table(documents, self.names)
        counted.documents += len(documents)
        chosen = np.ones(len(documents), bool)
        if self.ask.ids is not None:
            wanted = self._arrow.array(list(self.ask.ids), self._arrow.large_string())
            chosen = compute.is_in(table["id"], value_set=wanted).to_numpy(zero_copy_only=False)
            counted.with_id += int(chosen.sum())
        start, stop = document_ranges(self.dataset, documents)
        if self.where is not None:
            found = self.where(table, start, stop)
            counted.unknown += found.null_count
            chosen = chosen & found.fill_null(False).to_numpy()
        names = self._arrow.array([""] * len(documents)) if self.by is None else self.by(table)
        chosen = chosen & (start < stop)
        without = chosen & names.is_null().to_numpy(zero_copy_only=False)
        counted.without_view += int(without.sum())
        rows = np.flatnonzero(chosen & ~without)
        start, stop = start[rows], stop[rows]
        if self.spans is not None and len(rows):
            begin, end = self.spans(int(start[0]), int(stop[-1]))
            which, run = Runs.of(start, stop).meeting(begin, end)
            rows, start, stop = rows[run], np.maximum(begin[which], start[run]), np.minimum(end[which], stop[run])
        columns = {"start": start, "stop": stop, "view": names.take(self._arrow.array(rows))}
        return self._arrow.table(columns).cast(self._schema)

    def write_part(self, task: tuple[int, int], progress: Callable[[int, int], None] | None) -> None:
        require_own(os.path.dirname(self.directory), self.directory)
        make_directories(self.directory)
        sink = self._arrow.BufferOutputStream()
        table = self.find(task, progress)
        with self._arrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        write_file(os.path.join(self.directory, _part(*task)), sink.getvalue().to_pybytes())

    def read_parts(self) -> list[Any]:
        """What all tasks found, in order."""
        names = sorted(name for name in os.listdir(self.directory) if name.endswith(".arrow"))
        tasks = int(names[0].partition("-of-")[2].partition(".")[0]) if names else 0
        missing = sorted({_part(k, tasks) for k in range(tasks)}.symmetric_difference(names))
        if missing or not names:
            raise FormatError(
                self.directory,
                f"{len(names)} parts",
                f"those of all tasks (missing: {missing[:3]})",
                f"run the missing --task, or `rm -r {self.directory}` to begin again",
            )
        tables = []
        for name in names:
            path = os.path.join(self.directory, name)
            try:
                with self._arrow.memory_map(path) as file:
                    tables.append(self._arrow.ipc.open_file(file).read_all())
            except (OSError, self._arrow.ArrowInvalid) as error:
                raise ReadError(
                    f"{path}",
                    f"cannot read the result of a task: {error}",
                    fix=f"run `rm {path}`, and this --task again",
                ) from error
            if (tables[-1].schema.metadata or {}).get(b"ask", b"").decode() != self.print:
                raise ConfigError(
                    path,
                    "the result of a task with other arguments",
                    "a task with the same arguments",
                    f"run `rm -r {self.directory}`, and all tasks again",
                )
        return tables


def _part(number: int, tasks: int) -> str:
    return f"{number:05d}-of-{tasks:05d}.arrow"


class _By:
    """Names of subsets by a column, or by intervals of one."""

    def __init__(self, text: str, known: DocumentColumns) -> None:
        self._arrow: Any = need("pyarrow", "by")
        self.column, colon, edges = text.partition(":")
        self._texts = edges.split(",") if colon else []
        self._key = known.record_of(self.column) is not None
        kind = self._arrow.float64() if self._key else known.types.get(self.column)
        self._concepts = kind is not None and self._arrow.types.is_list(kind) and not colon
        if kind is None or (self._arrow.types.is_nested(kind) and not self._concepts):
            raise ConfigError(
                "by",
                repr(self.column),
                "a column with one value for each document",
                "pass --by another column, or select with --where",
            )
        try:
            self._edges = np.array(self._texts, float)
        except ValueError as error:
            raise ConfigError(
                "by",
                repr(edges),
                "numbers, as in quality:0,0.5,1",
                "pass --by COLUMN:NUMBER,NUMBER,...",
            ) from error
        number = self._arrow.types.is_integer(kind) or self._arrow.types.is_floating(kind)
        if colon and (len(self._edges) < 2 or (np.diff(self._edges) <= 0).any() or not number):
            raise ConfigError(
                "by",
                repr(text),
                "a column of numbers and ascending boundaries: quality:0,0.5,1",
                "pass --by COLUMN:0,0.5,1",
            )

    def __call__(self, table: Any) -> Any:
        """The name of each document's subset, null for none."""
        column = table[self.column].combine_chunks()
        if self._key:
            column = self._values(column.to_pylist())
        elif self._concepts:
            column = self._only(column.to_pylist())
        if not len(self._edges):
            names = column.cast(self._arrow.string())
            for one in names.unique().drop_null().to_pylist():
                if not _NAME.fullmatch(one):
                    raise ConfigError(
                        "by",
                        f"the value {one!r:.100}",
                        "a name of at most 100 letters",
                        "rename the value, or select it with --where",
                    )
            return names
        values = column.cast(self._arrow.float64()).fill_null(float("nan")).to_numpy()
        at = np.searchsorted(self._edges, values, side="right") - 1
        last = len(self._edges) - 2
        at[values == self._edges[-1]] = last
        names = self._arrow.array([f"{a}-{b}" for a, b in zip(self._texts, self._texts[1:], strict=False)])
        return names.take(self._arrow.array(at, mask=(at < 0) | (at > last)))

    def _only(self, lists: list[list[Any] | None]) -> Any:
        """Of a list of each document the one value in it, null for none."""
        for one in lists:
            if one is not None and len(one) > 1:
                found = f"{', '.join(map(str, one))!r:.100} in a document"
                raise ConfigError(
                    f"by: {self.column}",
                    found,
                    "at most one value in each document",
                    "select each with --where TRACK:CONCEPT",
                )
        return self._arrow.array([one[0] if one else None for one in lists])

    def _values(self, texts: list[str | None]) -> Any:
        """Of a key of records: numbers for intervals, else text."""
        values = [None if one is None else json.loads(one) for one in texts]
        wanted: tuple[type, ...] = (int, float) if len(self._edges) else (int, float, bool, str)
        for value in values:
            if value is not None and type(value) not in wanted:
                expected = "a number" if len(self._edges) else "text or a number"
                raise ConfigError(
                    f"by: {self.column}",
                    f"{value!r:.100} in a document",
                    expected,
                    "correct the column, or select with --where",
                )
        if len(self._edges):
            return self._arrow.array([None if one is None else float(one) for one in values], self._arrow.float64())
        names = [one if one is None or isinstance(one, str) else json.dumps(one) for one in values]
        return self._arrow.array(names, self._arrow.string())


def _write(asking: _Asking, out: str, tables: list[Any]) -> Selected:
    arrow: Any = need("pyarrow", "subset")
    dataset, ask, found = asking.dataset, asking.ask, Selected()
    for table in tables:
        for name in ("documents", "unknown", "with_id", "with_row", "without_view"):
            setattr(found, name, getattr(found, name) + int(table.schema.metadata[name.encode()]))
    asking.columns.check_metadata(found.with_row)
    table = arrow.concat_tables(table.replace_schema_metadata(None) for table in tables).combine_chunks()
    if not table.num_rows:
        raise ConfigError(
            "subset",
            f"no document of {found.documents:,} in {dataset.path}",
            "at least one document",
            f"widen --where, --ids or --spans: nothing was written (the expression is null for {found.unknown})",
        )
    names, which = np.unique(table["view"].to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    if len(names) > _MOST_VIEWS:
        raise ConfigError(
            "by", f"{len(names):,} values", f"at most {_MOST_VIEWS:,}", "pass intervals: --by COLUMN:0,0.5,1"
        )
    start, stop = table["start"].to_numpy(), table["stop"].to_numpy()
    places = [out] if ask.by is None else _places(out, names.tolist())
    for place in places:
        check_new_directory(place)
    for k, (place, name) in enumerate(zip(places, names.tolist(), strict=True)):
        rows = np.flatnonzero(which == k)
        said = {"select": {**ask.described(), **({} if ask.by is None else {"value": name})}}
        with new_directory(place) as working:
            made = write_view(working, place, dataset, start[rows], stop[rows], said)
        found.views[place] = made.num_documents, made.num_tokens
    return found


def _places(out: str, values: list[str]) -> list[str]:
    """Of each value a directory: "science & law" is science-law there.

    Raises: ConfigError for a value of which nothing is left, and for two with one directory.
    """
    found: dict[str, str] = {}
    for value in values:
        name = _OTHERS.sub("-", value).lstrip(".").rstrip("-")
        if not name or name in found:
            what = f"the values {found[name]!r:.100} and {value!r:.100}" if name else f"the value {value!r:.100}"
            raise ConfigError(
                "by", what, "values with a directory each", "rename the values, or select them with --where"
            )
        found[name] = value
    return [f"{out}-{name}" for name in found]
