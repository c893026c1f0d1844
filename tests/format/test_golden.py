"""The format is frozen: bytes, their meaning to an independent reader, and the fingerprints."""

import pytest

import conceptloader as cl
from conceptloader.format.tools.verify import verify
from tests import archives
from tests.format.golden_build import ARCHIVE, COLUMNS, MEMBERS, SCORED, compare, everything, golden
from tests.format.spec_reader import column_fingerprint
from tests.oracle.data import read

COLUMN_FINGERPRINTS = {"halves": "8173fcc77623f2e67612c0cad4ea2e09", "ids": "61e6532835ce164b667872098b6fb84b"}


def test_the_golden_bytes_are_written():
    """The whole archive, byte for byte: every file, and the fingerprints that were recorded beside them."""
    assert archives.tar(everything()) == archives.read_tar(ARCHIVE)


@pytest.mark.parametrize("member", MEMBERS)
def test_an_independent_reader_reads_the_golden_datasets(member):
    assert verify(golden() / member, full=True) == verify(golden() / member) == []
    n = cl.open_dataset(golden() / member).num_tokens
    compare(golden() / member, [(a, b) for a in range(n) for b in sorted({a + 1, a + 2, a + 5, n}) if b <= n])


def test_the_scored_dataset():
    """Scores, groups and details."""
    path = golden() / SCORED
    assert verify(path, full=True) == []
    compare(path, [(a, b) for a in range(18) for b in (a + 1, 18)])
    ds = cl.open_dataset(path)
    spans = ds.spans("sure", 0, 18)
    assert spans.values.tolist() == [1, 2, 3] * 3
    assert spans.scores.tolist() == [0.5, -(2.0**-24), 1 + 2.0**-10] * 3
    assert [ids.tolist() for ids in ds.spans("free", 0, 12).decode()] == [[2**32 - 1, 0], [2**32 - 1, 1]]
    concept, details = ds.concept("name", "kinds"), {"id": 14, "says": "a name, ü"}
    assert (concept.id, concept.name, concept.group, concept.details) == (2, "name", "open", details)
    assert ds.concept(3, "kinds").group == "closed"


def test_columns_are_what_an_independent_reader_finds():
    """The bytes are written by hand; each token, the fingerprint, and the text that this release would write."""
    path = golden() / COLUMNS
    ds = cl.open_dataset(path)
    assert verify(path, full=True, write_checksums=False) == []
    assert list(ds.columns) == ["halves", "ids"]
    for name in ds.columns:
        column, held, file = ds.columns[name], read(path).columns[name], path / f"{name}.column.json"
        items, known = ds.column_values(name, 0, ds.num_tokens)
        assert known.tolist() == held.known.tolist()
        assert items.tolist() == held.items.tolist()
        assert column.fingerprint == column_fingerprint(file)
        assert column.dump() == file.read_bytes()
    assert {name: ds.columns[name].fingerprint for name in ds.columns} == COLUMN_FINGERPRINTS
    assert [token for token, has in enumerate(ds.column_values("ids", 0, 25)[1]) if not has] == [0, 12, 17]
    assert ds.column_values("ids", 24, 25)[0].tolist() == [[24, 1024]]


def test_readers_that_know_no_columns_ignore_them():
    """Files that no manifest names change no fingerprint, and nothing looks at them."""
    path = golden() / COLUMNS
    compare(path, [(0, 25)])
    known, bare = (cl.open_dataset(golden() / name) for name in (COLUMNS, "stream"))
    assert known.stream_fingerprint == bare.stream_fingerprint
    assert known.tracks_fingerprint == bare.tracks_fingerprint
