"""Offsets in characters: annotating gives what building with the same spans gives; what offsets count is no guess."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.annotate import place
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


@settings(max_examples=15)
@given(st.lists(st.text("at hesmü☃\n", max_size=12), min_size=1, max_size=5), st.booleans(), st.booleans(), st.data())
def test_equals_a_build_with_the_spans(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], file: bool, eos: bool, data: st.DataObject
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
    byte_level().save(str(path / "tokenizer.json"))
    tokenizer = str(path / "tokenizer.json") if file else "bytes"
    build(path, rows, "with", tokenizer, no_eos=not eos)
    build(path, [{key: row[key] for key in ("id", "text")} for row in rows], "without", tokenizer, no_eos=not eos)
    notes = [{"id": row["id"], "spans": row["spans"]} for row in rows][::-1]
    given = {"span_unit": "character", "tokenizer": load_tokenizer(tokenizer), "max_unaligned_spans": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "_TOKENS", data.draw(st.sampled_from([1, 9, 1 << 20])))  # of a portion of text
        found = attach(path, notes, "without", track="concepts", **given)
    with found, cl.open_dataset(path / "with") as wanted:
        assert found.num_tokens == wanted.num_tokens
        assert owners(found, "concepts") == owners(wanted, "concepts")


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


def test_characters_are_the_default_where_the_text_is_known(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = len(TEXT)
    made = attach(folder, [span("d0", end - 4, end), span("d1", 0, 3, 2)])
    assert said(made) == [" bird", "red"]
    assert made.manifest.extra["annotated"]["c"] == {
        "version": 1, "align": "first", "eos_span": "none", "overlap": "refuse", "levels": 1, "unit": "characters",
        "loss": {"spans": 2, "lost": 0, "examples": []},
    }  # fmt: skip
    command = ["annotate", str(folder / "ds"), str(folder / "rows.jsonl"), "--track", "c", "--out"]
    capsys.readouterr()
    assert main([*command, str(folder / "second"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "characters"
    with raises(InputError, "line 1: document 1", "[0, 4)", "offsets within the 3 characters"):
        attach(folder, [span("d1", 0, 4)], span_unit="character")


def test_offsets_that_could_be_either_are_refused(folder: Path) -> None:
    rows = [span("d0", 4, 7)]
    with raises(ConfigError, "rows.jsonl", "offsets that may count characters or tokens: of the first 1"):
        attach(folder, rows)
    made = attach(folder, rows, span_unit="token")
    assert (unit(made), made.spans("c", 0, 8).start.tolist()) == ("tokens", [4])
    assert said(attach(folder, rows, span_unit="character")) == [" red"]
    assert said(attach(folder, rows, tokenizer=load_tokenizer(str(folder / "tokenizer.json")))) == [" red"]
    (folder / "ds" / "tokenizer.json").unlink()
    with raises(ConfigError, "ds", "no tokenizer with the dataset", fix="--span-unit token"):
        attach(folder, [span("d0", 20, len(TEXT))])
    with raises(InputError, "document 0", expected="tokens of the document"):
        attach(folder, [span("d0", 20, len(TEXT))], span_unit="token")
    made = attach(folder, [{"id": "d1", "concepts": [7]}])  # a whole document needs no unit, and holds its eos
    start, stop = made.document_range(1)
    assert (unit(made), owners(made, "c")) == (None, [None] * start + [[7]] * (stop - start))


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


def test_tokens_where_tokens_were_given(folder: Path) -> None:
    """Though the tokenizer that they are of is kept beside them."""
    tokens = byte_level().encode(TEXT).ids
    build(folder, [{"id": "d0", "tokens": tokens}], "given")
    assert (folder / "given" / "tokenizer.json").exists()
    made = attach(folder, [span("d0", 1, 2)], "given")
    assert (unit(made), owners(made, "c")[:3]) == ("tokens", [None, [1], None])


def test_documents_with_and_without_eos(folder: Path) -> None:
    """In one shard, in any order: the text of some ends with the token itself."""
    texts = ["the red cat<|endoftext|>", "the blue bird", "red<|endoftext|>", "blue"]
    build(folder, [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)], "mixed", no_eos=True)
    words = [(4, 7), (4, 8), (0, 3), (0, 4)]
    rows = [span(f"d{i}", a, b, i) for i, (a, b) in enumerate(words)]
    made = attach(folder, rows, "mixed", span_unit="character")
    assert said(made) == [" red", " blue", "red", "blue"]
    assert [ids.tolist() for ids in made.spans("c", 0, made.num_tokens).decode()] == [[0], [1], [2], [3]]


def test_too_many_lost_spans_leave_nothing_behind(folder: Path) -> None:
    rows = [span("d0", 3, 4), span("d0", 4, 7)]
    with raises(InputError, path="track 'c'", found="1 of 2 spans (50.00%) got no token, such as [3, 4) of document 0"):
        attach(folder, rows, span_unit="character")
    assert not list(folder.glob("out*"))
    made = attach(folder, rows, span_unit="character", max_unaligned_spans=0.5)
    assert made.manifest.extra["annotated"]["c"]["loss"]["lost"] == 1
