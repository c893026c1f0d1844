"""Annotations in files of their own, joined to their documents: equal to a loop, whatever the order of the rows."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.chunks import join as joining
from conceptloader.ingest.chunks import sql
from conceptloader.ingest.chunks.concepts import Library, load_library
from conceptloader.ingest.chunks.join import Documents, Part, join_chunks
from conceptloader.ingest.chunks.options import Chunks, ConceptTable
from conceptloader.ingest.chunks.report import Joined
from tests.corpora.chunked import KINDS, Chunked, make
from tests.raises import raises


def options(corpus: Chunked, **given: Any) -> Chunks:
    own = {"start": "start", "end": "end"} if given.pop("own", False) else {"starts": "starts", "number": "k"}
    named: dict[str, Any] = {"status": "status", "text": "text", **own, **given}
    return Chunks(
        files=corpus.files("chunks"), join="doc", labels={kind: kind for kind in KINDS},
        concepts=ConceptTable(path=str(corpus.path / "concepts.parquet"), kind="concept_type"), **named,
    )  # fmt: skip


def join(corpus: Chunked, chunks: Chunks, **given: Any) -> Joined:
    documents = Documents(files=corpus.files("documents"), content="body", keep=["source"])
    return join_chunks(documents, chunks, library_of(corpus), corpus.path / "joined", **given)


def library_of(corpus: Chunked) -> Library:
    return load_library(options(corpus).concepts, list(KINDS))


def found(corpus: Chunked, joined: Joined) -> dict[int, Any]:
    """As `Chunked.spans`."""
    library = library_of(corpus)
    return {
        row["doc"]: [
            (span["start"], span["end"], {(library.kinds[i], library.keys[i]) for i in span["concepts"]})
            for span in row["spans"]
        ]
        for file in joined.files
        for row in pq.read_table(file).to_pylist()
    }


@pytest.mark.parametrize("own", [False, True])
def test_equals_a_loop(tmp_path: Path, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by two processes that have little memory, and with the spans of few documents at a time."""
    monkeypatch.setattr(joining, "_LABELS" if own else "_ROWS", 7)
    corpus = make(tmp_path, np.random.default_rng(own), documents=80).write()
    if own:
        monkeypatch.setattr(sql, "MEMORY", "64MB")
    joined = join(corpus, options(corpus, own=own), workers=1 + own)
    assert found(corpus, joined) == corpus.spans
    rows = [row for file in joined.files for row in pq.read_table(file).to_pylist()]
    assert [(row["doc"], row["body"], row["source"]) for row in rows] == [
        (row["doc"], row["body"], row["source"]) for row in corpus.documents
    ]
    annotated = sum(map(len, corpus.spans.values()))
    assert (joined.chunks, joined.annotated, joined.missing) == (len(corpus.chunks), annotated, 0)
    assert joined.by_status == {"skipped": len(corpus.chunks) - annotated}
    assert not joined.wrong


def test_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MEMORY", "1MB")
    with raises(InputError, found="cannot be joined: Out of Memory", fix="as several files, of fewer rows each"):
        corpus = make(tmp_path, np.random.default_rng(0), documents=80).write()
        join(corpus, options(corpus))


def test_concepts_are_dense_and_by_kind(tmp_path: Path) -> None:
    corpus = make(tmp_path, np.random.default_rng(0), documents=12)
    corpus.concepts[0]["name"] = corpus.concepts[1]["name"] = corpus.concepts[3]["name"] = "same"
    library = library_of(corpus.write())
    assert library.groups() == {"topic": 30, "tone": 30}
    assert list(library.keys[:30]) == sorted(library.keys[:30])
    assert [row["concept_id"] for row in library.details] == library.keys
    assert len(set(library.names)) == 60
    keys = [corpus.concepts[i]["concept_id"] for i in (1, 3)]
    assert {f"same (tone {key})" for key in keys} | {"same (topic)"} <= set(library.names)


def test_a_table_of_concepts_that_cannot_be_read(tmp_path: Path) -> None:
    corpus = make(tmp_path, np.random.default_rng(0), documents=12).write()
    table = pq.read_table(tmp_path / "concepts.parquet")
    names = pa.array([b"\xff"] * len(table))
    texts = pa.StringArray.from_buffers(len(table), *names.buffers()[1:])
    pq.write_table(table.set_column(table.column_names.index("name"), "name", texts), tmp_path / "concepts.parquet")
    with raises(InputError, "concepts.parquet", "from row 0 on: cannot be read ('utf-8' codec"):
        library_of(corpus)


def _wrong(corpus: Chunked, case: str) -> str:
    """Break a corpus, of which a chunk or all of a document lose their annotation; what is to be reported."""
    document = max(corpus.documents, key=lambda row: len(row["starts"]))
    mine = [row for row in corpus.chunks if row["doc"] == document["doc"] and row["status"] == "ok"]
    chunk, annotated = min(mine, key=lambda row: row["k"]), corpus.spans[document["doc"]]
    starts = {"back": 0, "beyond": len(document["body"]) + 1, "null start": None}
    labels = {"unknown": [2000], "null": [None], "other kind": [corpus.concepts[1]["concept_id"]]}
    if case in starts:
        document["starts"][-1] = starts[case]
        annotated.clear()
        return "documents whose chunks do not follow each other"
    if case == "number":
        corpus.chunks.append(chunk | {"k": 99})
        return "chunks beyond those of their document"
    if case == "no document":
        corpus.chunks.append(chunk | {"doc": 4000})
        return "chunks without a document"
    del annotated[next(i for i, span in enumerate(annotated) if span[0] == chunk["start"])]
    if case == "twice":
        corpus.chunks.append(dict(chunk))
        return "chunks of two rows"
    if case == "text":
        chunk["text"] = "something else"
        return "chunks with another text than the document has there"
    chunk[corpus.concepts[0]["concept_type"]] = labels[case]
    return "chunks with labels that are no concepts of their kind"


