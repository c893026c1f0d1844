"""Documents as Hugging Face's tokenizers leave them: padding and labels."""

import logging
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.records.columns import Columns
from tests.corpora.records import write_rows as write
from tests.raises import raises

ROWS: list[dict[str, Any]] = [
    {"input_ids": [5, 6, 7, 9, 9], "attention_mask": [1, 1, 1, 0, 0], "labels": [-100, 6, 7, -100, -100]},
    {"input_ids": [9, 9, 5, 6, 7], "attention_mask": [0, 0, 1, 1, 1], "labels": [-100, -100, -100, -100, 7]},
    {"input_ids": [5, 6, 7, 8, 9], "attention_mask": [1, 1, 1, 1, 1], "labels": [5, 6, 7, 8, 9]},
    {"input_ids": [9, 9, 9, 9, 9], "attention_mask": [0, 0, 0, 0, 0], "labels": [-100] * 5},
]
WANTED = [([5, 6, 7], [0, 1, 1]), ([5, 6, 7], [0, 0, 1]), ([5, 6, 7, 8, 9], [1, 1, 1, 1, 1]), ([], [])]


def stored(path: Path, *fields: str) -> list[tuple[list[int], ...]]:
    with cl.open_dataset(path) as ds:
        places = [ds.document_range(k) for k in range(ds.num_documents)]
        return [tuple(ds.read(*place)[name].tolist() for name in ("tokens", *fields)) for place in places]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_padding_is_left_out_and_labels_become_a_loss_mask(tmp_path: Path, kind: str) -> None:
    rows = write(tmp_path / f"in.{kind}", ROWS)
    recipe = tmp_path / "build.yaml"
    assert main(["init", str(rows), "--out", str(recipe)]) == 0
    out = tmp_path / "out"
    words = ["--vocab-size", "10", "--no-eos", "--workers", "1", "--out", str(out)]
    assert main(["build", "--recipe", str(recipe), *words]) == 0
    assert stored(out, "loss_mask") == WANTED
    alone = [{name: row[name] for name in ("input_ids", "attention_mask")} for row in ROWS]
    write(tmp_path / f"alone.{kind}", alone)
    options: dict[str, Any] = {"vocab_size": 10, "no_eos": True, "column": {"tokens": "input_ids"}}
    cl.build(tmp_path / f"alone.{kind}", tmp_path / "alone", **options)
    assert stored(tmp_path / "alone") == [(tokens,) for tokens, _ in WANTED]


def test_spans_keep_their_tokens(tmp_path: Path) -> None:
    rows = [{**ROWS[1], "spans": [{"start": 3, "end": 5, "concepts": [1]}]}]
    options: dict[str, Any] = {"vocab_size": 10, "no_eos": True, "column": {"tokens": "input_ids"}}
    cl.build(write(tmp_path / "in.jsonl", rows), tmp_path / "out", **options)
    with cl.open_dataset(tmp_path / "out") as ds:
        spans = ds.spans("concepts", 0, 3)
        assert (spans.start.tolist(), spans.end.tolist()) == ([1], [3])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"labels": [6, 7, 9, 9, -100]}, r"labels: found 6 for token 5 at position 0, .* shifted"),
        ({"attention_mask": [1, 0, 1, 0, 0]}, "attention_mask: found more than one run of ones"),
        ({"attention_mask": [1, 1, 2, 2, 2]}, "attention_mask: .*or other numbers"),
        ({"labels": [5, 6]}, "labels: found 2 values, expected 5"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, kind: str, row: dict[str, Any], said: str) -> None:
    rows = write(tmp_path / f"in.{kind}", [ROWS[2], {**ROWS[0], **row}])
    options: dict[str, Any] = {"vocab_size": 10, "no_eos": True, "column": {"tokens": "input_ids"}}
    with pytest.raises(InputError, match=said) as caught:
        cl.build(rows, tmp_path / "out", **options)
    assert "line 2" in str(caught.value) or "row 1" in str(caught.value)


def test_masks_that_are_not_used_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write(tmp_path / "in.jsonl", ROWS)
    words = ["build", str(rows), "--column", "tokens=input_ids", "--vocab-size", "10", "--no-eos", "--workers", "1"]
    more = ["--ignore-column", "attention_mask", "--ignore-column", "labels", "--out", str(tmp_path / "out")]
    with caplog.at_level(logging.WARNING):
        assert main([*words, *more]) == 0
    assert "attention_mask is not used, so that padding would be trained on" in caplog.text
    assert "labels is not used" in caplog.text
    with raises(ConfigError, "columns", "token-aligned fields with text"):
        Columns(labels="labels")
    with raises(ConfigError, "columns", "labels and a field loss_mask"):
        Columns(text=None, tokens="tokens", labels="labels", fields={"loss_mask": "u1"})
