"""Megatron's .bin/.idx through our reader against megatron-core's own."""

import os
import struct
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset

import conceptloader as cl
from conceptloader.errors import FormatError, InputError
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.adopt import source as adopt_source
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.storage import reads as io
from conceptloader.storage.sample import WHOLE
from tests.corpora.token_files import Documents
from tests.corpora.token_files import write_megatron as write
from tests.raises import raises

TYPES = [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64]


@settings(max_examples=40)
@given(st.data())
def test_equals_indexed_dataset(data: st.DataObject) -> None:
    sequence = st.lists(st.integers(0, 120), max_size=6)
    document = st.lists(sequence, max_size=3)
    corpora = data.draw(st.lists(st.lists(document, min_size=1, max_size=8), min_size=1, max_size=3))
    if not any(token for corpus in corpora for item in corpus for part in item for token in part):
        corpora[0].append([[1, 2, 3]])
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt_source, "PIECE", data.draw(st.integers(1, 9), "piece"))
        tokens: list[int] = []
        starts: list[int] = []
        paths = []
        for number, corpus in enumerate(corpora):
            prefix = write(Path(directory) / f"c{number}", corpus, data.draw(st.sampled_from(TYPES)))
            paths.append(prefix + data.draw(st.sampled_from(["", ".bin", ".idx"])))
            theirs = IndexedDataset(prefix, mmap=False)
            ends = np.cumsum([0, *theirs.sequence_lengths])
            starts += (len(tokens) + ends[theirs.document_indices[:-1]]).tolist()
            for i in range(len(theirs)):
                tokens += theirs[i].tolist()
        adopt(paths, Path(directory) / "ds")
        with cl.open_dataset(Path(directory) / "ds") as ds:
            assert ds.num_tokens == len(tokens)
            assert [ds.document_range(d) for d in range(ds.num_documents)] == list(
                zip(starts, [*starts[1:], len(tokens)], strict=True)
            )
            a, b = sorted((data.draw(st.integers(0, len(tokens))), data.draw(st.integers(0, len(tokens)))))
            assert ds.tokens(a, b).tolist() == tokens[a:b]
            if len(tokens) > 1:
                for i, window in enumerate(ds.windows(seq_len := data.draw(st.integers(1, len(tokens) - 1)))):
                    assert window["tokens"].tolist() == tokens[i * seq_len : i * seq_len + seq_len + 1]


@settings(max_examples=20)
@given(st.data())
def test_a_negative_token_of_a_type_that_is_read_as_unsigned(data: st.DataObject) -> None:
    """Its first place is named, and nothing is written. int8 and int16 alone: other types are not read here."""
    bits = data.draw(st.sampled_from([8, 16]))
    tokens = st.integers(0, 2 ** (bits - 1) - 1)
    sequence = data.draw(st.lists(tokens, max_size=12))
    negative = data.draw(st.integers(-(2 ** (bits - 1)), -1))
    later = data.draw(st.lists(st.integers(-3, 3), max_size=3))
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(adopt_source, "PIECE", data.draw(st.integers(1, 9), "piece"))
        prefix = write(Path(directory) / "x", [[[*sequence, negative, *later]]], getattr(np, f"int{bits}"))
        message = rf"x\.bin: found token {len(sequence)} of {negative}, expected an id of at least 0"
        with pytest.raises(InputError, match=message):
            adopt([prefix], Path(directory) / "ds")
        assert not (Path(directory) / "ds").exists()


def test_a_folder_stands_for_its_prefixes_in_order(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "y", [[[3]]])
    write(tmp_path / "in" / "x", [[[2]]])
    write(tmp_path / "in" / "a", [[[1]]])
    adopt([tmp_path / "in"], tmp_path / "ds")
    assert cl.open_dataset(tmp_path / "ds").tokens(0, 3).tolist() == [1, 2, 3]
    assert sorted(p.name for p in (tmp_path / "ds").iterdir()) == [
        "00000.documents.bin", "00001.documents.bin", "00002.documents.bin", "manifest.json",
    ]  # fmt: skip


@pytest.mark.parametrize("full", [False, True])
def test_a_sample_of_the_tokens_is_read_or_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    prefix = write(tmp_path / "x", [[list(range(30_000))], [[4]]])
    size = Path(prefix + ".bin").stat().st_size
    read: Counter[str] = Counter()

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        read[os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))] += count
        return os.pread(descriptor, count, offset)

    monkeypatch.setattr(io, "pread", pread)
    adopt([prefix], tmp_path / "ds", full=full)
    assert read["x.idx"] > 0
    assert read["x.bin"] == WHOLE + (size if full else 0)


def test_a_file_that_changes_later_is_detected(tmp_path: Path) -> None:
    prefix = write(tmp_path / "x", [[[1, 2, 3]], [[4]]])
    adopt([prefix], tmp_path / "ds")
    original = Path(prefix + ".bin").read_bytes()
    Path(prefix + ".bin").write_bytes(original + b"\0\0")
    with raises(FormatError, "x.bin", "10 bytes", "8"):
        cl.open_dataset(tmp_path / "ds").tokens(0, 1)
    Path(prefix + ".bin").write_bytes(original)
    with raises(FormatError, "x.bin", "modification time"):
        cl.open_dataset(tmp_path / "ds").tokens(0, 1)