CASES = ["back", "beyond", "null start", "twice", "number", "no document", "text", "unknown", "null", "other kind"]


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_refused_or_counted(tmp_path: Path, case: str) -> None:
    corpus = make(tmp_path, np.random.default_rng(3), documents=10)
    what = _wrong(corpus, case)
    corpus.write(1)
    with raises(InputError, found=f"1 {what}", fix="wrong: unannotated") as refused:
        join(corpus, options(corpus))
    assert ".parquet: row " in refused.value.path or "chunk 99" in refused.value.path
    joined = join(replace_path(corpus), options(corpus, wrong="unannotated"))
    assert found(corpus, joined) == corpus.spans
    assert joined.wrong == {what: 1}
    assert joined.examples
    with raises(InputError, found=f"1 {what}"):  # of tasks that ended while it was allowed, too
        join(corpus, options(corpus))


def replace_path(corpus: Chunked) -> Chunked:
    """The same files, whose join has not begun."""
    os.rename(corpus.path / "joined", corpus.path / "refused")
    return corpus


def test_a_chunk_without_a_row_is_counted(tmp_path: Path) -> None:
    corpus = make(tmp_path, np.random.default_rng(4), documents=12)
    gone = next(row for row in corpus.chunks if row["status"] == "ok")
    corpus.chunks.remove(gone)
    corpus.spans[gone["doc"]] = [span for span in corpus.spans[gone["doc"]] if span[0] != gone["start"]]
    joined = join(corpus.write(), options(corpus))
    assert found(corpus, joined) == corpus.spans
    assert joined.missing == 1


def test_two_documents_of_one_id(tmp_path: Path) -> None:
    corpus = make(tmp_path, np.random.default_rng(5), documents=12)
    corpus.documents.append(dict(corpus.documents[0]))
    with raises(InputError, found="of 2 documents"):
        join(corpus.write(), options(corpus))


def test_columns_that_contradict(tmp_path: Path) -> None:
    corpus = make(tmp_path, np.random.default_rng(6), documents=12).write()
    for given in ({"start": "start"}, {"number": None}, {"own": True, "number": "k"}):
        with raises(ConfigError, expected="either a list of starts"):
            options(corpus, **given)
    with raises(InputError, "chunks0.parquet", "columns doc, k,"):
        join(corpus, options(corpus, number="kk"))
    corpus.chunks = [row | {"k": "one"} for row in corpus.chunks]
    corpus.write()
    with raises(InputError, "chunks0.parquet", "cannot be joined"):
        join(corpus, options(corpus))
    with raises(ConfigError, "task", "2 of 2", "a number from 0 to 1"):
        join(corpus, options(corpus), part=Part("deal", 2, 2))
    with raises(ConfigError, fix="rename the file"):
        join_chunks(
            Documents(files=["a*.parquet"], content="body"), options(corpus), library_of(corpus), tmp_path / "joined2"
        )


def test_a_directory_that_holds_something_else_is_no_room_for_a_join(tmp_path: Path) -> None:
    corpus = make(tmp_path, np.random.default_rng(1), documents=12).write()
    room = corpus.path / "joined"
    room.mkdir()
    (room / "thesis.txt").write_text("years")
    with raises(ConfigError, found="files but no plan.json"):
        join(corpus, options(corpus))
    assert os.listdir(room) == ["thesis.txt"]


def test_ids_are_text(tmp_path: Path) -> None:
    """7 is "7" in another file, and never "007"; and a concept with the key 7 is not "007" either."""
    corpus = make(tmp_path, np.random.default_rng(7), documents=12)
    for row in corpus.documents:
        row["doc"] = str(row["doc"])
    joined = join(corpus.write(), options(corpus))
    assert found(corpus, joined) == {str(number): spans for number, spans in corpus.spans.items()}
    for row in corpus.documents:
        row["doc"] = f"0{row['doc']}"
    with pytest.raises(InputError, match=r"found \d+ chunks without a document"):
        join(replace_path(corpus).write(), options(corpus))
    corpus.chunks = [row | {"doc": float(row["doc"])} for row in corpus.chunks]
    with raises(InputError, "chunks0.parquet: column 'doc'", "double"):
        join(corpus.write(), options(corpus))
    corpus = make(tmp_path / "keys", np.random.default_rng(7), documents=12)
    corpus.chunks = [row | {kind: [f"0{key}" for key in row[kind] or ()] for kind in KINDS} for row in corpus.chunks]
    with pytest.raises(InputError, match=r"chunks0\.parquet: column 'topic': found list<.*string>, expected .* int64"):
        join(corpus.write(), options(corpus))
