"""Any cut of a file into pieces gives each line exactly once, with its number; compression changes nothing."""

import gzip
import itertools
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from conceptloader.errors import InputError
from conceptloader.ingest import lines as module
from conceptloader.ingest.lines import lines_before, read_lines

CONTENT = st.lists(st.sampled_from([b"\n", b"a", b"bc" * 5, b"d" * 37, b"\r\n"]), max_size=30).map(b"".join)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that lines cross the borders of chunks."""
    monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(module, "_STORED_CHUNK", 7)


def expected(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def read(path: Path, *arguments: object, **more: object) -> list[bytes]:
    return [line for block, _ in read_lines(str(path), *arguments, **more) for line in block]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "x"


@given(CONTENT, st.lists(st.integers(0, 400), max_size=4))
def test_pieces(file: Path, content: bytes, cuts: list[int]) -> None:
    file.write_bytes(content)
    borders = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    found: list[bytes] = []
    for begin, end in itertools.pairwise(borders):
        assert lines_before(str(file), begin) == len(found)
        found += read(file, begin, end)
    assert found == expected(content)


@given(CONTENT, st.integers(0, 400))
def test_compressed_in_several_members(file: Path, content: bytes, cut: int) -> None:
    for kind, compress in (("gz", gzip.compress), ("zst", zstandard.compress)):
        file.write_bytes(compress(content[:cut]) + compress(content[cut:]))
        assert read(file, compression=kind) == expected(content)


@pytest.mark.parametrize(("kind", "compress"), [("gz", gzip.compress), ("zst", zstandard.compress)])
def test_truncated_or_damaged(file: Path, kind: str, compress: object) -> None:
    data = compress(b"one\ntwo\n" * 40)  # type: ignore[operator]
    for bad in (data[:-1], data[: len(data) // 2], b"not compressed at all", data[:12] + b"\xff" * 20 + data[32:]):
        file.write_bytes(bad)
        with pytest.raises(InputError, match=str(file)):
            read(file, compression=kind)


@pytest.mark.parametrize("length", [41, 400])
def test_long_lines_are_refused_by_number(file: Path, length: int) -> None:
    file.write_bytes(b"a\nb\n" + b"x" * length + b"\nc\n")
    assert len(read(file, limit=length)) == 4
    for begin in (0, 3):
        with pytest.raises(InputError, match=r"line 3: found more than 40 bytes"):
            read(file, begin, limit=40)
