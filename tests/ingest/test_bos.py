"""A bos token in front of each document: what a build without it gives, moved by one token."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.tokenizer import find_token, load_tokenizer
from tests.corpora.records import in_characters, spans_of, write_rows
from tests.corpora.tokenizers import END, with_bos
from tests.raises import raises

TEXTS = ["the red cat sat", "", "größer 😀 café", "a", "the mat and the blue bird"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in characters, some with spans, one with a span of all of it; a tokenizer with a token <s>."""
    folder = tmp_path_factory.mktemp("bos")
    with_bos().save(str(folder / "tokenizer.json"))
    rows = [in_characters(k, text) for k, text in enumerate(TEXTS * 3)]
    write_rows(folder / "in.jsonl", rows)
    bare = [{key: value for key, value in row.items() if key in ("id", "text")} for row in rows]
    write_rows(folder / "bare.jsonl", bare)
    found = [{"id": row["id"], **span} for row in rows for span in row["spans"]]
    write_rows(folder / "spans.jsonl", found)
    return folder


def build(folder: Path, out: str, *options: str, source: str = "in.jsonl") -> cl.Dataset:
    command = ["build", str(folder / source), "--out", str(folder / out), "--tokenizer", str(folder / "tokenizer.json")]
    assert main([*command, "--workers", "1", "--max-unaligned-spans", "1", *options]) == 0
    assert cl.verify(folder / out, full=True) == []
    return cl.open_dataset(folder / out)


@pytest.mark.parametrize("eos", [True, False])
def test_every_document_begins_with_it(folder: Path, eos: bool) -> None:
    """Spans move with their tokens; metadata, and spans of whole documents, hold the bos."""
    more = [] if eos else ["--no-eos"]
    plain, ds = build(folder, f"plain{eos}", *more), build(folder, f"bos{eos}", "--bos", "<s>", *more)
    bos = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("<s>")
    assert ds.num_tokens == plain.num_tokens + ds.num_documents
    for k in range(ds.num_documents):
        before, after = plain.documents()[k]["tokens"].tolist(), ds.documents()[k]["tokens"].tolist()
        assert after == [bos, *before]
        for track in ("concepts", "metadata"):
            expected = [
                (0 if (a, b) == (0, len(before)) else a + 1, b + 1, record)
                for a, b, record in spans_of(plain, k, track)
            ]
            assert spans_of(ds, k, track) == expected
        if before:
            assert spans_of(ds, k, "metadata")[0][:2] == (0, len(after))
    assert ds.manifest.extra["ingest"] == {**plain.manifest.extra["ingest"], "bos": bos}


def test_annotations_in_characters_find_their_tokens(folder: Path) -> None:
    built = build(folder, "built", "--bos", "<s>")
    build(folder, "bare", "--bos", "<s>", source="bare.jsonl")
    options = AnnotateOptions(track="concepts", span_unit="character", max_unaligned_spans=1)
    annotate(folder / "bare", [folder / "spans.jsonl"], folder / "annotated", options)
    annotated = cl.open_dataset(folder / "annotated")
    for k in range(built.num_documents):
        assert spans_of(annotated, k, "concepts") == spans_of(built, k, "concepts")


def test_annotations_of_joined_datasets(folder: Path) -> None:
    """Joined datasets say whether their documents begin with a bos, also if they were built in different ways."""
    for name, more in (("one", ["--bos", "<s>"]), ("two", ["--bos", "<s>", "--no-eos"]), ("without", [])):
        build(folder, name, *more, source="bare.jsonl")
    rows = map(json.loads, (folder / "spans.jsonl").read_text().splitlines())
    numbered = "".join(json.dumps({"document": int(row.pop("id")), **row}) + "\n" for row in rows)
    (folder / "numbered.jsonl").write_text(numbered)
    options = AnnotateOptions(track="concepts", span_unit="character", max_unaligned_spans=1)
    annotate(folder / "one", [folder / "numbered.jsonl"], folder / "one-alone", options)
    cl.concat([folder / "one", folder / "two"], folder / "alike")
    annotate(folder / "alike", [folder / "numbered.jsonl"], folder / "alike-annotated", options)
    alone, joined = (cl.open_dataset(folder / name) for name in ("one-alone", "alike-annotated"))
    assert any(spans_of(alone, k, "concepts") for k in range(alone.num_documents))
    for k in range(alone.num_documents):
        assert spans_of(joined, k, "concepts") == spans_of(alone, k, "concepts")
    cl.concat([folder / "one", folder / "without"], folder / "mixed")
    with raises(ConfigError, found="joined datasets of which some have a token in front"):
        annotate(folder / "mixed", [folder / "numbered.jsonl"], folder / "no", options)


def test_fields_of_a_bos_are_those_of_the_first_token(tmp_path: Path) -> None:
    rows = [{"tokens": [5, 6], "loss_mask": [0, 1]}, {"tokens": [], "loss_mask": []}, {"tokens": [7], "loss_mask": [1]}]
    write_rows(tmp_path / "in.jsonl", rows)
    columns = Columns(text=None, tokens="tokens", fields={"loss_mask": "u1"}, tracks={})
    options = IngestOptions(columns=columns, tokenizer=None, vocab_size=10, eos_id=9, bos=8)
    build_dataset(find_sources([tmp_path / "in.jsonl"]), tmp_path / "ds", options)
    found = cl.open_dataset(tmp_path / "ds").read(0, 9)
    np.testing.assert_array_equal(found["tokens"], [8, 5, 6, 9, 8, 9, 8, 7, 9])
    np.testing.assert_array_equal(found["loss_mask"], [0, 0, 1, 1, 0, 0, 1, 1, 1])


def test_what_is_no_bos_is_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
    assert find_token(tokenizer, "7", "--bos") == 7
    assert find_token(tokenizer, END, "--bos") == tokenizer.eos_id
    for wrong in ("<none>", "-1"):
        with pytest.raises(ConfigError, match=f"--bos: found '{wrong}', expected a token of the tokenizer"):
            find_token(tokenizer, wrong, "--bos")
    options = IngestOptions(columns=Columns(tracks={}), tokenizer=tokenizer, bos=10**6)
    with raises(ConfigError, "bos", "token 1000000"):
        build_dataset(find_sources([folder / "in.jsonl"]), tmp_path / "ds", options)


def test_unions_do_not_divide_a_document_from_its_bos(folder: Path) -> None:
    """The bos, of which characters know nothing, is part of the whole document: that stays one span, or raises."""
    ds = build(folder, "bos", "--bos", "<s>", source="bare.jsonl")
    whole, part = {"document": 0, "concepts": [1]}, {"document": 0, "start": 0, "end": 3, "concepts": [2]}
    options = AnnotateOptions(track="c", span_unit="character", overlap="union", max_unaligned_spans=1)
    for k, rows in enumerate(([whole], [part], [whole, {**whole, "concepts": [2]}, {**part, "document": 2}])):
        annotate(ds.path, [write_rows(folder / "some.jsonl", rows)], folder / f"out{k}", options)
    assert spans_of(cl.open_dataset(folder / "out2"), 0, "c")[0][0] == 0
    with raises(InputError, "some.jsonl: line 1: document 0", "which other spans divide"):
        annotate(ds.path, [write_rows(folder / "some.jsonl", [whole, part])], folder / "no", options)
