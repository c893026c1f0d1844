"""What offsets count when nobody says: characters where the text is known, as in build; never a guess."""

import json
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate.annotate import AnnotateOptions, annotate
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.rows.columns import Columns
from conceptloader.ingest.rows.inputs import find_sources
from conceptloader.ingest.rows.tokenizer import load_tokenizer
from tests.annotate.test_annotate import build as build_tokens
from tests.annotate.test_annotate import owners, write_rows
from tests.corpora.tokenizers import definition
from tests.raises import raises

TEXT = "the red cat and the blue bird"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Two documents of text, byte-level BPE."""
    (tmp_path / "tokenizer.json").write_bytes(definition("byte-level"))
    write_rows(tmp_path / "in.jsonl", [{"id": "d0", "text": TEXT}, {"id": "d1", "text": "red"}])
    command = ["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "ds"), "--workers", "1"]
    assert main([*command, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    return tmp_path / "ds"


def attach(dataset: Path, rows: list[dict[str, Any]], **more: Any) -> cl.Dataset:
    out = dataset.parent / "out"
    annotate(dataset, [write_rows(dataset.parent / "rows.jsonl", rows)], out, AnnotateOptions(track="c", **more))
    return cl.open_dataset(out)


def said(dataset: cl.Dataset) -> list[str]:
    tokenizer = load_tokenizer(str(Path(dataset.path) / ".tokenizer.json"))
    spans = dataset.spans("c", 0, dataset.num_tokens)
    places = zip(spans.start.tolist(), spans.end.tolist(), strict=True)
    return [tokenizer.decode(dataset.tokens(start, end).tolist()) for start, end in places]


def test_characters_are_the_default_where_the_text_is_known(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = len(TEXT)
    rows = [
        {"id": "d0", "start": end - 4, "end": end, "concepts": [1]},
        {"id": "d1", "start": 0, "end": 3, "concepts": [2]},
    ]
    made = attach(dataset, rows)
    assert said(made) == [" bird", "red"]
    assert made.manifest.extra["annotated"]["c"] == {
        "version": 1, "align": "first", "eos_span": "none", "overlap": "refuse", "levels": 1, "unit": "characters",
        "loss": {"spans": 2, "lost": 0, "examples": []},
    }  # fmt: skip
    command = ["annotate", str(dataset), str(dataset.parent / "rows.jsonl"), "--track", "c", "--out"]
    assert main([*command, str(dataset.parent / "second"), "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed[printed.index("{") :])["unit"] == "characters"
    assert main([*command, str(dataset.parent / "third")]) == 0
    assert "offsets in characters" in capsys.readouterr().out


def test_offsets_that_could_be_either_are_refused(dataset: Path) -> None:
    """What was taken as tokens before is not taken as characters now, nor the other way round."""
    rows = [{"id": "d0", "start": 1, "end": 2, "concepts": [1]}]
    with raises(ConfigError, "rows.jsonl", "found offsets that may count characters or tokens: of the first 1"):
        attach(dataset, rows)
    assert not (dataset.parent / "out").exists()
    made = attach(dataset, rows, unit="tokens")
    assert said(made) == [" red"]
    assert made.manifest.extra["annotated"]["c"]["unit"] == "tokens"


def test_one_of_the_two_is_said_by_its_tokenizer_or_by_name(dataset: Path) -> None:
    rows = [{"id": "d0", "start": 4, "end": 7, "concepts": [1]}]
    assert said(attach(dataset, rows, unit="characters")) == [" red"]
    (dataset.parent / "out").rename(dataset.parent / "first")
    tokenizer = load_tokenizer(str(dataset.parent / "tokenizer.json"))
    assert said(attach(dataset, rows, tokenizer=tokenizer)) == [" red"]


def test_without_its_tokenizer_the_text_is_not_known(dataset: Path) -> None:
    (dataset / ".tokenizer.json").unlink()
    rows = [{"id": "d0", "start": 20, "end": len(TEXT), "concepts": [1]}]
    with pytest.raises(ConfigError, match=r"found no tokenizer with the dataset.*--tokenizer.*--unit tokens"):
        attach(dataset, rows)
    with pytest.raises(InputError, match=r"expected it within the \d+ tokens"):
        attach(dataset, rows, unit="tokens")


def test_whole_documents_need_no_unit_and_hold_their_eos(dataset: Path) -> None:
    (dataset / ".tokenizer.json").unlink()
    made = attach(dataset, [{"id": "d1", "concepts": [7]}])
    assert made.manifest.extra["annotated"]["c"]["unit"] is None
    start, stop = made.document_range(1)
    assert owners(made, "c") == [None] * start + [[7]] * (stop - start)


def test_whole_documents_beside_spans(dataset: Path) -> None:
    rows = [
        {"id": "d0", "concepts": [7]},
        {"id": "d0", "start": len(TEXT) - 4, "end": len(TEXT), "concepts": [1]},
        {"id": "d1", "start": 0, "end": 3, "concepts": [2]},
    ]
    made = attach(dataset, rows, overlap="union")
    (_, stop), (first, last) = made.document_range(0), made.document_range(1)
    assert owners(made, "c")[stop - 2 : stop] == [[1, 7], [7]]  # " bird", eos
    assert owners(made, "c")[first:last] == [[2], None]
    (dataset.parent / "out").rename(dataset.parent / "union")
    made = attach(dataset, rows, overlap="levels", eos_span="last")
    assert owners(made, "c")[first:last] == [[2], [2]]
    assert owners(made, "c")[:stop] == [[7]] * stop
    assert owners(made, "c_level2")[stop - 2 : stop] == [[1], None]


def test_tokens_where_nothing_else_is_known(tmp_path: Path) -> None:
    build_tokens(tmp_path / "ds", [[[1, 2, 3]]])
    made = attach(tmp_path / "ds", [{"id": "d0", "start": 1, "end": 2, "concepts": [1]}])
    assert owners(made, "c") == [None, [1], None]
    assert made.manifest.extra["annotated"]["c"]["unit"] == "tokens"


def test_tokens_where_tokens_were_given(tmp_path: Path) -> None:
    """Though the tokenizer that they are of is kept beside them."""
    (tmp_path / "tokenizer.json").write_bytes(definition("byte-level"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    tokens = tokenizer.encode([TEXT], [False])[0].values.tolist()
    source = write_rows(tmp_path / "in.jsonl", [{"id": "d0", "tokens": tokens}])
    options = IngestOptions(columns=Columns(text=None, tokens="tokens", tracks={}), tokenizer=tokenizer)
    build_dataset(find_sources([source]), tmp_path / "ds", options)
    assert (tmp_path / "ds" / ".tokenizer.json").exists()
    made = attach(tmp_path / "ds", [{"id": "d0", "start": 1, "end": 2, "concepts": [1]}])
    assert owners(made, "c")[:3] == [None, [1], None]
    assert made.manifest.extra["annotated"]["c"]["unit"] == "tokens"


def test_documents_with_and_without_eos(dataset: Path, tmp_path: Path) -> None:
    """In one shard, in any order: the text of some ends with the token itself."""
    texts = ["the red cat<|endoftext|>", "the blue bird", "red<|endoftext|>", "blue"]
    write_rows(tmp_path / "in.jsonl", [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)])
    command = ["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "mixed"), "--workers", "1", "--no-eos"]
    assert main([*command, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    words = [(4, 7), (4, 8), (0, 3), (0, 4)]
    rows = [{"id": f"d{i}", "start": a, "end": b, "concepts": [i]} for i, (a, b) in enumerate(words)]
    made = attach(tmp_path / "mixed", rows, unit="characters")
    assert said(made) == [" red", " blue", "red", "blue"]
    assert [ids.tolist() for ids in made.spans("c", 0, made.num_tokens).decode()] == [[0], [1], [2], [3]]


def test_too_many_lost_spans_leave_nothing_behind(dataset: Path) -> None:
    rows = [{"id": "d0", "start": 3, "end": 4, "concepts": [1]}, {"id": "d0", "start": 4, "end": 7, "concepts": [1]}]
    with raises(InputError, found="track 'c': 1 of 2 spans (50.00%) got no token, such as [3, 4) of document 0"):
        attach(dataset, rows, unit="characters")
    assert not (dataset.parent / "out").exists()
    made = attach(dataset, rows, unit="characters", max_lost_spans=0.5)
    assert made.manifest.extra["annotated"]["c"]["loss"]["lost"] == 1
