"""Features of `datasets` (names of labels, JSON): builds take what `Dataset[i]` would give, not what is stored."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import InputError
from conceptloader.ingest.records.inputs import find_sources, read_rows

TEXT = {"_type": "Value", "dtype": "string"}
LABEL = {"_type": "ClassLabel", "names": ["PER", "LOC"]}
SPAN = {"start": {"_type": "Value"}, "end": {"_type": "Value"}, "label": LABEL}
FEATURES: dict[str, Any] = {
    "text": TEXT,
    "kind": {"_type": "ClassLabel", "names": ["neg", "pos"]},
    "spans": {"_type": "List", "feature": SPAN},
    "metadata": {"a": {"_type": "Json"}, "labels": [LABEL]},
}
SPANS = [{"start": 0, "end": 3, "label": 0}, {"start": 7, "end": 11, "label": 1}]
ROWS = [
    {"text": "Bob in Rome", "kind": 1, "spans": SPANS, "metadata": {"a": '{"x": [1, null]}', "labels": [1]}},
    {"text": "none", "kind": -1, "spans": None, "metadata": {"a": None, "labels": []}},
    {"text": "is null", "kind": 0, "spans": [], "metadata": None},
]
WANTED = [
    {"kind": "pos", "a": {"x": [1, None]}, "labels": ["LOC"]},
    {"kind": None, "a": None, "labels": []},
    {"kind": "neg"},
]
COLUMNS: dict[str, Any] = {"tokenizer": "bytes", "column": {"concepts": "label"}, "metadata_column": ["kind"]}


def write(folder: Path, rows: list[dict[str, Any]], features: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    info = json.dumps({"info": {"features": features}})
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata({"huggingface": info}), folder / "a.parquet")
    return folder / "a.parquet"


def concepts(out: Path) -> list[tuple[str, list[str]]]:
    ds = cl.open_dataset(out)
    spans, names = ds.spans("concepts", 0, ds.num_tokens), ds.vocabulary("concepts")
    places = zip(spans.start, spans.end, spans.decode(), strict=True)
    return [(bytes(ds.tokens(a, b).tolist()).decode(), [names[i] for i in ids]) for a, b, ids in places]


@pytest.mark.parametrize("vocabulary", [None, ["LOC", "PER"], ["x", "PER", "LOC"]])
def test_labels_go_by_their_names(tmp_path: Path, vocabulary: list[str] | None) -> None:
    path = write(tmp_path / "in", ROWS, FEATURES)
    given = {} if vocabulary is None else {"concepts": vocabulary}
    cl.build(path, tmp_path / "out", **COLUMNS, vocabulary=given)
    assert concepts(tmp_path / "out") == [("Bob", ["PER"]), ("Rome", ["LOC"])]
    ds = cl.open_dataset(tmp_path / "out")
    assert ds.spans("metadata", 0, ds.num_tokens).decode() == WANTED


def test_labels_that_the_vocabulary_does_not_have(tmp_path: Path) -> None:
    path = write(tmp_path / "in", ROWS, FEATURES)
    with pytest.raises(InputError, match="unknown concept 'LOC'"):
        cl.build(path, tmp_path / "out", **COLUMNS, vocabulary={"concepts": ["PER", "ORG"]})
    path = write(tmp_path / "in", [{**ROWS[0], "kind": 2}], FEATURES)
    with pytest.raises(InputError, match="kind: found label 2, expected one of 2"):
        cl.build(path, tmp_path / "out", **COLUMNS)


def test_lists_of_objects_as_datasets_stored_them_before_version_4(tmp_path: Path) -> None:
    rows = [{"text": "Bob", "metadata": {"more": {"label": [1, 0], "j": ["1", '"t"']}}}]
    inside = {"label": LABEL, "j": {"_type": "Json"}}
    features = {"text": TEXT, "metadata": {"more": {"_type": "Sequence", "feature": inside}}}
    path = write(tmp_path / "in", rows, features)
    [(_, row)] = read_rows(find_sources([path])[0], None, pytest.fail)
    assert row["metadata"] == {"more": {"label": ["LOC", "PER"], "j": [1, "t"]}}


def test_numbers_stay_numbers_where_they_are_asked_for(tmp_path: Path) -> None:
    rows = [{"text": "a", "kind": 1}, {"text": "b", "kind": 0}]
    path = write(tmp_path / "in", rows, {"kind": FEATURES["kind"]})
    cl.build(path, tmp_path / "out", tokenizer="bytes", number={"kind": "f4"})
    ds = cl.open_dataset(tmp_path / "out")
    assert [value.tolist() for value in ds.spans("kind", 0, ds.num_tokens).decode()] == [[1.0], [0.0]]


@pytest.mark.parametrize("nested", [True, False])
def test_annotations_go_by_the_names_and_numbers_by_the_numbers(nested: bool, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "Bob in Rome"}\n{"id": "b", "text": "none"}\n')
    cl.build(tmp_path / "in.jsonl", tmp_path / "ds", tokenizer="bytes")
    rows: list[dict[str, Any]] = [{"id": "a", "spans": SPANS, "kind": 1}]
    if not nested:
        rows = [{"id": "a", **span, "kind": 1} for span in SPANS]
    features = {"kind": FEATURES["kind"], "spans": FEATURES["spans"], "label": LABEL}
    given = [str(write(tmp_path / "more", rows, features))]
    command = ["annotate", str(tmp_path / "ds"), *given, "--span-unit", "character", "--quiet", "--out"]
    words = [str(tmp_path / "out"), "--track", "concepts", "--column", "concepts=label", "--ignore-column", "kind"]
    assert main([*command, *words]) == 0
    assert concepts(tmp_path / "out") == [("Bob", ["PER"]), ("Rome", ["LOC"])]
    assert main([*command, str(tmp_path / "kind"), "--number", "kind:f4", "--ignore-column", "label"]
                + ["--ignore-column", "spans"] * nested) == 0  # fmt: skip
    ds = cl.open_dataset(tmp_path / "kind")
    assert [value.tolist() for value in ds.spans("kind", 0, ds.num_tokens).decode()] == [[1.0]] * (1 if nested else 2)


def test_init_writes_the_names(tmp_path: Path) -> None:
    path = write(tmp_path / "in", ROWS, FEATURES)
    assert main(["init", str(path), "--tokenizer", "bytes", "--out", str(tmp_path / "r.yaml"), "--quiet"]) == 0
    assert {*(tmp_path / "r.concepts.txt").read_text().split()} == {"PER", "LOC"}
    recipe = tmp_path / "r.yaml"
    recipe.write_text(recipe.read_text().replace("#ignore-column", "ignore-column"))
    assert main(["build", "--recipe", str(recipe), "--quiet"]) == 0
    assert concepts(tmp_path / "data" / "a") == [("Bob", ["PER"]), ("Rome", ["LOC"])]


CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.calls or [] %}{{ c | tojson }}{% endfor %}|{% endfor %}"


@pytest.mark.parametrize("extension", [True, False])
def test_json_in_conversations_is_decoded(tmp_path: Path, extension: bool) -> None:

    said = {"role": "assistant", "content": "b", "calls": ['{"city": "Z", "limit": null}', "7"]}
    rows = [{"messages": [{"role": "user", "content": "a", "calls": None}, said]}] * 2
    rows += [{"messages": [{"role": "user", "content": "a", "calls": None}]}]  # no answer: bad
    item = {"role": TEXT, "content": TEXT, "calls": {"_type": "List", "feature": {"_type": "Json"}}}
    path = write(tmp_path / "in", rows, {"messages": {"_type": "List", "feature": item}})
    if extension:  # as a column's own type
        table = pa.table({"messages": pa.array([[json.dumps(m) for m in row["messages"]] for row in rows])})
        table = pa.table({"messages": table["messages"].cast(pa.list_(pa.json_()))})
        path = tmp_path / "b.parquet"
        pq.write_table(table, path)
    wanted = 'a|b{"city": "Z", "limit": null}7|'
    if extension:
        wanted = "a|b" + "".join(json.dumps(call) for call in said["calls"]) + "|"
    bad: list[str] = []
    (tmp_path / "t.jinja").write_text(CALLS)
    rules: dict[str, Any] = {"chat": True, "chat_template": str(tmp_path / "t.jinja")}
    cl.build(path, tmp_path / "out", tokenizer="bytes", **rules, on_bad=lambda *one: bad.append(one[2]))
    ds = cl.open_dataset(tmp_path / "out")
    assert bytes(ds.tokens(*ds.document_range(0)).tolist()).decode() == wanted
    assert (ds.num_documents, len(bad)) == (2, 1)


def test_json_that_is_none_is_an_error(tmp_path: Path) -> None:
    rows = [{"text": "a", "metadata": {"a": "{"}}]
    path = write(tmp_path / "in", rows, FEATURES)
    with pytest.raises(InputError, match=r"row 0: found '{' in a column of Json"):
        cl.build(path, tmp_path / "out", tokenizer="bytes")


def test_rows_as_datasets_gives_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["PER", "LOC"])
    value, text = datasets.Value("int32"), datasets.Value("string")
    features = datasets.Features(
        {
            "text": text, "label": names, "labels": datasets.List(names), "any": datasets.Json(),
            "spans": datasets.List({"start": value, "end": value, "label": names, "more": datasets.Json()}),
        }
    )  # fmt: skip
    span = {"start": 0, "end": 1, "label": 1, "more": {"x": None}}
    rows = [{"text": "a", "label": 0, "labels": [1, 0], "any": {"k": [1]}, "spans": [span, span]}] * 3
    rows += [{"text": "b", "label": None, "labels": [], "any": None, "spans": []}]
    ds = datasets.Dataset.from_list(rows, features=features)
    ds.save_to_disk(str(tmp_path / "saved"))
    ds.to_parquet(str(tmp_path / "a.parquet"))

    def named(ids: Any) -> Any:
        return None if ids is None else [*map(named, ids)] if isinstance(ids, list) else names.int2str(ids)

    wanted = [
        {**row, "label": named(row["label"]), "labels": named(row["labels"]),
         "spans": [{**span, "label": named(span["label"])} for span in row["spans"]]}
        for row in ds
    ]  # fmt: skip
    for path in (tmp_path / "saved", tmp_path / "a.parquet"):
        assert [row for source in find_sources([path]) for _, row in read_rows(source, None, pytest.fail)] == wanted
