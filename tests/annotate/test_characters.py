"""Offsets in characters: annotating gives what building with the same spans gives."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import conceptloader as cl
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate.annotate import AnnotateOptions, annotate
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.rows.columns import Columns
from conceptloader.ingest.rows.inputs import find_sources
from conceptloader.ingest.rows.tokenizer import load_tokenizer
from tests.annotate.test_annotate import owners, write_rows
from tests.raises import raises


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a byte-level tokenizer in tokenizer.json."""
    path = tmp_path_factory.mktemp("characters")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    made.train_from_iterator(["the cat sat on the mat", "größer als die Katze", "naïve café"], trainer)
    made.save(str(path / "tokenizer.json"))
    return path


def build(out: Path, rows: list[dict], tokenizer: str, spans: bool, eos: bool = True) -> None:
    source = write_rows(out.with_suffix(".jsonl"), rows)
    columns = Columns(tracks={"concepts": "spans"} if spans else {}, ignored=() if spans else ("spans",))
    options = IngestOptions(columns=columns, tokenizer=load_tokenizer(tokenizer), append_eos=eos, max_lost_spans=1)
    build_dataset(find_sources([source]), out, options)


@settings(max_examples=15)
@given(
    st.lists(st.text("at hesmü☃\n", max_size=12), min_size=1, max_size=5),
    st.sampled_from(["bytes", "file"]),
    st.booleans(),
    st.data(),
)
def test_equals_a_build_with_the_spans(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, texts: list[str], kind: str, eos: bool, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("run")
    rows = []
    for number, text in enumerate(texts):
        borders = sorted(data.draw(st.sets(st.integers(0, len(text)))))
        pairs = zip(borders[::2], borders[1::2], strict=False)
        spans = [{"start": a, "end": b, "concepts": [number, *range(a % 5)]} for a, b in pairs]
        rows.append({"id": f"d{number}", "text": text, "spans": spans})
    if not any(row["spans"] for row in rows):
        return
    tokenizer = "bytes" if kind == "bytes" else str(folder / "tokenizer.json")
    build(path / "with", rows, tokenizer, spans=True, eos=eos)
    build(path / "without", rows, tokenizer, spans=False, eos=eos)
    annotations = write_rows(path / "rows.jsonl", [{"id": row["id"], "spans": row["spans"]} for row in rows][::-1])
    options = AnnotateOptions(
        track="concepts", unit="characters", tokenizer=load_tokenizer(tokenizer), max_lost_spans=1
    )
    annotate(path / "without", [annotations], path / "out", options)
    with cl.open_dataset(path / "with") as wanted, cl.open_dataset(path / "out") as found:
        assert found.num_tokens == wanted.num_tokens
        assert owners(found, "concepts") == owners(wanted, "concepts")


def annotate_first(path: Path, end: int, tokenizer: str) -> None:
    rows = write_rows(path / "rows.jsonl", [{"id": "d0", "start": 0, "end": end, "concepts": [1]}])
    options = AnnotateOptions(track="c", unit="characters", tokenizer=load_tokenizer(tokenizer))
    annotate(path / "ds", [rows], path / "out", options)


def test_outside_of_the_text(tmp_path: Path) -> None:
    build(tmp_path / "ds", [{"id": "d0", "text": "für"}], "bytes", spans=False)
    annotate_first(tmp_path, 3, "bytes")
    (tmp_path / "out").rename(tmp_path / "kept")
    with raises(InputError, "line 1: document 0", "[0, 4)", "it within the 3 characters"):
        annotate_first(tmp_path, 4, "bytes")


def test_another_tokenizer(tmp_path: Path, folder: Path) -> None:
    build(tmp_path / "ds", [{"id": "d0", "text": "cat"}], str(folder / "tokenizer.json"), spans=False)
    with raises(ConfigError, found="tokens of tokenizers-", expected="'bytes'"):
        annotate_first(tmp_path, 1, "bytes")


@pytest.mark.parametrize("change", ["normalizer", "prefix space", "decoder"])
def test_tokenizers_that_lose_text(tmp_path: Path, folder: Path, change: str) -> None:
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if change == "normalizer":
        made.normalizer = normalizers.Lowercase()
    elif change == "decoder":
        made.decoder = decoders.WordPiece()
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.save(str(tmp_path / "tokenizer.json"))
    build(tmp_path / "ds", [{"id": "d0", "text": "cat"}], str(tmp_path / "tokenizer.json"), spans=False)
    with raises(ConfigError, fix="--unit tokens"):
        annotate_first(tmp_path, 1, str(tmp_path / "tokenizer.json"))


def test_tokens_that_the_text_does_not_give_back(tmp_path: Path, folder: Path) -> None:
    """Pre-tokenized documents may be cut in another way than the tokenizer cuts their text."""
    tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
    definition = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    source = write_rows(tmp_path / "in.jsonl", [{"id": "d0", "tokens": [definition[c] for c in "the"]}])
    options = IngestOptions(columns=Columns(text=None, tokens="tokens", tracks={}), tokenizer=tokenizer)
    build_dataset(find_sources([source]), tmp_path / "ds", options)
    with raises(InputError, "document 0", "tokens that its text does not give back"):
        annotate_first(tmp_path, 1, str(folder / "tokenizer.json"))
