"""What offsets of spans count, and the check by a span's own text: JSON, parquet, annotations, tokens."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import normalizers

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ConfigError, InputError
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from tests.corpora.records import write_rows
from tests.corpora.tokenizers import byte_level

COUNT: dict[str, Callable[[str], int]] = {
    "character": len,
    "utf16": lambda text: len(text.encode("utf-16-le")) // 2,
    "byte": lambda text: len(text.encode()),
}
TEXTS = ["\U0001f600 the red cat", "red", "caf\u00e9 \U0001f469\u200d\U0001f469 red \u65e5\u672c red"]
Rows = list[dict[str, Any]]


@contextmanager
def raises(kind: type[ConceptloaderError], *says: str, fix: str = "") -> Iterator[None]:
    """An error that says all of this: one of a record has no parts."""
    with pytest.raises(kind) as caught:
        yield
    assert [part for part in (*says, fix) if part not in str(caught.value)] == [], str(caught.value)


def spans_of(text: str, count: Callable[[str], int], own: str | None = "text") -> Rows:
    starts = [at for at in range(len(text)) if text.startswith("red", at)]
    places = [(count(text[:at]), count(text[: at + 3])) for at in starts]
    return [{"start": a, "end": b, "concepts": ["x"]} | ({own: "red"} if own else {}) for a, b in places]


def write(path: Path, rows: Rows, kind: str = "jsonl") -> Path:
    return write_rows(path.with_suffix(f".{kind}"), rows)


def rows_in(unit: str, own: str | None = "text") -> Rows:
    return [{"id": f"d{k}", "text": text, "spans": spans_of(text, COUNT[unit], own)} for k, text in enumerate(TEXTS)]


def build(path: Path, unit: str | None = None, out: str = "out", **more: Any) -> cl.Dataset:
    given = {"tokenizer": "bytes", "vocabulary": {"concepts": ["x"]}, **more}
    shutil.rmtree(path.parent / out, ignore_errors=True)
    cl.build(path, path.parent / out, span_unit=unit, **given)
    return cl.open_dataset(path.parent / out)


def texts(ds: cl.Dataset, track: str = "concepts") -> list[str]:
    """Of the spans, for tokens that are bytes."""
    part, tokens = ds.spans(track, 0, ds.num_tokens), ds.tokens(0, ds.num_tokens)
    places = zip(part.start.tolist(), part.end.tolist(), strict=True)
    return [bytes(tokens[a:b].astype(np.uint8)).decode() for a, b in places]


@pytest.mark.parametrize(
    ("shift", "says"),
    [
        ((0, -1), "ends that are the last character"),
        ((1, 1), "offsets from 1?"),
        ((1, 0), "offsets from 1, with ends that are the last character"),
        ((2, 5), "they fit no unit"),
    ],
)
def test_other_mistakes(shift: tuple[int, int], says: str, tmp_path: Path) -> None:
    rows = [{"id": str(k), "text": f"{'so ' * k}red and more", "spans": []} for k in range(5)]
    for k, row in enumerate(rows):
        place = {"start": 3 * k + shift[0], "end": 3 * k + 3 + shift[1]}
        row["spans"] = [{**place, "concepts": ["x"], "text": "red"}]
    with pytest.raises(InputError, match="5 of 5 spans") as caught:
        build(write(tmp_path / "in", rows))
    assert says in str(caught.value)


def test_what_is_no_mismatch(tmp_path: Path) -> None:
    text = "The \ufb01ne New\n York"
    spans = [
        {"start": 0, "end": 4, "concepts": ["x"], "text": "the"},
        {"start": 4, "end": 7, "concepts": ["x"], "text": "fine"},
        {"start": 8, "end": 17, "concepts": ["x"], "text": "New York"},
        {"start": 17, "end": 17, "concepts": ["x"], "text": None},
    ]
    options: dict[str, Any] = {"max_unaligned_spans": 1, "vocabulary": {"concepts": ["x"]}}
    path = write(tmp_path / "in", [{"text": text, "spans": spans}])
    assert cl.build(path, tmp_path / "out", tokenizer="bytes", **options).tokens


def test_spans_of_a_text_that_was_normalized_first(tmp_path: Path) -> None:
    text = "cafe\u0301 the red"  # annotated as NFC, with one character less
    spans = [{"start": 9, "end": 12, "concepts": ["x"], "text": "red"}]
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = write(tmp_path / "in", [{"text": text, "spans": spans}])
    with pytest.raises(InputError, match="offsets of the text in NFC"):
        build(path, tokenizer=str(tmp_path / "tokenizer.json"))


def test_an_offset_inside_of_a_character(tmp_path: Path) -> None:
    path = write(tmp_path / "in", [{"text": TEXTS[0], "spans": [{"start": 1, "end": 3, "concepts": ["x"]}]}])
    for unit in ("utf16", "byte"):
        with raises(InputError, "in.jsonl", "inside of a character"):
            build(path, unit)
    for unit, end in (("utf16", 14), ("byte", 16)):
        assert texts(build(write(tmp_path / "in", [whole(end)]), unit)) == [TEXTS[0]]
        with raises(InputError, "in.jsonl", f"[0, {end + 1})", f"{end} "):
            build(write(tmp_path / "in", [whole(end + 1)]), unit)


def whole(end: int) -> dict[str, Any]:
    return {"text": TEXTS[0], "spans": [{"start": 0, "end": end, "concepts": ["x"]}]}


def test_spans_in_tokens_of_a_text(tmp_path: Path) -> None:
    rows = [{"text": text, "spans": spans_of(text, COUNT["byte"])} for text in TEXTS]  # a byte is a token here
    assert texts(build(write(tmp_path / "in", rows), "token")) == ["red"] * 4
    with raises(InputError, "in.jsonl", "3 of 4 spans", fix="--span-unit byte"):
        build(write(tmp_path / "in", rows))


def test_documents_of_tokens(tmp_path: Path) -> None:
    rows = [{"tokens": list(text.encode()), "spans": spans_of(text, COUNT["byte"])} for text in TEXTS]
    for kind in ("jsonl", "parquet"):
        assert texts(build(write(tmp_path / "in", rows, kind))) == ["red"] * 4
    path = write(tmp_path / "in", [{**rows[0], "spans": spans_of(TEXTS[0], COUNT["character"])}])
    with raises(InputError, "in.jsonl", "1 of 1 spans with another text"):
        build(path)
    with raises(InputError, "in.jsonl", "texts of their own", "a tokenizer"):
        build(path, tokenizer=None, vocab_size=257, no_eos=True)
    plain: dict[str, Any] = {"id": "d0", "tokens": rows[0]["tokens"]}
    build(write(tmp_path / "in", [plain]), tokenizer=None, vocab_size=257, no_eos=True, vocabulary={})
    with raises(InputError, "rows.jsonl: line 1: document 0", "texts of their own", "what their tokens are"):
        attach(tmp_path, [{"id": "d0", "spans": rows[0]["spans"]}])
    with raises(ConfigError, "span_unit", "utf16", "token"):
        build(path, "utf16")


def attach(folder: Path, rows: Rows, counts: str | None = None, **more: Any) -> cl.Dataset:
    out = folder / f"annotated{len(list(folder.glob('annotated*')))}"
    options = AnnotateOptions(track="more", vocabulary=["x"], span_unit=counts, **more)
    annotate(folder / "out", [write(folder / "rows", rows)], out, options)
    return cl.open_dataset(out)


def test_annotations_count_what_the_build_counted(tmp_path: Path) -> None:
    build(write(tmp_path / "in", rows_in("utf16")), "utf16")
    rows = [{"id": row["id"], "spans": row["spans"]} for row in rows_in("utf16")]
    assert texts(attach(tmp_path, rows), "more") == ["red"] * 4
    tokens = [{"id": row["id"], "spans": row["spans"]} for row in rows_in("byte")]
    assert texts(attach(tmp_path, tokens, "token"), "more") == ["red"] * 4
    with raises(InputError, "rows.jsonl", "with another text"):
        attach(tmp_path, rows, "token")
    text = [{"id": "d0", "text": TEXTS[0], "spans": rows[0]["spans"]}]  # of the document, ignored: spans have theirs
    assert texts(attach(tmp_path, text, ignore_column=["text"]), "more") == ["red"]
    with raises(InputError, "rows.jsonl", "1 of 1 spans with another text"):
        attach(tmp_path, text, "byte", ignore_column=["text"])


def test_an_example_of_a_lost_span_is_cut_by_the_unit(tmp_path: Path) -> None:
    span = {"start": 8, "end": 10, "concepts": ["x"]}  # within the token of "red"
    path = write(tmp_path / "in", [{"id": "a", "text": TEXTS[0], "spans": [span]}])
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with raises(InputError, "[8, 10) of document 'a' ('ed')"):
        build(path, "utf16", tokenizer=str(tmp_path / "tokenizer.json"))
