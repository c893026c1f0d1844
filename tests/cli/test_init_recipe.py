"""`init` of raw files: a recipe with what is sure, ids first, and questions about the rest; nothing is guessed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from tests.corpora.records import write_rows as write

TEXT = "Red paint, then blue paint and more red. As it says on the tin, the paint is for doors and for windows."
SPANS = [(0, 3, "red", 0.5), (16, 20, "blue", 0.25), (36, 39, "red", 1.0)]
BUILD = ["build", "--recipe", "build.yaml", "--workers", "1", "--quiet"]


def row(number: int, **more: Any) -> dict[str, Any]:
    spans = [{"begin": a, "end": b, "label": label, "score": score, "by": "me"} for a, b, label, score in SPANS]
    found = {"body": TEXT, "doc_id": f"d{number}", "url": f"http://a/{number}", "quality": number / 8, "ents": spans}
    return {**found, **more}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def init(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    """What the command says as JSON."""
    capsys.readouterr()
    assert main(["init", "--out", "build.yaml", "--json", "--overwrite", *map(str, words)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def answer(**lines: str) -> None:
    """Write these lines in place of the questions."""
    text = Path("build.yaml").read_text().partition("# What are these?")[0]
    Path("build.yaml").write_text(
        text + "".join(f"{name.replace('_', '-')}: {value}\n" for name, value in lines.items())
    )


@pytest.mark.parametrize("name", ["corpus.parquet", "corpus.jsonl"])
def test_from_a_file_with_names_of_its_own_to_a_dataset(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = init(capsys, write(tmp_path / name, [row(k) for k in range(8)]), "--tokenizer", "bytes")
    assert found["columns"] == {"doc_id": "id", "body": "text", "ents": "spans of track concepts"}
    assert [*found["recipe"]["column"]] == ["id", "text", "spans", "start", "concepts", "scores"]
    assert found["questions"] == ["ents.by", "url", "quality"]
    text = Path("build.yaml").read_text()
    assert "#metadata-column: [url, quality]" in text
    assert "#number: {quality: f4}" in text
    assert main(BUILD) != 0
    answer(ignore_column="[ents.by]", metadata_column="[url]", number="{quality: f4}")
    assert main(BUILD) == 0
    with cl.open_dataset("data/corpus") as dataset:
        assert [dataset.document_id(k) for k in range(8)] == [f"d{k}" for k in range(8)]
        assert dataset.vocabulary("concepts") == ["red", "blue"]  # the most frequent first
        spans = dataset.spans("concepts", *dataset.document_range(3))
        assert spans.scores.tolist() == [0.5, 0.25, 1.0]
        assert dataset.spans("metadata", *dataset.document_range(2)).decode() == [{"url": "http://a/2"}]
    assert main(["init", "data/corpus", "--out", "run.yaml"]) == 0


IDS: dict[str, tuple[list[dict[str, Any]], str | None, str]] = {
    "a uid": ([{"page_uid": "a"}, {"page_uid": "b"}], "page_uid", ""),
    "id before uid": ([{"uid": 1, "id": "a"}, {"uid": 2, "id": "b"}], "id", ""),
    "one twice": ([{"id": one} for one in "aab"], "id", "id: 1 of 3 rows have an id that was there before"),
    "no name of one": ([{"url": "a"}, {"url": "b"}], None, "if one of url, text is: `id: NAME` below column"),
    "all alike": ([{"key": "a", "text": "b"}] * 4, None, "no column is surely an id"),
    "floats": ([{"id": 0.5, "text": "b"}] * 2, None, "none has another value in each row"),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_are_known_or_said_to_be_missing(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, name, said = IDS[case]
    found = init(
        capsys, write(tmp_path / "in.jsonl", [{**one, "text": one.get("text", str(k))} for k, one in enumerate(rows)])
    )
    assert next((column for column, role in found["columns"].items() if role == "id"), None) == name
    assert any(said in note for note in found["notes"])
    assert said in Path("build.yaml").read_text()


def test_a_folder_is_one_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named by the folder, not by its first part; ids of two types."""
    (tmp_path / "web").mkdir()
    for k, name in enumerate(["a", 7]):
        write(tmp_path / "web" / f"part-{k:05}-of-00002.jsonl", [{"id": name, "text": TEXT}])
    found = init(capsys, "web", "--tokenizer", "bytes")
    assert found["recipe"]["out"] == "data/web"
    assert found["columns"]["id"] == "id"
    assert main(BUILD) == 0


UNSURE: dict[str, tuple[dict[str, Any], str]] = {
    "two concepts": ({"spans": [{"start": 0, "end": 3, "label": "x", "tag": "y"}]}, "spans"),
    "no end": ({"spans": [{"start": 0, "label": "x"}]}, "spans"),
    "other fields": (
        {"ents": [{"start": 0, "end": 3, "label": "x"}], "more": [{"start": 0, "stop": 3, "tag": "x"}]},
        "more",
    ),
    "an object": ({"meta": {"url": "a"}}, "meta"),
    "lists": ({"tags": ["a"]}, "tags"),
    "odd": ({"odd": [None, [], {}, 1]}, "odd"),
    "nothing": ({"lang": None}, "lang"),
    "a flag": ({"number": True}, "number"),
}