def test_verify_covers_the_files(tmp_path: Path) -> None:
    prefix = write(tmp_path / "x", [[[1, 2, 3]], [[4]]])
    adopt([prefix], tmp_path / "ds")
    tokens, index = Path(prefix + ".bin"), Path(prefix + ".idx")
    assert verify(tmp_path / "ds") == verify(tmp_path / "ds", full=True) == []
    damage_quietly(tokens, 2, b"\x09")
    for full in (False, True):
        (problem,) = verify(tmp_path / "ds", full=full)
        assert problem.file == str(tokens)
        assert (problem.shard, problem.tokens) == (0, (0, 4))
    damage_quietly(tokens, 2, b"\x02")
    damage(index, 34, b"\x02")
    (problem,) = verify(tmp_path / "ds", full=True)
    assert problem.file == str(index)
    tokens.unlink()
    assert verify(tmp_path / "ds")[0].file == str(tokens)


def damage_quietly(path: Path, offset: int, data: bytes) -> None:
    """As a failing disk does it: size and time stay."""
    before = path.stat()
    damage(path, offset, data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def damage(path: Path, offset: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)


# The index of the corpus below: head 34, 3 lengths from 34, 3 pointers from 46, 4 document entries from 70, end 102.
CORPUS: Documents = [[[1, 2], [3]], [], [[4, 5, 6]]]
BAD = {
    "truncated head": (lambda p: p.write_bytes(p.read_bytes()[:20]), r"found 20 bytes, expected at least 34"),
    "a head alone": (lambda p: p.write_bytes(p.read_bytes()[:34]), r"found 34 bytes, expected 102 for 3 sequences"),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-3]), r"found 99 bytes, expected 102"),
    "magic": (lambda p: damage(p, 0, b"TNTIDX\x00\x00\x00"), r"TNTIDX.*expected b'MMIDIDX"),
    "version": (lambda p: damage(p, 9, struct.pack("<Q", 2)), r"version 2, expected 1"),
    "float tokens": (lambda p: damage(p, 17, b"\x07"), r"tokens of type float32, expected one of uint8, uint16"),
    "unknown type": (lambda p: damage(p, 17, b"\x63"), r"tokens of type code 99"),
    "other width": (lambda p: damage(p, 17, b"\x04"), r"expected a length and a multiple of 4"),
    "too many sequences": (lambda p: damage(p, 18, struct.pack("<Q", 1 << 60)), r"found 102 bytes"),
    "no documents": (lambda p: (damage(p, 26, bytes(8)), p.write_bytes(p.read_bytes()[:70])), r"no document entry"),
    "negative length": (lambda p: damage(p, 34, struct.pack("<i", -2)), r"sequence 0 of -2 tokens"),
    "a hole": (lambda p: damage(p, 54, struct.pack("<q", 2)), r"sequence 1 of 1 tokens at byte 2.*byte 4"),
    "past the end": (lambda p: damage(p, 94, struct.pack("<q", 4)), r"end at sequence 4, past the end, expected 3"),
    "document past the end": (lambda p: damage(p, 78, struct.pack("<q", 9)), r"document 1 to begin at sequence 9"),
    "decreasing": (lambda p: damage(p, 86, struct.pack("<q", 1)), r"document 2 .* 1, expected one in \[2, 3\]"),
    "late document": (lambda p: damage(p, 70, struct.pack("<q", 1)), r"document 0 .* sequence 1, expected 0"),
    "multimodal": (lambda p: p.write_bytes(p.read_bytes() + b"\0\0\0"), r"a mode for each sequence"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_index(tmp_path: Path, name: str) -> None:
    prefix = write(tmp_path / "x", CORPUS)
    apply, message = BAD[name]
    apply(Path(prefix + ".idx"))
    with pytest.raises(InputError, match=rf"x\.idx: .*{message}"):
        adopt([prefix], tmp_path / "ds")
    assert not [p for p in tmp_path.iterdir() if p.is_dir()]


def test_bad_token_file(tmp_path: Path) -> None:
    prefix = write(tmp_path / "x", CORPUS)
    Path(prefix + ".bin").write_bytes(b"\0" * 11)
    with pytest.raises(InputError, match=r"x\.bin: found 11 bytes, expected 12 as .*x\.idx says"):
        adopt([prefix], tmp_path / "ds")
    Path(prefix + ".bin").unlink()
    with raises(InputError, "x.bin", "no readable file"):
        adopt([prefix], tmp_path / "ds")


def test_sequences_of_no_document_are_refused(tmp_path: Path) -> None:
    prefix = write(tmp_path / "x", [[[1, 2]], [[3]]], end_last=False)
    with raises(InputError, found="end at sequence 1", expected="2", fix="end_document"):
        adopt([prefix], tmp_path / "ds")


@pytest.mark.parametrize(("code", "name"), [(6, "float64"), (7, "float32")])
def test_files_of_floats_are_named_as_such(tmp_path: Path, code: int, name: str) -> None:
    prefix = write(tmp_path / "x", [[[1, 2]]])
    index = Path(prefix + ".idx")
    data = bytearray(index.read_bytes())
    data[17] = code
    index.write_bytes(data)
    with pytest.raises(InputError, match=name):
        adopt([prefix], tmp_path / "ds")


def test_a_last_sequence_of_negative_length(tmp_path: Path) -> None:
    prefix = write(tmp_path / "x", [[[1, 2], [3]]])
    index = Path(prefix + ".idx")
    data = bytearray(index.read_bytes())
    data[34 + 4 : 34 + 8] = struct.pack("<i", -1)
    index.write_bytes(data)
    with raises(InputError, found="sequence 1 of -1 tokens"):
        adopt([prefix], tmp_path / "ds")
