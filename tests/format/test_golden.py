"""The format is frozen: bytes, their meaning to an independent reader, and the fingerprints."""

import pytest

import conceptloader as cl
from conceptloader.format.tools.verify import verify
from tests import archives
from tests.format.golden_build import (
    ARCHIVE,
    COLUMNS,
    CONCEPTS,
    MEMBERS,
    SCORED,
    compare,
    documents,
    everything,
    facts,
    golden,
    recorded,
    sums,
    write_all,
)  # fmt: skip
from tests.format.spec_reader import SpecColumn, SpecReader
from tests.oracle.data import read

COLUMN_FINGERPRINTS = {"halves": "8173fcc77623f2e67612c0cad4ea2e09", "ids": "61e6532835ce164b667872098b6fb84b"}


def test_the_golden_files_are_unchanged():
    assert facts(golden()) == recorded()


def test_the_writer_writes_the_golden_bytes(tmp_path):
    write_all(tmp_path)
    assert sums(tmp_path) == recorded()["sha256"]


def test_the_script_makes_the_archive():
    """Byte for byte, the facts too: every file, and nothing else."""
    assert archives.tar(everything()) == archives.read_tar(ARCHIVE)


@pytest.mark.parametrize("member", MEMBERS)
def test_the_golden_datasets_are_sound(member):
    assert verify(golden() / member, full=True) == []
    assert verify(golden() / member) == []


@pytest.mark.parametrize("member", MEMBERS)
def test_an_independent_reader_reads_the_golden_datasets(member):
    n = cl.open_dataset(golden() / member).num_tokens
    compare(golden() / member, [(a, b) for a in range(n) for b in sorted({a + 1, a + 2, a + 5, n}) if b <= n])


@pytest.mark.parametrize("member", ["stream", "dense", "chat"])
def test_the_golden_datasets_hold_what_was_put_in(member):
    ds, theirs = cl.open_dataset(golden() / member), SpecReader(golden() / member)
    assert [sample["tokens"].tolist() for sample in ds.documents()] == [d["tokens"] for d in documents()]
    assert [ds.document_id(i) for i in range(4)] == ["greeting", None, "zürich", "greeting"]
    for name, numbers in {"greeting": [0, 3], "zürich": [2], "": [], "nobody": []}.items():
        assert ds.find_document(name) == numbers
        assert not name or theirs.find(name) == numbers
    assert ds.vocabulary("concepts") == CONCEPTS
    first = ds.documents()[0]
    assert [ids.tolist() for ids in first["concepts"].decode()] == [[1], [], [0, 2]]
    assert [values.tolist() for values in first["quality"].decode()] == [[0.5, -2.0]]
    assert ds.documents()[2]["source"].decode() == [{"url": "https://example.org/ü"}]
    assert [ids.tolist() for ids in ds.documents()[2]["concepts"].decode()] == [[2, 3], [2, 3]]
    assert ds.tokenizer == cl.writing.Tokenizer(
        name="bytes", vocab_size=70_000 if member == "dense" else 257, eos_id=256
    )
    assert ds.manifest.extra == {"text": "ASCII and ü"}


def test_the_scored_dataset():
    """Scores, groups and details, read by both readers."""
    path = golden() / SCORED
    assert verify(path, full=True) == []
    compare(path, [(a, b) for a in range(18) for b in (a + 1, 18)])
    ds, theirs = cl.open_dataset(path), SpecReader(path)
    spans = ds.spans("sure", 0, 18)
    assert spans.values.tolist() == [1, 2, 3] * 3
    assert spans.scores.tolist() == [0.5, -(2.0**-24), 1 + 2.0**-10] * 3
    assert [ids.tolist() for ids in ds.spans("free", 0, 12).decode()] == [[2**32 - 1, 0], [2**32 - 1, 1]]
    assert theirs.groups("kinds") == ["open", "open", "open", "closed"]
    assert theirs.details("kinds")[2] == {"id": 14, "says": "a name, ü"}
    concept = ds.concept("name", "kinds")
    assert (concept.id, concept.name, concept.group, concept.details) == (2, "name", "open", theirs.details("kinds")[2])
    assert ds.concept(3, "kinds").group == "closed"


def test_a_window_of_the_chat_dataset_is_refused():
    ds = cl.open_dataset(golden() / "chat")
    with pytest.raises(ValueError, match=r"mode: found document, expected a stream; use Dataset.documents\(\)"):
        ds.windows(4)


def test_columns_are_what_an_independent_reader_finds():
    """The bytes are written by hand; each token, the fingerprint, and the text that this release would write."""
    path = golden() / COLUMNS
    ds, theirs = cl.open_dataset(path), SpecReader(path)
    assert verify(path, full=True, write_checksums=False) == []
    assert list(ds.columns) == ["halves", "ids"]
    for name in ds.columns:
        column, said, held = ds.columns[name], SpecColumn(theirs, name), read(path).columns[name]
        items, known = ds.column_values(name, 0, ds.num_tokens)
        assert known.tolist() == held.known.tolist()
        assert items.tolist() == held.items.tolist()
        assert said.check_files() > 0
        assert column.fingerprint == said.fingerprint()
        assert column.dump() == (path / f"{name}.column.json").read_bytes()
    assert {name: ds.columns[name].fingerprint for name in ds.columns} == COLUMN_FINGERPRINTS
    assert [token for token, has in enumerate(ds.column_values("ids", 0, 25)[1]) if not has] == [0, 12, 17]
    assert ds.column_values("ids", 24, 25)[0].tolist() == [[24, 1024]]


def test_readers_that_know_no_columns_ignore_them():
    """Files that no manifest names change no fingerprint, and nothing looks at them."""
    path = golden() / COLUMNS
    compare(path, [(0, 25)])
    stream = recorded()["stream_fingerprint"], recorded()["tracks_fingerprint"]
    assert [each[COLUMNS] for each in stream] == [each["stream"] for each in stream]
