"""`init` of raw files: a recipe that `build` takes, and what is wrong with the rows before anything long runs."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tokenizers import normalizers

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.ingest.build import builder
from tests.corpora import tokenizers as corpora
from tests.corpora.records import write_rows as write

TEXT = "Red paint, then blue paint and more red. As it says on the tin, the paint is for doors and for windows."
SPANS = [(0, 3, "red", 0.5), (16, 20, "blue", 0.25), (36, 39, "red", 1.0)]


BUILD = ["build", "--recipe", "build.yaml", "--workers", "1", "--quiet"]


def row(number: int, **more: Any) -> dict[str, Any]:
    spans = [{"begin": a, "end": b, "label": label, "score": score, "by": "me"} for a, b, label, score in SPANS]
    found = {"doc_id": f"d{number}", "body": TEXT, "url": f"http://a/{number}", "quality": number / 8, "ents": spans}
    return {**found, **more}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(capsys: pytest.CaptureFixture[str], source: Path | str, *more: str) -> dict[str, Any]:
    """What the command says as JSON."""
    capsys.readouterr()
    assert main(["init", "--out", "build.yaml", "--json", str(source), *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", ["corpus.parquet", "corpus.jsonl", "corpus.jsonl.gz"])
def test_two_commands_from_a_file_with_names_of_its_own_to_a_dataset(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / name, [row(k) for k in range(8)])
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(corpora.byte_level().to_str(), "utf-8")
    found = init(capsys, source, "--tokenizer", str(tokenizer))
    assert found["columns"] == {
        "doc_id": "id", "body": "text", "ents": "spans of track concepts", "url": "metadata, to select by",
        "quality": "a number per document, f4: to weigh and select by",
    }  # fmt: skip
    assert found["doubts"] == []
    assert main(BUILD) == 0
    with cl.open_dataset("data/corpus") as dataset:
        assert [dataset.document_id(k) for k in range(8)] == [f"d{k}" for k in range(8)]
        assert dataset.vocabulary("concepts") == ["red", "blue"]  # the most frequent first
        spans = dataset.spans("concepts", *dataset.document_range(3))
        assert spans.values.tolist() == [0, 1, 0]
        assert spans.scores.tolist() == [0.5, 0.25, 1.0]
        kept = dataset.spans("metadata", *dataset.document_range(2)).decode()
        assert kept == [{"url": "http://a/2"}]
        assert dataset.spans("quality", *dataset.document_range(2)).decode()[0].tolist() == [0.25]
    assert main(["init", "data/corpus", "--out", "run.yaml"]) == 0


def without(number: int, column: str) -> dict[str, Any]:
    return {name: value for name, value in row(number).items() if name != column}


def spans(*places: tuple[int, int, Any]) -> list[dict[str, Any]]:
    return [{"begin": start, "end": end, "label": label} for start, end, label in places]


BAD = {
    "half null": ([row(0), without(1, "body"), row(2), without(3, "body")], "body: 2 of 4 rows have none"),
    "a number is half null": ([row(0), row(1, quality=None)], "quality: 1 of 2 rows have none"),
    "an id is missing": ([row(0), without(1, "doc_id"), row(2)], "doc_id: 1 of 3 rows have none"),
    "no token": (
        [row(0, ents=spans((0, 3, "red"), (12, 13, "blue")))],
        "above 1.00% (max-unaligned-spans) a build fails",
    ),
    "beyond": ([row(0, ents=spans((0, 3, "red"), (90, 999, "blue")))], "1 of 2 spans are beyond their document"),
    "numbers": ([row(0, ents=spans((0, 3, 7)))], "labels are numbers, which become ids"),
    "an id twice": ([row(0), row(0), row(1)], "doc_id: 1 of 3 rows have an id that was there before"),
    "nothing": ([row(0, lang=None)], "lang: no row has a value"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_before_a_build(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, said = BAD[case]
    (tmp_path / "tokenizer.json").write_text(corpora.byte_level().to_str(), "utf-8")
    found = init(capsys, write(tmp_path / "in.jsonl", rows), "--tokenizer", "tokenizer.json")
    assert any(said in doubt for doubt in found["doubts"])
    assert said.endswith("beyond their document") or not any("beyond" in doubt for doubt in found["doubts"])
    assert f"#   {found['doubts'][0]}" in Path("build.yaml").read_text()


def test_many_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ents = [spans(*((k, k + 1, f"{number}-{k}") for k in range(90))) for number in range(120)]
    source = write(tmp_path / "in.jsonl", [row(k, ents=found) for k, found in enumerate(ents)])
    assert any("10,800 names of concepts" in doubt for doubt in init(capsys, source, "--tokenizer", "bytes")["doubts"])


def test_tokens_with_numbers_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1], "weight": [0.5, 1.0, 2.0], "key": k} for k in range(3)]
    found = init(capsys, write(tmp_path / "in.parquet", rows))
    assert found["recipe"]["column"] == {"tokens": "input_ids", "id": "key"}
    assert found["recipe"]["field"] == {"loss_mask": "u1", "weight": "f4"}
    assert "# vocab-size: " in Path("build.yaml").read_text()
    assert main(BUILD) == 2
    words = ["--vocab-size", "8", "--no-eos", "--workers", "1", "--quiet"]
    assert main(["build", "--recipe", "build.yaml", *words]) == 0
    with cl.open_dataset("data/in") as dataset:
        assert dataset.fields(0, 3)["weight"].tolist() == [0.5, 1.0, 2.0]


def test_conversations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    source = write(tmp_path / "in.jsonl", [{"messages": turns, "source": "x"}])
    found = init(capsys, source)
    assert found["recipe"] == {"inputs": [str(source)], "out": "data/in", "chat": True, "ignore-column": ["source"]}
    assert found["columns"] == {"messages": "conversation", "source": "ignored"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("a.bin", 2, "conceptloader adopt"),
        ("short.jsonl", 1, "found columns a (text): no column of text"),
        ("nowhere.jsonl", 2, "nowhere.jsonl"),
    ],
)
def test_what_is_no_corpus(words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.bin").write_bytes(bytes(8))
    Path("short.jsonl").write_text('{"a": "b"}\n')
    assert main(["init", *words.split(), "--out", "build.yaml"]) == code
    assert said in capsys.readouterr().err
    assert not Path("build.yaml").exists()


WRONG: dict[str, tuple[dict[str, pa.Table], str]] = {
    "lists": ({"a": pa.table({"text": [["a"]]})}, "a.parquet: found columns text (lists of text): no column of text"),
    "floats": ({"a": pa.table({"tokens": [[1.0]]})}, "a.parquet: found columns tokens (lists of float): no column of"),
    "a later file": (
        {"a": pa.table({"text": ["a"] * 3}), "b": pa.table({"text": [7] * 3})},
        "b.parquet: found columns text (integer): no column of text",
    ),
    "no row": ({"a": pa.table({"text": pa.array([], pa.string())})}, "a.parquet: found no rows, expected"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_all_rows(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says which file, and what is there."""
    tables, said = WRONG[case]
    for name, table in tables.items():
        path = Path("in") / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    assert main(["init", "in", "--out", "build.yaml"]) == 1
    assert said in capsys.readouterr().err


