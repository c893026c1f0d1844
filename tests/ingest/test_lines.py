"""Any cut of a file into pieces gives each line exactly once, with its number; compression changes nothing."""

import gzip
import itertools
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import InputError
from conceptloader.ingest.records import lines as module
from conceptloader.ingest.records.lines import lines_before, read_lines
from tests.raises import raises

BOM = b"\xef\xbb\xbf"
CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc" * 5, b"d" * 37, b"\r\n", BOM]), max_size=30).map(b"".join)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that lines cross the borders of chunks."""
    monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(module, "_STORED", {"gz": 7, "zst": 7})


def expected(content):
    lines = content.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    return [lines[0].removeprefix(BOM), *lines[1:]] if lines else lines


def read(path, *arguments, **more):
    return [line for block, _ in read_lines(str(path), *arguments, **more) for line in block]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("lines") / "x"


@given(CONTENT, st.lists(st.integers(0, 400), max_size=4))
def test_pieces(file, content, cuts):
    file.write_bytes(content)
    borders = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    found = []
    for begin, end in itertools.pairwise(borders):
        assert lines_before(str(file), begin) == len(found)
        found += read(file, begin, end)
    assert found == expected(content)


@given(CONTENT, st.integers(0, 400))
def test_compressed_in_several_members(file, content, cut):
    for kind, compress in (("gz", gzip.compress), ("zst", zstandard.compress)):
        file.write_bytes(compress(content[:cut]) + compress(content[cut:]))
        assert read(file, compression=kind) == expected(content)


@pytest.mark.parametrize("length", [41, 400])
def test_long_lines_are_refused_by_number(file, length):
    file.write_bytes(b"a\nb\n" + b"x" * length + b"\nc\n")
    assert len(read(file, limit=length)) == 4
    for begin in (0, 3):
        with raises(InputError, "line 3", "more than 40 bytes"):
            read(file, begin, limit=40)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_what_little_input_expands_to_is_never_held_at_once(file, kind, monkeypatch):
    """200 MiB of short lines, and then of one line, compressed to some 10 kB: memory is bounded by the chunks."""
    monkeypatch.undo()
    for line in (b"a" * 1023 + b"\n", b"a" * 1024):
        file.write_bytes(_compressed(kind, line * 1024, 200))
        tracemalloc.start()
        try:
            blocks = read_lines(str(file), compression=kind, limit=1 << 20)
            if line.endswith(b"\n"):
                assert sum(len(lines) for lines, _ in blocks) == 200 << 10
            else:
                with raises(InputError, "line 1", "more than 1048576 bytes", fix="split the document"):
                    list(blocks)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 3 * 64 << 20, f"{peak >> 20} MiB"


def _compressed(kind, data, times):
    stream = zlib.compressobj(wbits=31) if kind == "gz" else zstandard.ZstdCompressor().compressobj()
    return b"".join([*(stream.compress(data) for _ in range(times)), stream.flush()])


@pytest.mark.parametrize(("kind", "compress"), [("gz", gzip.compress), ("zst", zstandard.ZstdCompressor().compress)])
def test_no_part_of_a_compressed_file_is_read_as_all_of_it(tmp_path, kind, compress):
    path = tmp_path / f"in.jsonl.{kind}"
    data = compress(b"id\n" + b"7\n" * 40)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with raises(InputError, str(path), "corrupt or truncated", "a complete file"):
            list(module.read_blocks(str(path), kind, 100))
