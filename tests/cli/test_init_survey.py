"""`init` is a survey: what is wrong with some rows is counted, and the recipe is that of all others."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.commands import first_recipe
from tests.cli.test_init_recipe import BUILD, TEXT, init, row, spans
from tests.corpora.records import write_rows as write
from tests.ingest.test_units import COUNT, rows_in


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_fails_leaves_the_names_of_the_recipe_before() -> None:
    Path("in.jsonl").write_text(json.dumps({"id": "a", "text": TEXT}) + "\n")
    assert main(["build", "in.jsonl", "--tokenizer", "bytes", "--out", "data"]) == 0
    span = {"start": 0, "end": 3, "concepts": ["animal"]}
    Path("ann.jsonl").write_text(json.dumps({"id": "a", "spans": [span]}) + "\n")
    words = ["init", "data", "ann.jsonl", "--out", "ann.yaml"]
    assert main(words) == 0
    (names,) = Path().glob("ann.*.txt")
    assert main([*words, "--overwrite", "--tokenizer", "nowhere.json"]) != 0
    assert names.exists()


def twenty(**damaged: Any) -> list[dict[str, Any]]:
    """Rows of which number 7 is damaged."""
    return [row(k, **(damaged if k == 7 else {})) for k in range(20)]


WHOLE = spans((0, 3, "red"), (16, 20, "blue"))
DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "a null label": ({"ents": [*WHOLE, {"begin": 4, "end": 9, "label": None}]}, "1 of 60 spans lack start, end"),
    "a null start": ({"ents": [*WHOLE, {"begin": None, "end": 9, "label": "red"}]}, "lack start, end or label"),
    "a negative start": ({"ents": spans((-4, 3, "red"), (1, 20, "blue"))}, "1 of 59 spans have no offsets from 0"),
    "an end before its start": ({"ents": spans((9, 3, "red"), (1, 20, "blue"))}, "have no offsets from 0"),
    "a start that is text": ({"ents": [{"begin": "4", "end": 9, "label": "red"}]}, "have no offsets from 0"),
    "an end far away": ({"ents": spans((0, 3, "red"), (1, 1 << 40, "blue"))}, "are beyond their document"),
    "an overlap": ({"ents": spans((0, 9, "red"), (4, 12, "blue"))}, "spans overlap"),
    "spans that are text": ({"ents": "none"}, "expected a list of spans"),
    "a null span": ({"ents": [None, *WHOLE]}, "expected an object"),
    "a text that is a number": ({"body": 7}, "body: found 7, expected a string"),
    "a text that is a list": ({"body": ["a"]}, "expected a string"),
    "an id that is a list": ({"doc_id": ["a"]}, "id: found ['a']"),
    "a number that is text": ({"quality": "good"}, "quality: found 'good'"),
    "a column that only one row has": ({"extra": 1, "body": None}, "expected a string"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_one_damaged_row_is_counted_and_changes_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, said = DAMAGED[case]
    whole = init(capsys, write(tmp_path / "in.jsonl", twenty()), "--tokenizer", "bytes")["recipe"]
    source = write(tmp_path / "in.jsonl", twenty(**damaged))
    found = init(capsys, source, "--tokenizer", "bytes", "--overwrite")
    assert any(said in doubt for doubt in found["doubts"]), found["doubts"]
    extra = {"metadata-column": ["url", "extra"]} if "extra" in damaged else {}
    assert found["recipe"] == whole | extra
    words = [*BUILD, "--bad-records", "bad.jsonl"]
    assert main(words) == 0
    assert len(Path("bad.jsonl").read_text().splitlines()) == 1


def test_broken_lines_are_counted_in_all_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", [row(k) for k in range(1500)])
    lines = source.read_text().splitlines()
    lines[3], lines[1400] = lines[3][:30], "\x00"
    source.write_text("\n".join(lines) + "\n")
    doubts = init(capsys, source, "--tokenizer", "bytes")["doubts"]
    assert any(doubt.startswith(f"1 rows that cannot be read, such as {source}: line 4") for doubt in doubts)
    assert any(doubt.startswith("2 rows of all without the names") for doubt in doubts)


def test_a_table_that_ends_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pa.Table.from_pylist([row(k) for k in range(4000)]), source, row_group_size=1000)
    data = bytearray(source.read_bytes())
    group = pq.ParquetFile(source).metadata.row_group(2).column(1)
    at = group.dictionary_page_offset or group.data_page_offset
    data[at : at + 20] = b"\xff" * 20
    source.write_bytes(data)
    doubts = init(capsys, source, "--tokenizer", "bytes")["doubts"]
    assert init(capsys, source, "--tokenizer", "bytes", "--overwrite", "--rows", "all")["doubts"] != doubts


def test_many_overlaps_get_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(k, ents=spans((0, 9, "red"), (4, 12, "blue")) if k < 3 else WHOLE) for k in range(200)]
    assert init(capsys, write(tmp_path / "in.jsonl", rows), "--tokenizer", "bytes")["recipe"]["overlap"] == "levels"
    assert main(BUILD) == 0
    with cl.open_dataset("data/in") as dataset:
        assert {"concepts", "concepts_level2"} <= set(dataset.manifest.tracks)
    assert main(["init", "data/in", "--out", "run.yaml"]) == 0  # without the level that no span needed
    assert main(["doctor", "run.yaml", "--seconds", "0.05"]) == 0


def test_all_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad row in the middle of the second of four files: with all rows, or with so many that it is among them."""
    (tmp_path / "in").mkdir()
    for k in range(4):
        rows = [row(1000 * k + j) for j in range(30)]
        rows[17] |= {"body": 7} if k == 1 else {}
        write(tmp_path / "in" / f"{k}.jsonl", rows)
    words = ["--tokenizer", "bytes", "--overwrite"]
    for rows_, listed in (("all", 1), ("100", 1), ("10", 0)):
        doubts = init(capsys, "in", *words, "--rows", rows_)["doubts"]
        assert sum("body: found 7, expected a string" in doubt for doubt in doubts) == listed
    for wrong in ("0", "some", "-1"):
        with pytest.raises(SystemExit):
            main(["init", "in", "--out", "build.yaml", *words, "--rows", wrong])


