"""What the writer refuses: with the document's name, and without a trace of it in the files."""

import ast
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.codecs import get_codec
from conceptloader.format.tools.verify import verify
from conceptloader.format.write import track as trackwriter
from conceptloader.format.write.track import BulkSpans
from conceptloader.storage.durable import Spool
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
GOOD = {"tokens": [1, 2, 3], "fields": {"mask": [0, 1, 1]}}


@pytest.fixture
def writer(tmp_path):
    return cl.writing.create_writer(tmp_path / "ds", OPTIONS).shard(0)


TEXT = Path(__file__).with_name("refusals.txt").read_text().split("\n== ")[1:]
SECTIONS = {title: rows.strip().split("\n") for title, _, rows in (section.partition("\n") for section in TEXT)}


def check_document(writer, change):
    writer.add_document(**{**GOOD, **change}, id="bad one")


def check_spans(writer, change):
    given = {key: value if key == "data" else np.array(value) for key, value in {**BULK, **change}.items()}
    tokens = np.arange(4)
    writer.add_documents(tokens, np.array([0, 3, 4]), {"concepts": BulkSpans(**given)}, ["", ""], {"mask": tokens})


def check_offsets(writer, change):
    ids = ["x"] if len(change) == 3 and change[1:] == [1, 2] else ["x", "y"]
    writer.add_documents(np.arange(3), np.array(change), {}, ids, {"mask": np.zeros(3)})


def check_options(_, change):
    found = {**change, "tracks": {k: cl.writing.TrackOptions(**track) for k, track in change.get("tracks", {}).items()}}
    if "tokenizer" in change:
        found["tokenizer"] = cl.writing.Tokenizer(name="t", **change["tokenizer"])
    cl.writing.BuildOptions(**found)


def check_value(_, change):
    codec, parameters, value = change
    get_codec(codec, parameters, "test").encode(value)


CHECKS = [check_document, check_spans, check_offsets, check_options, check_value]


@pytest.mark.parametrize(("title", "check"), [*zip(SECTIONS, CHECKS, strict=True)])
def test_what_is_refused_says_so_and_leaves_no_trace(title, check, writer, tmp_path):
    writer.add_document(**GOOD, id="first")
    for row in SECTIONS[title]:
        change, _, words = row.rpartition(" => ")
        with pytest.raises((InputError, ConfigError), match=re.escape(words)) as caught:
            check(writer, ast.literal_eval(change))
        if check is check_document:
            assert str(caught.value).startswith("document 'bad one': "), caught.value
        if check is check_options:
            assert caught.value.path == words
    check_rest(writer, tmp_path / "ds")


def check_rest(writer, path):
    """A document follows the first one, and no other is there."""
    writer.add_document(**GOOD, spans={"concepts": [(0, 1, [1])]}, id="second")
    writer.finish()
    cl.writing.finalize(path)
    ds = cl.open_dataset(path)
    assert ds.tokens(0, ds.num_tokens).tolist() == [1, 2, 3, 1, 2, 3]
    assert [ds.document_id(i) for i in range(ds.num_documents)] == ["first", "second"]
    assert verify(ds.path, full=True) == []


@pytest.mark.parametrize("wrong", [None, 7, b"x", "half \ud800"])
def test_ids_that_are_no_text_are_refused_and_leave_no_trace(writer, tmp_path, wrong):
    writer.add_document(**GOOD, id="first")
    with raises(InputError, "id", expected='text, or "" for none'):
        writer.add_document(**GOOD, id=wrong)
    with raises(InputError, "documents 1 to 2: id"):
        writer.add_documents(np.arange(3), np.array([0, 1, 3]), {}, ["x", wrong], {"mask": np.zeros(3)})
    check_rest(writer, tmp_path / "ds")


@pytest.mark.parametrize("stop", range(1, 11))
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_writer_that_was_broken_off_within_a_document_writes_no_more(tmp_path, monkeypatch, stop, error):
    """Else the next document would have some of its fields or spans."""
    plain, writes = Spool.write, 0

    def write(spool, data):
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


BULK = {"start": [0, 2], "end": [2, 3], "record": [0, 0], "data": b"\0" * 8, "offsets": [0, 4, 8]}


def test_limits_of_records(writer, monkeypatch):
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
