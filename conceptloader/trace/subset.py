"""Subsets: documents, or tokens of them, for which SQL is true, by reference."""

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import Any

import numpy as np

from conceptloader.base.hashing import fingerprint
from conceptloader.base.packages import need
from conceptloader.config.ranges import write_ranges
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.viewfile import Runs
from conceptloader.format.tools.derived import check_new_directory, new_directory
from conceptloader.format.write.view import write_view
from conceptloader.trace import documents as data
from conceptloader.trace.concepts import Columns, Expression, ids_of
from conceptloader.trace.curve import Curve, bucketed
from conceptloader.trace.sql import EXTRA, Relation, ask
from conceptloader.trace.tables import read_tables

_MOST_VIEWS = 4096
_NAME, _OTHERS = re.compile(r"[\w .,&'()/+#:-]{1,100}"), re.compile(r"[^\w.-]+")


@dataclass(frozen=True, kw_only=True)
class SubsetOptions:
    """What to keep.

    where: SQL that is true for documents, over their columns (docs/subsets.md). ids: only documents with one of these.
    spans: SQL that is true for tokens, over their concepts: only these tokens. by: SQL of which each value makes a
    subset, null none; with `epochs`, a curve (see curve.py), a number, by which `buckets` subsets of about equally many
    tokens are made. tables: Parquet files for `where` and `by` to ask, each as NAME=FILE. seed: of the column share.
    """

    where: str | None = None
    ids: Sequence[str] | None = None
    spans: str | None = None
    by: str | None = None
    buckets: int = 20
    epochs: str | None = None
    tables: Sequence[str] = ()
    seed: int = 0

    def described(self) -> dict[str, Any]:
        """What the manifest of a subset says of it."""
        said = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        if self.epochs is None:
            del said["buckets"]
        if self.ids is not None:
            said["ids"] = fingerprint(sorted(set(self.ids)))
        return said


@dataclass
class Selected:
    """documents: that were tested; unknown: of which `where` is null; with_id: with one of the ids.

    without_view: kept, but of which `by` is null, or the epochs are 0. views: path -> (documents, tokens). epochs: how
    often each of these is to be read, where there is a curve.
    """

    documents: int = 0
    unknown: int = 0
    with_id: int = 0
    without_view: int = 0
    views: dict[str, tuple[int, int]] = field(default_factory=dict)
    epochs: list[float] = field(default_factory=list)