@pytest.mark.parametrize("own", ["text", "surface", "word", "mention", "strange"])
@pytest.mark.parametrize("unit", COUNT)
def test_the_unit_is_decided_by_the_texts_of_the_spans(
    unit: str, own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = init(capsys, write(tmp_path / "in.jsonl", rows_in(unit, own)), "--tokenizer", "bytes")
    assert found["columns"][f"spans.{own}"] == "the spans' own texts, compared"
    assert found["recipe"].get("span-unit", "character") == unit
    assert "ignore-column" not in found["recipe"]
    assert main(BUILD) == 0
    assert any("offsets are in" in doubt for doubt in found["doubts"]) == (unit != "character")


def test_texts_that_are_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": TEXT, "spans": [{"start": 0, "end": 3, "label": "x", "word": "lemma", "note": "y"}]}] * 3
    found = init(capsys, write(tmp_path / "in.jsonl", rows), "--tokenizer", "bytes")
    assert any("3 of 3 spans have another text than word" in doubt for doubt in found["doubts"])
    assert found["recipe"]["ignore-column"] == ["spans.note"]
    assert main(BUILD) == 1
    words = ["--ignore-column", "spans.word", "--workers", "1", "--quiet"]
    assert main(["build", "--recipe", "build.yaml", *words]) == 0


@pytest.mark.parametrize("unit", COUNT)
def test_annotations(unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_in(unit)
    write(tmp_path / "in.jsonl", [{"id": one["id"], "text": one["text"]} for one in rows])
    assert main(["build", "in.jsonl", "--out", "web", "--tokenizer", "bytes", "--quiet"]) == 0
    notes = [{"id": one["id"], "spans": one["spans"]} for one in rows]
    found = init(capsys, "web", str(write(tmp_path / "rows.jsonl", notes)))
    assert found["recipe"].get("span-unit", "character") == unit
    assert main(["annotate", "web", "--recipe", "build.yaml"]) == 0
    with cl.open_dataset("web-concepts") as dataset:
        assert dataset.vocabulary("concepts") == ["x"]


def test_rows_held_are_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_recipe, "_HELD", 5)
    source = write(tmp_path / "in.jsonl", [row(k) for k in range(9)])
    init(capsys, source, "--tokenizer", "bytes", "--rows", "all")
    assert "the first 5 rows" in Path("build.yaml").read_text()


def test_anything_at_all_gets_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random damage to random values never stops it."""
    rng = random.Random(0)
    odd = [None, 7, -1, 0.5, True, "x", [], {}, [None], [[]], [{}], [{"begin": 1}], {"a": None}, 1 << 70]
    for seed in range(15):
        rows = twenty()
        for _ in range(3):
            one = rng.choice(rows)
            target = rng.choice([one, *(span for span in one["ents"] or () if isinstance(span, dict))])
            name = rng.choice([key for key in target if key != "ents"] or ["ents"])
            target[name] = rng.choice(odd)
        source = write(tmp_path / f"{seed}.jsonl", rows)
        assert json.dumps(init(capsys, source, "--tokenizer", "bytes", "--overwrite"))


def test_broken_lines_of_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in.jsonl", [{"id": f"d{k}", "text": TEXT} for k in range(3)])
    assert main(["build", "in.jsonl", "--out", "web", "--tokenizer", "bytes", "--quiet"]) == 0
    rows = [{"id": f"d{k}", "spans": [{"start": 0, "end": 3, "label": "red", "text": "Red"}]} for k in range(3)]
    source = write(tmp_path / "rows.jsonl", rows)
    source.write_text(source.read_text() + '{"id": "d1", "spa\n')
    found = init(capsys, "web", str(source))
    assert any("line 4: found broken JSON" in doubt for doubt in found["doubts"])
    assert main(["annotate", "web", "--recipe", "build.yaml"]) == 1
    assert main(["annotate", "web", "--recipe", "build.yaml", "--bad-records", "bad.jsonl"]) == 0
    assert "broken JSON" in Path("bad.jsonl").read_text()


@pytest.mark.parametrize("dataset", [False, True])
def test_what_fails_leaves_no_names(dataset: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next try would end with a file that is there already."""
    source = write(tmp_path / "in.jsonl", [{"id": "a", "text": TEXT, "spans": [{"start": 0, "end": 3, "label": "x"}]}])
    assert main(["build", str(source), "--out", "web", "--tokenizer", "bytes", "--ignore-column", "spans"]) == 0
    words = ["init", *(["web"] if dataset else []), str(source), "--out", "build.yaml"]
    with monkeypatch.context() as patched:
        patched.setattr(first_recipe, "_write", lambda *_: 1 / 0)
        assert main(words) == 1
    assert main(words) == 0


@pytest.mark.parametrize("group", [100, 30, 7])
def test_rows_of_a_table_are_tried_once(group: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "a b" * 40, "spans": [{"start": 1, "end": 1 + k % 2, "label": "x"}]} for k in range(60)]
    rows[7] |= {"spans": [{"start": 9, "end": 3, "label": "x"}]}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet", row_group_size=group)
    doubts = init(capsys, "in.parquet", "--tokenizer", "bytes")["doubts"]
    assert sum("row 7" in doubt for doubt in doubts) == 1, doubts
    assert any("30 of 59 spans (" in doubt for doubt in doubts), doubts