def test_an_existing_recipe_or_vocabulary_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [row(0)])
    Path("build.concepts.txt").write_text("mine\n")
    assert main(["init", str(source), "--out", "build.yaml", "--tokenizer", "bytes"]) == 2
    assert "build.concepts.txt" in capsys.readouterr().err
    assert Path("build.concepts.txt").read_text() == "mine\n"
    assert init(capsys, source, "--tokenizer", "bytes", "--overwrite")
    assert Path("build.concepts.txt").read_text() == "red\nblue\n"
    assert yaml.safe_load(Path("build.yaml").read_text())["vocabulary"] == {"concepts": "build.concepts.txt"}


def test_a_long_build_tries_first_rows_before_it_reads_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad row early in the last of many files: nothing of the others is built."""
    files = [write(tmp_path / f"{k}.jsonl", [{"text": TEXT}] * 9) for k in range(5)]
    write(files[-1], [{"text": TEXT}, {"text": 7}])
    words = ["--tokenizer", "bytes", "--shard-input-bytes", "500", "--workers", "1", "--quiet", "--out", "out"]
    monkeypatch.setattr(builder, "LONG_BYTES", 1000)
    assert main(["build", *map(str, files), *words]) == 1
    assert f"{files[-1]}: line 2: text: found 7, expected a string; no shard was begun" in capsys.readouterr().err
    assert not [*Path("out").glob("*.shard.json")]
    monkeypatch.setattr(builder, "LONG_BYTES", 1 << 28)
    assert main(["build", *map(str, files), *words]) == 1
    assert "shards are finished and kept" in capsys.readouterr().err


def test_a_second_dataset_with_the_vocabulary_of_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tmp_path / "first.txt"
    names.write_text("blue\nred\n")
    source = write(tmp_path / "in.jsonl", [row(0)])
    found = init(capsys, source, "--tokenizer", "bytes", "--vocabulary", str(names))
    assert found["recipe"]["vocabulary"] == {"concepts": str(names)}
    assert not Path("build.concepts.txt").exists()
    assert main(BUILD) == 0
    with cl.open_dataset("data/in") as dataset:
        assert dataset.vocabulary("concepts") == ["blue", "red"]
    names.write_text("blue\n")
    doubts = init(capsys, source, "--tokenizer", "bytes", "--vocabulary", str(names), "--overwrite")["doubts"]
    assert any("unknown concept 'red'" in doubt for doubt in doubts)
    words = ["--tokenizer", "bytes", "--vocabulary", f"topic={names}", "--overwrite"]
    assert main(["init", str(source), "--out", "build.yaml", *words]) == 2
    assert "track 'topic'" in capsys.readouterr().err


def test_two_columns_of_spans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same names of fields they are two tracks; with other names the second one is left to `annotate`."""
    rows = [row(k, ents=spans((0, 3, "red")), topics=spans((4, 9, "paint"))) for k in range(2)]
    found = init(capsys, write(tmp_path / "in.jsonl", rows), "--tokenizer", "bytes")
    assert (found["columns"]["ents"], found["columns"]["topics"]) == (
        "spans of track concepts",
        "spans of track topics",
    )
    assert found["recipe"]["column"]["spans_topics"] == "topics"
    assert main(BUILD) == 0
    with cl.open_dataset("data/in") as dataset:
        assert dataset.vocabulary("topics") == ["paint"]
        assert dataset.spans("topics", *dataset.document_range(0)).start.tolist() == [4]
    rows = [row(k, ents=spans((0, 3, "red")), topics=[{"start": 4, "end": 9, "tag": "paint"}]) for k in range(2)]
    found = init(capsys, write(tmp_path / "in.jsonl", rows), "--tokenizer", "bytes", "--overwrite")
    assert found["columns"]["topics"] == "ignored"
    assert any(doubt.startswith("topics: its fields are not called like") for doubt in found["doubts"])


