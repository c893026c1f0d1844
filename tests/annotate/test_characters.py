"""Offsets in characters: annotating gives what building with the same spans gives; what offsets count is no guess."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers

import conceptloader as cl
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.records.tokenizer import load_tokenizer
from tests.annotate.test_annotate import owners, write_rows
from tests.corpora.tokenizers import byte_level
from tests.raises import raises

TEXT = "the red cat and the blue bird"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ds: two documents of text; tokenizer.json, byte-level."""
    path = tmp_path_factory.mktemp("characters")
    byte_level().save(str(path / "tokenizer.json"))
    build(path, [{"id": "d0", "text": TEXT}, {"id": "d1", "text": "red"}])
    return path


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(built, tmp_path / "copy"))


def build(folder: Path, rows: Rows, name: str = "ds", tokenizer: str = "", **more: Any) -> Path:
    given = {"tokenizer": tokenizer or str(folder / "tokenizer.json"), "max_unaligned_spans": 1, **more}
    cl.build(write_rows(folder / f"{name}.jsonl", rows), folder / name, **given)
    return folder / name


def attach(folder: Path, rows: Rows, name: str = "ds", **more: Any) -> cl.Dataset:
    out = folder / f"out{len(list(folder.glob('out*')))}"
    options = AnnotateOptions(track=more.pop("track", "c"), **more)
    annotate(folder / name, [write_rows(folder / "rows.jsonl", rows)], out, options)
    return cl.open_dataset(out)


def unit(ds: cl.Dataset) -> Any:
    return ds.manifest.extra["annotated"]["c"]["unit"]


def said(ds: cl.Dataset) -> list[str]:
    tokenizer = load_tokenizer(str(Path(ds.path) / "tokenizer.json"))
    spans = ds.spans("c", 0, ds.num_tokens)
    places = zip(spans.start.tolist(), spans.end.tolist(), strict=True)
    return [tokenizer.decode(ds.tokens(start, end).tolist()) for start, end in places]


def span(document: str, start: int, end: int, *concepts: int) -> dict[str, Any]:
    return {"id": document, "start": start, "end": end, "concepts": list(concepts or (1,))}


def test_tokenizers_that_do_not_give_the_text(folder: Path) -> None:
    for name, change in {
        "normalizer": normalizers.Lowercase(),
        "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True),
        "decoder": decoders.WordPiece(),
    }.items():
        made = byte_level()
        setattr(made, name, change)
        made.save(str(folder / f"{name}.json"))
        build(folder, [{"id": "d0", "text": "cat"}], name, str(folder / f"{name}.json"))
        with raises(ConfigError, "tokenizer", fix="--span-unit token"):
            attach(folder, [span("d0", 0, 1)], name, span_unit="character")
    with raises(ConfigError, "ds", "tokens of tokenizers-", "'bytes'"):
        attach(folder, [span("d0", 0, 1)], tokenizer=load_tokenizer("bytes"))
    known = byte_level().get_vocab()  # cut in another way than the tokenizer cuts the text
    build(folder, [{"id": "d0", "tokens": [known[c] for c in "the"]}], "cut")
    assert said(attach(folder, [span("d0", 1, 3)], "cut", span_unit="character")) == ["he"]
    made = byte_level()  # a token takes the whitespace that follows it, so that what was there is unknown
    made.add_tokens([AddedToken("<x>", rstrip=True)])
    made.save(str(folder / "takes.json"))
    build(folder, [{"id": "d0", "text": "the <x>  red"}], "takes", str(folder / "takes.json"))
    with raises(InputError, "document 0", "tokens that do not spell its text"):
        attach(folder, [span("d0", 9, 12)], "takes", span_unit="character")


def test_whole_documents_beside_spans(folder: Path) -> None:
    rows = [{"id": "d0", "concepts": [7]}, span("d0", len(TEXT) - 4, len(TEXT), 1), span("d1", 0, 3, 2)]
    made = attach(folder, rows, overlap="union")
    (_, stop), (first, last) = made.document_range(0), made.document_range(1)
    assert owners(made, "c")[stop - 2 : stop] == [[1, 7], [7]]  # " bird", eos
    assert owners(made, "c")[first:last] == [[2], None]
    made = attach(folder, rows, overlap="levels", eos_span="last")
    assert owners(made, "c")[first:last] == [[2], [2]]
    assert owners(made, "c")[:stop] == [[7]] * stop
    assert owners(made, "c_level2")[stop - 2 : stop] == [[1], None]


def test_documents_with_and_without_eos(folder: Path) -> None:
    """In one shard, in any order: the text of some ends with the token itself."""
    texts = ["the red cat<|endoftext|>", "the blue bird", "red<|endoftext|>", "blue"]
    build(folder, [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)], "mixed", no_eos=True)
    words = [(4, 7), (4, 8), (0, 3), (0, 4)]
    rows = [span(f"d{i}", a, b, i) for i, (a, b) in enumerate(words)]
    made = attach(folder, rows, "mixed", span_unit="character")
    assert said(made) == [" red", " blue", "red", "blue"]
    assert [ids.tolist() for ids in made.spans("c", 0, made.num_tokens).decode()] == [[0], [1], [2], [3]]
