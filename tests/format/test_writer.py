"""What the writer refuses: with the document's name, and without a trace of it in the files."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import InputError
from conceptloader.format.tools.verify import verify
from conceptloader.format.write import track as trackwriter
from conceptloader.format.write.shard import ShardWriter
from conceptloader.format.write.track import BulkSpans
from conceptloader.storage.durable import Spool
from tests.corpora.small import written
from tests.raises import raises

OPTIONS = cl.writing.BuildOptions(
    tokenizer=cl.writing.Tokenizer(name="t", vocab_size=1000),
    tracks={
        "concepts": cl.writing.TrackOptions(vocabulary=["a", "b"]),
        "score": cl.writing.TrackOptions(codec="numpy", parameters={"dtype": "f4"}),
        "meta": cl.writing.TrackOptions(codec="json"),
    },
    fields={"mask": "u1"},
)
GOOD: dict[str, Any] = {"tokens": [1, 2, 3], "fields": {"mask": [0, 1, 1]}}


@pytest.fixture
def writer(tmp_path: Path) -> ShardWriter:
    return cl.writing.create_writer(tmp_path / "ds", OPTIONS).shard(0)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tokens": [1, 2, 1000]}, r"found token 1000, expected ids in \[0, 1000\); check that the tokens are of"),
    ({"tokens": [1, -2, 3]}, "found token -2, expected ids in"),
    ({"tokens": [1.0, 2.0, 3.0]}, r"tokens: found float64 of shape \(3,\), expected a list of integers"),
    ({"tokens": [[1, 2, 3]]}, r"tokens: found int64 of shape \(1, 3\)"),
    (
        {"spans": {"concept": []}},
        r"found spans of \['concept'\], expected tracks among \['concepts', 'meta', 'score'\]",
    ),
    ({"spans": {"concepts": [(0, 4, [0])]}}, r"found span \[0, 4\), expected 0 <= start < end <= 3"),
    ({"spans": {"concepts": [(-1, 2, [0])]}}, r"found span \[-1, 2\), expected 0 <= start"),
    ({"spans": {"concepts": [(1, 1, [0])]}}, r"found span \[1, 1\)"),
    ({"spans": {"concepts": [(1, 2, [0]), (0, 1, [0])]}}, r"found span \[0, 1\), expected 2 <= start < end <= 3"),
    (
        {"spans": {"concepts": [(0, 2, [0]), (1, 3, [0])]}},
        r"found span \[1, 3\), expected 2 <= .*split overlaps first",
    ),
    ({"spans": {"concepts": [(0, 2, [2])]}}, "found concept id 2, expected ids below 2, the size of the vocabulary"),
    ({"spans": {"concepts": [(0, 2, [-1])]}}, "record: concept ids: found .*expected a flat list of integers in"),
    ({"spans": {"concepts": [(0, 2, [0.5])]}}, "record: concept ids: found"),
    ({"spans": {"concepts": [(0, 2, b"abc")]}}, "record: found 3 bytes, expected a multiple of 4"),
    ({"spans": {"concepts": [(0, 2, 0)]}}, "found record number 0, expected the number of one of the 0 records"),
    (
        {"spans": {"score": [(0, 2, ["x"])]}},
        "record: numpy record: found .*expected an array of one dimension, of float32",
    ),
    ({"spans": {"score": [(0, 2, b"abc")]}}, "record: found 3 bytes, expected a multiple of 4"),
    ({"spans": {"meta": [(0, 2, {1, 2})]}}, "record: json record: found {1, 2}, expected a JSON value"),
    ({"spans": {"meta": [(0, 2, float("nan"))]}}, "record: json record: found nan, expected a JSON value"),
    ({"spans": {"meta": [(0, 2, b"{")]}}, "record: "),
    ({"fields": {}}, r"found fields \[\], expected \['mask'\]"),
    ({"fields": {"mask": [1], "other": [1]}}, r"found fields \['mask', 'other'\], expected \['mask'\]"),
    ({"fields": {"mask": [1, 2]}}, r"field mask: found shape \(2,\), expected \(3,\)"),
    ({"fields": {"mask": [1, 2, 256]}}, "field mask: found values that uint8 cannot hold"),
    ({"fields": {"mask": [1, 2, 0.5]}}, "field mask: found values that uint8 cannot hold"),
]


def check_rest(writer: ShardWriter, path: Path) -> None:
    """A document follows the first one, and no other is there."""
    writer.add_document(**GOOD, spans={"concepts": [(0, 1, [1])]}, id="second")
    writer.finish()
    cl.writing.finalize(path)
    ds = cl.open_dataset(path)
    assert ds.tokens(0, ds.num_tokens).tolist() == [1, 2, 3, 1, 2, 3]
    assert [ds.document_id(i) for i in range(ds.num_documents)] == ["first", "second"]
    assert verify(ds.path, full=True) == []


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_documents_are_refused_and_leave_no_trace(
    writer: ShardWriter, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    writer.add_document(**GOOD, id="first")
    with pytest.raises(InputError, match="document 'bad one': " + message):
        writer.add_document(**{**GOOD, **change}, id="bad one")
    with pytest.raises(InputError, match="document 1 of shard 00000: " + message):
        writer.add_document(**{**GOOD, **change})
    check_rest(writer, tmp_path / "ds")


@pytest.mark.parametrize("offsets", [[0, 1, 2], [0, 2, 3, 3], [1, 2, 3], [0, 2, 2], [0, 4, 3]])
def test_batches_whose_offsets_do_not_fit_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    build = cl.writing.create_writer(tmp_path / "ds", cl.writing.BuildOptions())
    with build.shard(0) as writer:
        with raises(InputError, "documents 0 to", "offsets that do not fit tokens and ids"):
            writer.add_documents(np.arange(3), np.array(offsets), {}, ["x"] if len(offsets) == 3 else ["x", "y"])
        writer.add_documents(np.arange(3), np.array([0, 1, 3]), {}, ["x", "y"])
    assert cl.writing.finalize(build.path).num_documents == 2


@pytest.mark.parametrize("wrong", [None, 7, b"x", "half \ud800"])
def test_ids_that_are_no_text_are_refused_and_leave_no_trace(writer: ShardWriter, tmp_path: Path, wrong: Any) -> None:
    writer.add_document(**GOOD, id="first")
    with raises(InputError, "id", expected='text, or "" for none'):
        writer.add_document(**GOOD, id=wrong)
    with raises(InputError, "documents 1 to 2: id"):
        writer.add_documents(np.arange(3), np.array([0, 1, 3]), {}, ["x", wrong], {"mask": np.zeros(3)})
    check_rest(writer, tmp_path / "ds")


@pytest.mark.parametrize("stop", range(1, 11))
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_writer_that_was_broken_off_within_a_document_writes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int, error: type[BaseException]
) -> None:
    """Else the next document would have some of its fields or spans."""
    plain, writes = Spool.write, 0

    def write(spool: Spool, data: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == stop:
            raise error
        plain(spool, data)

    build = cl.writing.create_writer(tmp_path / "ds", OPTIONS)
    writer = build.shard(0)
    writer.add_document(**GOOD, id="first")
    monkeypatch.setattr(Spool, "write", write)
    spans = {"concepts": [(0, 2, [0])]}
    torn = (
        partial(writer.add_record, "concepts", [1]) if stop == 1 else partial(writer.add_document, **GOOD, spans=spans)
    )
    with pytest.raises(error):
        torn()
    for go_on in (lambda: writer.add_document(**GOOD), lambda: writer.add_record("concepts", [0]), writer.finish):
        with raises(InputError, "shard 00000", "a document that an error or an interrupt left"):
            go_on()
    assert not build.is_finished(0)
    assert not list((tmp_path / "ds").glob(".*.tmp"))


@pytest.mark.parametrize("span", [(0.0, 2, [0]), (0, 1.5, [0]), ("0", 2, [0])])
def test_borders_of_spans_are_integers(writer: ShardWriter, span: Any) -> None:
    with raises(InputError, found="span"):
        writer.add_document(**GOOD, spans={"concepts": [span]})
    bulk = BulkSpans(np.array([0.5]), np.array([3]), np.array([0]), bytes(4), np.array([0, 4]))
    with pytest.raises(InputError, match=r"found spans of .*float64.*, expected integers"):
        writer.add_documents(np.arange(3), np.array([0, 3]), {"concepts": bulk}, [""], {"mask": np.zeros(3)})
    with raises(InputError, found="offsets that do not fit"):
        writer.add_documents(np.arange(3), np.array([0, 1.5, 3]), {}, ["", ""], {"mask": np.zeros(3)})


BULK = {"start": [0, 2], "end": [2, 3], "record": [0, 0], "data": b"\0" * 8, "offsets": [0, 4, 8]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": [0, 1]}, "in order, disjoint"),
        ({"end": [2, 5]}, "in order, disjoint"),
        ({"end": [2, 2]}, "in order, disjoint"),
        ({"start": [0, 4], "end": [2, 5]}, "in order, disjoint"),
        ({"record": [0, 2]}, "record number outside"),
        ({"record": [-1, 0]}, "record number outside"),
        ({"offsets": [0, 4, 9]}, "offsets .*that do not fit"),
        ({"offsets": [0, 9, 8]}, "offsets .*that do not fit"),
        ({"offsets": [0, 3, 8]}, "found records of other lengths, expected 4 bytes for a concept"),
        ({"data": b"\2\0\0\0" * 2}, "found concept id 2, expected ids below 2"),
    ],
)
def test_spans_of_batches_are_checked(writer: ShardWriter, change: dict[str, Any], message: str) -> None:
    def add(given: dict[str, Any]) -> None:
        spans = BulkSpans(**{key: value if key == "data" else np.array(value) for key, value in given.items()})
        writer.add_documents(tokens, np.array([0, 3, 4]), {"concepts": spans}, ["", ""], {"mask": tokens})

    tokens = np.arange(4)
    with pytest.raises(InputError, match=message):
        add({**BULK, **change})
    assert writer.tokens == writer.documents == 0
    add(BULK)


def test_limits_of_records(writer: ShardWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackwriter.fmt, "MAX_RECORD_BYTES", 8)
    with raises(InputError, found="a record of 12 bytes", expected="at most 8"):
        writer.add_document(**GOOD, spans={"concepts": [(0, 1, [0, 1, 0])]})
    monkeypatch.setattr(trackwriter.fmt, "NO_RECORD", 2)
    writer.add_document(**GOOD, spans={"concepts": [(0, 1, [0])]})
    with raises(InputError, found="more than 2**32 - 1 records in one shard"):
        writer.add_document(**GOOD, spans={"concepts": [(0, 1, [0]), (1, 2, [0])]})
    writer.add_record("concepts", [1])
    with raises(InputError, found="more than"):
        writer.add_record("concepts", [1])
    with raises(InputError, found="track 'x'"):
        writer.add_record("x", [1])


@pytest.mark.parametrize("encoding", ["dense", "spans"])
def test_pieces_of_bounded_size_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """With tiny pieces, everything that is spooled crosses many piece borders; the files must be the same."""
    from conceptloader.format.write import shard as writer_module
    from conceptloader.format.write import tables

    def build(path: Path) -> dict[str, bytes]:
        documents = (
            (range(n), {"concepts": [(i, i + 3, [n, i]) for i in range(0, n - 3, 4)]}, f"document {n}")
            for n in range(30)
        )
        written(path, documents, tracks={"concepts": {"encoding": encoding}}, block_tokens=4)
        assert verify(path, full=True) == []
        return {file.name: file.read_bytes() for file in path.iterdir()}

    whole = build(tmp_path / "whole")
    monkeypatch.setattr(tables, "_CHUNK", 3)
    monkeypatch.setattr(tables, "_SORT_LIMIT", 4)
    monkeypatch.setattr(writer_module, "_CHUNK_TOKENS", 5)
    assert build(tmp_path / "pieces") == whole