@pytest.mark.parametrize(
    ("values", "role"),
    [
        ([1, 0.5], "a number per document, f4: to weigh and select by"),
        ([1, 2], "metadata, to select by"),
        ([1, "a"], "metadata, to select by"),
        ([True, False], "metadata, to select by"),
        ([{"a": 1}, {"a": 2}], "ignored"),
        ([[1], [2]], "ignored"),
    ],
)
def test_other_columns(values: list[Any], role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [{"text": TEXT, "more": value} for value in values])
    assert init(capsys, source, "--tokenizer", "bytes")["columns"]["more"] == role
    assert main(BUILD) == 0


SPAN = {"start": 0, "end": 3, "label": "x"}
NO_SPANS: dict[str, tuple[Any, str]] = {
    "spans": ([{**SPAN, "start": 0.0, "end": 3.0}], "spans: start is float, expected integers; end is float, expected"),
    "entities": ([{**SPAN, "end": "3"}], "entities: end is text, expected integers"),
    "ents": ([{"from": None, "to": 3, "tag": "x"}], "ents: from is null, expected integers"),
    "annotations": ([{"offset": 0, "length": 3, "label": "x"}], "annotations: no field is called start or the like"),
    "spans_topic": ([[0, 3]], "spans_topic: lists of lists of integer, expected lists of objects"),
    "Labels": ({"start": [0], "end": [3], "label": ["x"]}, "Labels: object, expected lists of objects"),
    "found": ({"start": [0], "end": [3], "label": ["x"]}, "found: object, expected lists of objects"),
    "tags": (["a", "b"], "tags: lists of text, expected lists of objects"),
}


