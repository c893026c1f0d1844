"""Table of parquet files by column: those that are right are not looked at singly, and the others mean what they do."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import InputError
from conceptloader.format.read import ids
from conceptloader.ingest.annotate import rows as parsing
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.columns import BatchParser
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.annotate.reading import Rows
from conceptloader.ingest.records.inputs import find_sources
from tests.annotate.test_annotate import build, owners, write_rows
from tests.raises import raises

Table = list[dict[str, Any]]
TRACKS: dict[str, tuple[dict[str, Any], Table]] = {
    "names": (
        {"vocabulary": ["a", "b"]},
        [{"concepts": ["b", "a"]}, {"concepts": []}, {"concepts": ["x"]}, {"concepts": None}, {"concepts": ["a"]}],
    ),
    "scores": (
        {"parameters": {"scores": "f4"}},
        [
            {"concepts": [], "scores": []}, {"concepts": [3, 4], "scores": [0.5, 1.0]},
            {"concepts": [5], "scores": [0.5, 1.0]}, {"concepts": [5], "scores": [1e39]},
            {"concepts": [6], "scores": None}, {"concepts": [1 << 32], "scores": [1.0]},
        ],
    ),
    "labels": (
        {"columns": {"concepts": "label", "scores": "score"}, "parameters": {"ids": "u2", "scores": "f2"}},
        [
            {"label": 7, "score": 0.5}, {"label": None, "score": 0.5}, {"label": 8, "score": 1e9},
            {"label": 9, "score": None},
        ],
    ),
    "numbers": (
        {"codec": "numpy", "parameters": {"dtype": "f4"}},
        [{"value": 0.1}, {"value": 1e300}, {"value": None}],
    ),
    "integers": (
        {"codec": "numpy", "parameters": {"dtype": "i2"}},
        [{"value": 3}, {"value": 40_000}, {"value": None}, {"value": -3}],
    ),
    "objects": ({"codec": "json"}, [{"value": {"a": 1}}, {"value": {"a": 2}}]),
}  # fmt: skip
PLACES: Table = [
    {"id": "d0", "start": 1, "end": 2}, {"id": "d1", "start": None, "end": None}, {"id": "d2", "start": 0, "end": None},
    {"id": None, "start": 0, "end": 1}, {"id": "d\0", "start": 0, "end": 1}, {"id": "d2", "start": 2, "end": 2},
    {"id": "", "start": 1, "end": 2}, {"id": "d3", "start": 0, "end": 3}, {"id": "d4", "start": -1, "end": 3},
]  # fmt: skip


def attach(folder: Path, rows: Table, suffix: str, **options: Any) -> tuple[list[Any], Any, list[tuple[str, str]]]:
    """(what each token has; what is known of the track; what is wrong, where)."""
    bad: list[tuple[str, str]] = []
    out = folder / f"out{suffix}"
    annotate(
        folder / "ds", [write_rows(folder / f"rows{suffix}", rows)], out,
        AnnotateOptions(track="new", span_unit="token", overlap="levels", levels=16, **options),
        on_bad=lambda _, place, problem: bad.append((place.split()[-1], problem)),
    )  # fmt: skip
    ds = cl.open_dataset(out)
    return owners(ds, "new"), ds.manifest.tracks["new"], bad


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", TRACKS)
def test_columns_mean_what_rows_do(
    name: str, nested: bool, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, values = TRACKS[name]
    build(tmp_path / "ds", [[[1, 2, 3]] * 3, [[4, 5, 6]] * 27])
    rows: Table = [{**place, **value} for place in PLACES for value in values]
    rows += [{"id": f"d{5 + k}", "start": 0, "end": 2, **value} for k, value in enumerate(values)]
    if nested:
        rows = [{"id": row.pop("id"), "spans": [row, {**row, "start": 2, "end": 3}]} for row in rows]
    looked: list[Any] = []
    real = parsing.RowParser.parse
    monkeypatch.setattr(parsing.RowParser, "parse", lambda self, row: looked.append(row) or real(self, row))
    found, track, bad = attach(tmp_path, rows, suffix, **options)
    singly = len(looked)
    monkeypatch.setattr(BatchParser, "batch_of", lambda *_: None)
    (tmp_path / "singly").mkdir()
    (tmp_path / "singly/ds").symlink_to(tmp_path / "ds")
    expected, known, problems = attach(tmp_path / "singly", rows, ".jsonl", **options)
    assert (found, track) == (expected, known)
    shift = 0 if suffix == ".jsonl" else 1  # lines count from 1, rows from 0
    assert bad == [(str(int(line) - shift), problem) for line, problem in problems]
    assert found.count(None) < len(found)
    scalar = name in ("numbers", "integers") and not nested  # where a row may say that there is no number
    unsaid = sum((row["value"], row["start"], row["end"]) == (None, None, None) for row in rows) if scalar else 0
    assert singly == (len(rows) if name == "objects" else len(bad) + unsaid), "rows were looked at for nothing"


def test_ids_beyond_their_type(tmp_path: Path) -> None:
    build(tmp_path / "ds", [[[1, 2, 3]]])
    for suffix in (".parquet", ".jsonl"):
        rows = write_rows(tmp_path / f"rows{suffix}", [{"id": "d0", "concepts": [70_000]}])
        with raises(InputError, f"rows{suffix}", "the concept 70000", "an id in [0, 2**16)"):
            annotate(tmp_path / "ds", [rows], tmp_path / "out", AnnotateOptions(track="c", parameters={"ids": "u2"}))


def test_ids_of_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "ds", [[[1], [2]], [[3]]])
    ds = cl.open_dataset(tmp_path / "ds")
    real = ids.hash_ids
    monkeypatch.setattr(ids, "hash_ids", lambda data: real([b"d0" if one == b"other" else one for one in data]))
    assert ids.find_many(ds, ["other", "d0", "d2", "d0", ""]).tolist() == [ids.MISSING, 0, 2, 0, ids.MISSING]


def test_types_that_are_looked_at_singly(tmp_path: Path) -> None:
    """Views, which Arrow cannot take by number; and texts that are not UTF-8, named by their row."""
    build(tmp_path / "ds", [[[1, 2, 3]]])
    broken = {"id": pa.array([b"d0", b"\xff"]).view("string"), "start": [0, 2], "end": [1, 3], "concepts": [[1], [2]]}
    pq.write_table(pa.table(broken), tmp_path / "b.parquet")
    with raises(InputError, "b.parquet", "from row 0 on: cannot be read"):
        annotate(
            tmp_path / "ds", [tmp_path / "b.parquet"], tmp_path / "b", AnnotateOptions(track="c", span_unit="token")
        )


def objects(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """With each of the keys, or without."""
    return st.fixed_dictionaries({}, optional=values)


odd = st.sampled_from([None, True, 1.0, 1 << 64, "x", "\ud800", [], {}, [[0, 1]]])
numbers = st.integers(0, 2) | odd
labels = {
    "concepts": st.lists(st.integers(0, 3) | st.sampled_from(["x"]), max_size=2) | odd,
    "scores": st.lists(st.sampled_from([0.5, 1, True]), max_size=2) | odd,
}
spans = objects(start=numbers, end=numbers, text=odd, **labels)
rows_of_objects = st.lists(
    st.sampled_from([
        {"id": "a", "spans": [{"start": 0, "end": 1, "concepts": [1], "scores": [0.5]}]},
        {"id": "a", "spans": [{"start": 0, "end": 1, "concepts": []}]},
        {"id": "a", "start": 0, "end": 1, "concepts": [], "scores": []},
        {"id": "a", "start": 0, "end": 1, "concepts": []},
    ])
    | objects(id=st.sampled_from(["b"]) | odd, spans=st.lists(spans, max_size=2))
    | objects(id=st.just("b"), document=numbers, start=numbers, end=numbers, note=odd, value=odd, spans=odd, **labels),
    max_size=4,
)  # fmt: skip


SPAN = {"id": "a", "start": 0, "end": 1}
UNSCORED = {"start": 0, "end": 1, "concepts": []}
SCORED = {**UNSCORED, "scores": [0.5]}


@settings(max_examples=150)
@example([{"id": "a", "spans": [{**SCORED, "concepts": [1]}]}, {"id": "a", "spans": [UNSCORED]}], "scores")
@example([{**SPAN, "concepts": [2], "scores": [0.5]}, {**SPAN, "concepts": [2], "scores": [True]}], "scores")
@example([{"id": "a", "value": 0.5}, {"id": "a", "value": 2049}], "numpy")
@example([{"id": "a", "value": 0.5}, {"id": "a", "value": True}], "numpy")
@example([{**SPAN, "concepts": [1], "text": 5}, {**SPAN, "concepts": [1], "text": 7}], "concepts")
@given(rows_of_objects, st.sampled_from(["scores", "concepts", "numpy", "json"]))
def test_objects_together_mean_what_they_do_alone(
    tmp_path_factory: pytest.TempPathFactory, rows: Table, kind: str
) -> None:
    """A key that one object lacks, or has more, and another type: columns do not hide it."""
    path = tmp_path_factory.getbasetemp() / "objects.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) or "\n")
    options = {
        "scores": AnnotateOptions(track="c", parameters={"scores": "f4"}), "concepts": AnnotateOptions(track="c"),
        "numpy": AnnotateOptions(track="c", codec="numpy", parameters={"dtype": "f2"}),
        "json": AnnotateOptions(track="c", codec="json"),
    }[kind]  # fmt: skip
    read: list[Any] = []
    for parse in (BatchParser.batch_of, lambda *_: None):
        bad: list[tuple[str, ...]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchParser, "batch_of", parse)
            patch.setattr(Rows, "_report", lambda self, *one, bad=bad: bad.append(one))
            known = Rows(find_sources([path]), options, lambda *_: None)
            found = [{**row, "id": row["id"] or ""} for batch in known.batches("") for row in batch.to_pylist()]
        read.append((sorted(found, key=lambda row: (row["row"], row["part"])), bad))
    assert read[0] == read[1]


def test_rows_are_held_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few annotations next to long texts, which are ignored: about a MiB of lines is parsed at a time."""
    path, held = tmp_path / "rows.jsonl", list[int]()
    with open(path, "w") as file:
        for k in range(60):
            file.write(json.dumps({"document": k, "concepts": [1], "body": "x" * 200_000}) + "\n")
    real = BatchParser.batch_of

    def batch_of(self: BatchParser, rows: Any) -> Any:
        held.append(sum(len(row["body"]) for row in rows))
        return real(self, rows)

    monkeypatch.setattr(BatchParser, "batch_of", batch_of)
    rows = Rows(find_sources([path]), AnnotateOptions(track="c", ignored=["body"]), None)
    assert sum(batch.num_rows for batch in rows.batches("")) == 60
    assert sum(held) == 60 * 200_000
    assert max(held) <= 3 << 20


def test_blocks_without_a_good_row(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{broken\n[1]\n")
    bad: list[str] = []
    rows = Rows(find_sources([tmp_path / "rows.jsonl"]), AnnotateOptions(track="c"), lambda *one: bad.append(one[1]))
    assert [*rows.batches("")] == []
    assert bad == ["line 1", "line 2"]