@pytest.mark.parametrize("case", UNSURE)
def test_what_is_not_sure_is_asked(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns, name = UNSURE[case]
    found = init(capsys, write(tmp_path / "in.jsonl", [{"id": str(k), "text": TEXT, **columns} for k in range(2)]))
    assert found["questions"] == [name]
    assert "overlap" not in found["recipe"]
    assert "#number:" not in Path("build.yaml").read_text()


def test_a_text_without_a_usual_name_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = init(capsys, write(tmp_path / "in.jsonl", [{"id": 1, "title": "a", "story": TEXT}]), "--tokenizer", "bytes")
    assert "no column is surely the text; if one of title, story is: `text: NAME` below column" in found["notes"]


def test_tokens_with_numbers_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "weight": [0.5, 1.0, 2.0], "uid": k} for k in range(3)]
    found = init(capsys, write(tmp_path / "in.parquet", rows))
    assert found["recipe"]["column"] == {"id": "uid", "tokens": "input_ids"}
    assert found["columns"]["labels"] == "what is trained on, all but -100"
    assert "#field: {weight: f4}" in Path("build.yaml").read_text()
    assert main(BUILD) == 2
    answer(field="{weight: f4}", vocab_size="8", no_eos="true")
    assert main(BUILD) == 0
    with cl.open_dataset("data/in") as dataset:
        assert dataset.fields(0, 3)["weight"].tolist() == [0.5, 1.0, 2.0]


def test_conversations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = init(capsys, write(tmp_path / "in.jsonl", [{"messages": turns, "source": "x", "uid": "a"}]))
    assert found["recipe"]["chat"] is True
    assert found["columns"] == {"uid": "id", "messages": "conversation"}
    assert found["questions"] == ["source"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("a.bin", 2, "conceptloader adopt"),
        ("short.jsonl", 1, "found columns a (number), expected a column of text"),
        ("empty.jsonl", 1, "found no rows"),
        ("broken.jsonl", 1, "broken JSON"),
        ("nowhere.jsonl", 2, "nowhere.jsonl"),
        ("in.jsonl --vocabulary topic=names", 2, "track 'topic'"),
    ],
)
def test_what_is_no_corpus(words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        "a.bin": "",
        "short.jsonl": '{"a": 1}\n',
        "empty.jsonl": "\n",
        "broken.jsonl": "{",
        "in.jsonl": '{"text": "a"}\n',
    }
    for name, content in given.items():
        Path(name).write_text(content)
    assert main(["init", *words.split(), "--out", "build.yaml"]) == code
    assert said in capsys.readouterr().err
    assert not Path("build.yaml").exists()


def test_names_of_concepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing file stays; a second dataset takes those of the first; two tracks have their own."""
    spans = [{"start": 0, "end": 3, "concepts": ["red"]}]
    source = write(tmp_path / "in.jsonl", [{"id": "a", "text": TEXT, "spans": spans, "topics": spans}])
    Path("build.concepts.txt").write_text("mine\n")
    assert main(["init", str(source), "--out", "build.yaml", "--tokenizer", "bytes"]) == 2
    assert Path("build.concepts.txt").read_text() == "mine\n"
    found = init(capsys, source, "--tokenizer", "bytes")
    assert Path("build.concepts.txt").read_text() == "red\n"
    assert found["columns"]["topics"] == "spans of track topics"
    assert yaml.safe_load(Path("build.yaml").read_text())["vocabulary"]["topics"] == "build.topics.txt"
    assert main(BUILD) == 0
    found = init(
        capsys, source, "--tokenizer", "bytes", "--vocabulary", "first.txt", "--vocabulary", "topics=first.txt"
    )
    assert found["recipe"]["vocabulary"] == {"concepts": "first.txt", "topics": "first.txt"}


LISTS = [{"doc": 1, "note": "x", "ents": row(0)["ents"]}]
SPAN_EACH = [{"doc": 1, "note": "x", **{k: v for k, v in one.items() if k != "by"}} for one in row(0)["ents"]]


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("kind", ["lists", "a span a row"])
def test_annotations_with_names_of_their_own(
    kind: str, ids: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of documents by number or by id."""
    write(tmp_path / "in.jsonl", [{"text": TEXT, **({"id": f"d{k}"} if ids else {})} for k in range(2)])
    assert main(["build", "in.jsonl", "--out", "web", "--tokenizer", "bytes", "--quiet"]) == 0
    rows = LISTS if kind == "lists" else SPAN_EACH
    if ids:
        rows = [{"doc_id": "d1", **{name: value for name, value in one.items() if name != "doc"}} for one in rows]
    found = init(capsys, "web", write(tmp_path / "rows.jsonl", rows))
    assert found["questions"] == (["ents.by", "note"] if kind == "lists" else ["note"])
    answer(ignore_column=f"[{', '.join(found['questions'])}]", span_unit="character")
    assert main(["annotate", "web", "--recipe", "build.yaml"]) == 0
    with cl.open_dataset("web-concepts") as dataset:
        spans = dataset.spans("concepts", *dataset.document_range(1))
        assert spans.scores.tolist() == [0.5, 0.25, 1.0]
    again = init(capsys, "web-concepts", tmp_path / "rows.jsonl")
    assert (again["recipe"]["track"], again["recipe"]["out"]) == ("concepts2", "web-concepts-concepts2")
    write(tmp_path / "odd.jsonl", [{"id": "d0", "quality": 0.5}])
    assert main(["init", "web", "odd.jsonl", "--out", "odd.yaml"]) == 1
    assert "columns id (text), quality (number), expected" in capsys.readouterr().err


def test_labels_of_a_table_are_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"id": ["a"], "text": [TEXT], "spans": [[{"start": 0, "end": 3, "label": 7}]]})
    pq.write_table(table, tmp_path / "in.parquet")
    assert "vocabulary" not in init(capsys, "in.parquet", "--tokenizer", "bytes")["recipe"]
    assert main(BUILD) == 0