@pytest.mark.parametrize("name", NO_SPANS)
def test_what_may_be_spans_is_not_ignored_without_a_word(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value, said = NO_SPANS[name]
    found = init(capsys, write(tmp_path / "in.jsonl", [{"text": TEXT, name: value}] * 3), "--tokenizer", "bytes")
    assert found["columns"][name] == "ignored"
    assert any(doubt.startswith(said) for doubt in found["doubts"]), found["doubts"]


def test_an_object_meta_is_the_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [{"text": TEXT, "meta": {"url": "a"}}])
    assert init(capsys, source, "--tokenizer", "bytes")["columns"]["meta"] == "metadata"
    assert main(BUILD) == 0
    with cl.open_dataset("data/in") as dataset:
        assert dataset.spans("metadata", *dataset.document_range(0)).decode() == [{"url": "a"}]


@pytest.mark.parametrize("name", ["id", "spans", "spans_topic", "metadata", "concepts", "labels", "tags"])
def test_a_column_of_a_name_that_a_build_knows_has_one_role(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever it holds; what is written is built."""
    for value in (7.5, True, '[{"start": 0}]', [0.5], {"a": 1}, [SPAN]):
        rows = [{"text": TEXT, "ents": [SPAN], name: value}] * 2
        found = init(capsys, write(tmp_path / "in.jsonl", rows), "--tokenizer", "bytes", "--overwrite")
        assert not any("role" in doubt for doubt in found["doubts"]), value
        words = [*BUILD, "--overwrite"]
        assert main(words) == 0, (value, found["doubts"])


def test_ids_of_two_types_in_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.parquet", [{"id": "a", "text": TEXT}] * 4)
    write(tmp_path / "in" / "b.parquet", [{"id": 7, "text": TEXT}] * 4)
    assert init(capsys, tmp_path / "in", "--tokenizer", "bytes")["columns"]["id"] == "id"
    assert main(BUILD) == 0


def test_the_content_without_a_usual_name_is_the_longest_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [{"title": "Paint", "story": TEXT}, {"title": TEXT, "story": TEXT * 2}])
    found = init(capsys, source, "--tokenizer", "bytes")
    assert found["columns"] == {"story": "text", "title": "metadata, to select by"}
    write(source, [{"title": "Paint", "story": "short"}])
    assert main(["init", str(source), "--out", "build.yaml", "--overwrite", "--tokenizer", "bytes"]) == 1


def test_an_empty_first_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    source = write(tmp_path / "b.jsonl", [row(0)])
    assert main(["init", str(tmp_path / "a.jsonl"), str(source), "--out", "build.yaml", "--tokenizer", "bytes"]) == 0
    assert yaml.safe_load(Path("build.yaml").read_text())["column"]["text"] == "body"


def test_a_tokenizer_of_another_family_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tokens do not give the text back, which offsets in characters of later annotations would need."""
    tokenizer = corpora.byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    found = init(capsys, write(tmp_path / "in.jsonl", [row(0)]), "--tokenizer", "tokenizer.json")
    assert found["doubts"] == ["tokenizer: the normalizer NFKC: `annotate` will need offsets in tokens"]


SPANS_TO_THE_END = [*row(0)["ents"], {"begin": 94, "end": 102, "label": "red", "score": 0.0, "by": "me"}]
LISTS = [{"nr": 1, "note": "x", "ents": [{**one, "id": 7} for one in SPANS_TO_THE_END]}]
SPAN_EACH = [{"nr": 1, "note": "x", **{k: v for k, v in one.items() if k != "by"}} for one in SPANS_TO_THE_END]


@pytest.mark.parametrize(("rows", "ids"), [(LISTS, False), (SPAN_EACH, False), (LISTS, True), (SPAN_EACH, True)])
def test_two_commands_from_annotations_with_names_of_their_own_to_a_track(
    rows: list[dict[str, Any]], ids: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists of spans, and a span a row; documents by number and by id; over tokens that were adopted."""
    (tmp_path / "tokenizer.json").write_text(corpora.byte_level().to_str(), "utf-8")
    write(tmp_path / "in.jsonl", [{"text": TEXT, **({"id": f"d{k}"} if ids else {})} for k in range(2)])
    assert main(["build", "in.jsonl", "--out", "web", "--tokenizer", "tokenizer.json", "--quiet"]) == 0
    if ids:
        rows = [{"doc_id": f"d{one['nr']}", **{k: v for k, v in one.items() if k != "nr"}} for one in rows]
    source = write(tmp_path / "rows.jsonl", rows)
    found = init(capsys, "web", str(source))
    assert found["columns"]["doc_id" if ids else "nr"] == ("id" if ids else "document")
    assert found["columns"]["note"] == "ignored"
    assert found["doubts"] == []
    assert main(["annotate", "web", "--recipe", "build.yaml"]) == 0
    with cl.open_dataset("web-concepts") as dataset:
        spans = dataset.spans("concepts", *dataset.document_range(1))
        assert [dataset.vocabulary("concepts")[k] for k in spans.values] == ["red", "blue", "red", "red"]
        assert spans.scores.tolist() == [0.5, 0.25, 1.0, 0.0]
        assert len(dataset.spans("concepts", *dataset.document_range(0)).start) == 0
    again = init(capsys, "web-concepts", str(source), "--overwrite")
    assert (again["recipe"]["track"], again["recipe"]["out"]) == ("concepts2", "web-concepts-concepts2")


ANNOTATIONS = {
    "overlap": ([{"id": "d0", "spans": spans((0, 9, "red"), (4, 12, "blue"))}], "1 of 2 spans overlap"),
    "beyond": ([{"id": "d0", "spans": spans((0, 999, "red"))}], "document 0: found [0, 999), expected"),
    "no token": (
        [{"id": "d0", "spans": spans((12, 13, "red"), (94, 102, "red"))}],
        "above 1.00% (max-unaligned-spans) a build fails",
    ),
    "unknown": ([{"id": "d7", "spans": spans((0, 3, "red"))}], "found id 'd7', expected an id of the 1 document"),
    "wrong": ([{"id": "d0", "spans": spans((3, 0, "red"))}], "line 1: spans[0]: found [3, 0)"),
}


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_what_is_wrong_with_annotations_is_said_before(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, said = ANNOTATIONS[case]
    (tmp_path / "tokenizer.json").write_text(corpora.byte_level().to_str(), "utf-8")
    write(tmp_path / "in.jsonl", [{"text": TEXT, "id": "d0"}])
    assert main(["build", "in.jsonl", "--out", "web", "--tokenizer", "tokenizer.json", "--quiet"]) == 0
    doubts = init(capsys, "web", str(write(tmp_path / "rows.jsonl", rows)))["doubts"]
    assert any(said in doubt for doubt in doubts), doubts


def test_rows_that_are_no_annotations_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in.jsonl", [{"text": TEXT, "id": "d0"}])
    assert main(["build", "in.jsonl", "--out", "web", "--tokenizer", "bytes", "--quiet"]) == 0
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"id": "d0", "quality": 0.5}, "id (text), quality (float), expected a column"),
        ({"id": "d0", **SPAN, "end": 3.0}, "id (text), start (integer), end (float), label (text), expected"),
        ({"id": "d0", "spans": [{**SPAN, "end": 3.0}]}, "id (text), spans (lists of object); spans: end is float, exp"),
        ({"id": 0.5, "spans": [SPAN]}, "id (float), spans (lists of object); id: float, expected text or integers"),
    ]
    for one, said in wrong:
        source = write(tmp_path / "rows.jsonl", [one])
        assert main(["init", "web", str(source), "--out", "build.yaml"]) == 1
        assert f"{source}: found columns {said}" in capsys.readouterr().err
    assert main(["init", "web", "web", str(source), "--out", "build.yaml"]) == 2
    assert "2 datasets" in capsys.readouterr().err