def make_subsets(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    wanted: SubsetOptions,
    *,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Selected:
    """Write a subset of the documents of a dataset to `out`, or with `by` one for each value, to `out`-value.

    Raises: ConfigError for an invalid expression, column or value, and if no document matches; FormatError and
    ReadError for the dataset.
    """
    target = os.path.abspath(out)
    curve = None if wanted.epochs is None else Curve.read(wanted.epochs)
    check_new_directory(target)
    with open_dataset(path, roots=roots) as dataset:
        if "://" in dataset.path:
            fix = "copy the dataset to a disk, and run `conceptloader subset` on that"
            raise ConfigError(dataset.path, "a URL", "a local directory", fix)
        if wanted.spans is not None and dataset.mode == "document":
            what = f"mode document in {dataset.path}, of which only whole documents can be selected"
            raise ConfigError("spans", what, "another mode", "pass --where or --ids instead of --spans")
        found, start, stop, names = _selected(dataset, wanted, progress)
        if curve is not None:
            names, found.epochs = bucketed(names, stop - start, wanted.buckets, curve)
            read = names != ""
            found.without_view += int((~read).sum())
            start, stop, names = start[read], stop[read], names[read]
            if not len(start):
                raise ConfigError(
                    "epochs", "a curve by which no document is read", "epochs above 0", "correct --epochs"
                )
        values, which = np.unique(names.astype(str), return_inverse=True)
        if len(values) > _MOST_VIEWS:
            fix = "pass intervals: --by \"case when quality < 0.5 then 'low' else 'high' end\""
            raise ConfigError("by", f"{len(values):,} values", f"at most {_MOST_VIEWS:,}", fix)
        places = [target] if wanted.by is None else _places(target, values.tolist())
        for place in places:
            check_new_directory(place)
        for k, (place, value) in enumerate(zip(places, values.tolist(), strict=True)):
            said = {"select": {**wanted.described(), **({} if wanted.by is None else {"value": value})}}
            with new_directory(place) as working:
                made = write_view(working, place, dataset, start[which == k], stop[which == k], said)
            found.views[place] = made.num_documents, made.num_tokens
    return found


def make_ranges(
    path: str | os.PathLike[str],
    file: str | os.PathLike[str],
    wanted: SubsetOptions,
    *,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Selected:
    """Write the same as ranges of tokens to a file for `exclude`; `views` has how many they are, of how many tokens.

    Raises: as make_subsets, and ConfigError for `by`, and for a file that is there and is something else.
    """
    if wanted.by is not None:
        raise ConfigError("by", "several subsets, of which a file has one", "--where with --ranges", "omit --by")
    with open_dataset(path, roots=roots) as dataset:
        found, start, stop, _ = _selected(dataset, wanted, progress)
        given = [("where", wanted.where), ("spans", wanted.spans), ("seed", wanted.seed)]
        given += [("ids", "IDS" if wanted.ids else None), *(("table", one) for one in wanted.tables)]
        given += [("root", os.fspath(one)) for one in roots or ()]
        chosen = " ".join(f"--{name} {_quoted(str(value))}" for name, value in given if value)
        target = os.path.abspath(file)
        found.views[target] = write_ranges(target, dataset, start, stop, chosen)
    return found


def _quoted(text: str) -> str:
    """For a shell, on one line: a comment in SQL ends where its line does."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"$'{escaped}'" if "\n" in text else quote(text)


def _selected(
    dataset: Dataset, wanted: SubsetOptions, progress: Callable[[int, int], None] | None
) -> tuple[Selected, Ints, Ints, Any]:
    """(what is counted, start, stop, value of by) of what is kept, in order. Raises ConfigError if nothing is."""
    found = Selected(documents=dataset.num_documents)
    parts = [(np.zeros(0, np.int64),) * 2 + (np.zeros(0, object),), *_kept(dataset, wanted, found, progress)]
    start, stop, names = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(start):
        fix = f"widen --where, --ids or --spans: nothing was written (the expression is null for {found.unknown})"
        what = f"no document of {found.documents:,} in {dataset.path}"
        raise ConfigError("subset", what, "at least one document", fix)
    order = np.argsort(start, kind="stable")  # a subquery may change it
    return found, start[order], stop[order], names[order]


def _kept(
    dataset: Dataset, wanted: SubsetOptions, found: Selected, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[Ints, Ints, Any]]:
    """(start, stop, value of by) of what is kept, some at a time."""
    arrow = need("pyarrow", EXTRA.format("pyarrow"))
    types, tracks = data.document_types(dataset), dataset.concept_tracks
    where, by = Expression(wanted.where or "true", tracks), Expression(wanted.by or "''", [], "by")
    columns = Columns(dataset, where, ids_of({"": dataset}, where.concepts).get("", []))
    spans = None if wanted.spans is None else _columns_of_tokens(dataset, wanted.spans)

    def rows(names: Collection[str]) -> Iterator[dict[str, Any]]:
        total = -(-dataset.num_documents // data.CHUNK)
        for done, some in enumerate(data.documents(dataset, names, wanted.seed), 1):
            yield {**some, **columns.of(some["start"], some["stop"])}
            if progress is not None:
                progress(done, total)

    made = {name: arrow.float64() if kind == "double" else arrow.bool_() for name, kind in columns.types.items()}
    tables = {**read_tables(wanted.tables), "documents": Relation({**types, **made}, rows)}
    has_id = "true"
    if wanted.ids is not None:
        tables["ids"] = arrow.table({"id": arrow.array([*wanted.ids], arrow.string())})
        has_id = "documents.id IN (SELECT ids.id FROM ids)"
    text = f"SELECT start, stop, (\n{where.sql}\n) AS kept, (\n{by.sql}\n)::VARCHAR AS view, "
    option = ", ".join(name for name in ("where", "by") if getattr(wanted, name) is not None)
    for batch in ask(f"{text}coalesce({has_id}, false) AS has_id FROM documents", tables, option):
        if batch["kept"].type != arrow.bool_():
            raise ConfigError("where", f"a value of type {batch['kept'].type}", "true or false", "compare it")
        chosen = batch["has_id"].to_numpy(zero_copy_only=False).astype(bool)
        found.with_id += int(chosen.sum()) if wanted.ids is not None else 0
        found.unknown += batch["kept"].null_count
        start, stop = (batch[name].to_numpy() for name in ("start", "stop"))
        chosen &= batch["kept"].fill_null(False).to_numpy(zero_copy_only=False).astype(bool) & (start < stop)
        named = batch["view"].is_valid().to_numpy(zero_copy_only=False)
        found.without_view += int((chosen & ~named).sum())
        some = np.flatnonzero(chosen & named)
        some = some[np.argsort(start[some], kind="stable")]
        start, stop = start[some], stop[some]
        if spans is not None and len(some):
            begin, end = spans.tokens(int(start[0]), int(stop[-1]))
            which, run = Runs.of(start, stop).meeting(begin, end)
            some, start, stop = some[run], np.maximum(begin[which], start[run]), np.minimum(end[which], stop[run])
        yield start, stop, batch["view"].take(arrow.array(some)).to_numpy(zero_copy_only=False)


def _columns_of_tokens(dataset: Dataset, text: str) -> Columns:
    expression = Expression(text, dataset.concept_tracks, "spans", tokens=True)
    return Columns(dataset, expression, ids_of({"": dataset}, expression.concepts, "spans")[""])


def _places(out: str, values: list[str]) -> list[str]:
    """Of each value a directory: "science & law" is science-law there.

    Raises: ConfigError for a value that is no name, or of which nothing is left, and for two with one directory.
    """
    found: dict[str, str] = {}
    for value in values:
        if not _NAME.fullmatch(value):
            expected, fix = "a name of at most 100 letters", "rename the value, or select it with --where"
            raise ConfigError("by", f"the value {value!r:.100}", expected, fix)
        name = _OTHERS.sub("-", value).lstrip(".").rstrip("-")
        if not name or name in found:
            what = f"the values {found[name]!r:.100} and {value!r:.100}" if name else f"the value {value!r:.100}"
            raise ConfigError(
                "by", what, "values with a directory each", "rename the values, or select them with --where"
            )
        found[name] = value
    return [f"{out}-{name}" for name in found]
