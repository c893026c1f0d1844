"""Damaged shard files met while reading: an error that names the file, never another exception, never a huge read."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.tools.verify import verify
from tests.corpora.small import small_corpus
from tests.raises import raises

U8 = struct.Struct("<Q")
ENTRY = struct.Struct("<QI")
ITEM = struct.Struct("<HfII")  # token, weight, concepts_id, source_id


@pytest.fixture(params=["dense", "spans"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[cl.Dataset]:
    """The small corpus in either encoding, opened by a reader that does not look at files before it reads them: what
    is damaged where no sample looks."""
    small_corpus().write(tmp_path / "ds", request.param)
    with cl.open_dataset(tmp_path / "ds", verify_files=False) as ds:
        yield ds


def overwrite(ds: cl.Dataset, kind: str, offset: int, data: bytes, shard: int = 0) -> Path:
    file = Path(ds.path, f"{shard:05d}.{kind}")
    content = bytearray(file.read_bytes())
    content[offset : offset + len(data)] = data
    file.write_bytes(content)
    return file


def read_everything(ds: cl.Dataset) -> None:
    for sample in ds.windows(4):
        for track in ds.tracks:
            sample[track].decode()
    for number in range(ds.num_documents):
        ds.document_range(number)
        ds.document_id(number)
    for name in ("a", "b", "ü", "c", "absent"):
        ds.find_document(name)


# The first shard of the small corpus: 9 tokens, 3 documents at 0, 6, 6, blocks of 4 tokens; concepts: records 0 to 2,
# entries (0, 0) (2, 2) (4, none) (5, 1) (6, none) (7, 0).
SPANS = [
    ("concepts.spans", ENTRY.size * 1, ENTRY.pack(2, 3)),
    ("concepts.spans", ENTRY.size * 1, ENTRY.pack(2**32 - 1, 2)),
    ("concepts.spans", ENTRY.size * 1, ENTRY.pack(4, 2)),
    ("concepts.spans", ENTRY.size * 0, ENTRY.pack(1, 0)),
    ("concepts.spans", ENTRY.size * 0, ENTRY.pack(2**63, 0)),
    ("concepts.spans", ENTRY.size * 6, U8.pack(2**63)),
    ("concepts.spans", ENTRY.size * 6 + 16, U8.pack(0)),
]
DENSE = [("stream.bin", ITEM.size * 2 + 6, struct.pack("<I", 3))]
EITHER = [
    ("concepts.index", 8, U8.pack(2**40)),
    ("documents.bin", 8, U8.pack(10)),
    ("documents.bin", 8 * 4, U8.pack(2**50)),
    ("documents.ids", 8, U8.pack(2**50)),
    ("documents.ids", 8 * 4, b"\xff"),
]


@pytest.mark.parametrize(
    ("encoding", "kind", "offset", "data"),
    [("spans", *case) for case in SPANS + EITHER] + [("dense", *case) for case in DENSE + EITHER],
)
def test_each_kind_of_damage_is_named(tmp_path: Path, encoding: str, kind: str, offset: int, data: bytes) -> None:
    small_corpus().write(tmp_path / "ds", encoding)
    ds = cl.open_dataset(tmp_path / "ds", verify_files=False)
    file = overwrite(ds, kind, offset, data)
    with pytest.raises(FormatError) as caught:
        read_everything(ds)
    assert caught.value.path == str(file)
    assert file.name in [Path(problem.file).name for problem in verify(ds.path, full=True)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ds: ds.windows(24), r"seq_len: found 24, expected at most 23: .* has 24 in this range; pass a smaller"),
        (lambda ds: ds.windows(4, token_range=(0, 25)), r"token_range: found \[0, 25\), expected .* <= 24"),
        (lambda ds: ds.windows(4, tracks=["concept"]), r"found no track 'concept', expected one of \['concepts', 'sou"),
        (lambda ds: ds.windows(4, tracks="concepts"), "tracks: found the string 'concepts'"),
        (lambda ds: ds.tokens(-1, 1), r"found token range \[-1, 1\)"),
        (lambda ds: ds.tokens(0, 25), r"found token range \[0, 25\), expected .* <= 24"),
        (lambda ds: ds.document_range(4), r"found document 4, expected a number from 0 to 3"),
        (lambda ds: ds.split(0.5, 0.5), r"split: found \[0.5, 0.5\], expected 0 <= a < b <= 1"),
        (lambda ds: ds.split(float("nan"), 1), "split: found"),
        (lambda ds: ds.split(0.5, 0.6), r"split: found no start of a document in \[0.5, 0.6\]"),
    ],
)
def test_arguments_out_of_range(dataset: cl.Dataset, call: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(dataset)


def far_apart(path: Path, count: int) -> cl.Dataset:
    """Tokens 0 and 1 point at the first and the last of many records; record i is the one concept i."""
    options = cl.writing.BuildOptions(tracks={"concepts": cl.writing.TrackOptions(encoding="dense")})
    build = cl.writing.create_writer(path, options)
    with build.shard(0) as writer:
        for number in range(count):
            writer.add_record("concepts", [number])
        writer.add_document([1, 2, 3], {"concepts": [(0, 1, count - 1), (1, 2, 0), (2, 3, count - 1)]})
    cl.writing.finalize(path)
    return cl.open_dataset(path)


def test_offsets_that_fall_between_groups(tmp_path: Path) -> None:
    ds = far_apart(tmp_path / "ds", 100_000)
    assert [ids.tolist() for ids in ds.spans("concepts", 0, 3).decode()] == [[99_999], [0], [99_999]]
    ds = cl.open_dataset(tmp_path / "ds", verify_files=False)
    overwrite(ds, "concepts.index", 0, U8.pack(400_000) * 2)
    with raises(FormatError, "concepts.index", "descending offsets"):
        ds.spans("concepts", 0, 3)
