"""What the golden datasets consist of. `python -m tests.format.golden_build` writes golden.tar.xz; see test_golden.py.

From the first release on these bytes are frozen: they may be added to, never changed.
"""

import hashlib
import json
import struct
import tempfile
from pathlib import Path
from unittest import mock

import xxhash

import conceptloader as cl
from conceptloader.format.tools import concat
from conceptloader.format.write import finalize
from tests import archives
from tests.format.spec_reader import SpecReader
from tests.oracle.data import Span, read

ARCHIVE = Path(__file__).with_name("golden.tar.xz")
MEMBERS = ("stream", "dense", "chat", "joined")
SCORED = "scored"  # beside them: scores, groups and details of concepts
COLUMNS = "columns"  # and these
CONCEPTS = ["noun", "verb", "name", "number"]


def documents():
    """Two shards' worth: gaps, an empty document, adjacent spans, a shared record, ids with and without ASCII."""
    return [
        {
            "tokens": [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100, 256],
            "spans": {"concepts": [(0, 5, [1]), (5, 6, []), (6, 12, [0, 2])], "quality": [(0, 12, [0.5, -2.0])]},
            "id": "greeting",
        },
        {"tokens": [], "id": ""},
        {
            "tokens": [256, 0, 255, 1, 254, 2],
            "spans": {"concepts": [(1, 2, 0), (4, 6, 0)], "source": [(0, 6, {"url": "https://example.org/ü"})]},
            "id": "zürich",
        },
        {"tokens": list(range(7)), "spans": {"concepts": [(2, 7, [3])], "source": [(0, 7, None)]}, "id": "greeting"},
    ]


def write(path, mode, encoding, vocab_size):
    tracks = {
        "concepts": cl.writing.TrackOptions(vocabulary=CONCEPTS, encoding=encoding),
        "quality": cl.writing.TrackOptions(codec="numpy", parameters={"dtype": "f4"}, encoding=encoding),
        "source": cl.writing.TrackOptions(codec="json", encoding="spans"),
    }
    options = cl.writing.BuildOptions(
        mode=mode,
        tokenizer=cl.writing.Tokenizer(name="bytes", vocab_size=vocab_size, eos_id=256),
        fields={"loss_mask": "u1"} if mode == "document" else {"loss_weight": "f2"},
        tracks=tracks,
        block_tokens=4,
        extra={"text": "ASCII and ü"},
    )
    build = cl.writing.create_writer(path, options, inputs=["golden"], plan=[[0, 3], [3, 3], [3, 4]])
    for number, (start, stop) in enumerate(build.plan):
        with build.shard(number) as shard:
            if number == 0:
                shard.add_record("concepts", [2, 3])
            for document in documents()[start:stop]:
                found = dict(document.get("spans", {}))
                if number == 0:
                    found["concepts"] = [(a, b, 0 if r == 0 else r) for a, b, r in found.get("concepts", [])]
                values = [i % 2 for i in range(len(document["tokens"]))]
                shard.add_document(document["tokens"], found, document["id"], dict.fromkeys(options.fields, values))
    cl.writing.finalize(path)


def write_scored(path):
    """Ids of 2 and of 4 bytes, scores of both types, groups, details."""
    tracks = {
        "kinds": cl.writing.TrackOptions(
            vocabulary=CONCEPTS, parameters={"ids": "u2"}, groups=[("open", 3), ("empty", 0), ("closed", 1)],
            details=[{"id": 7 * i, "says": f"a {name}, ü"} for i, name in enumerate(CONCEPTS)],
        ),
        "sure": cl.writing.TrackOptions(vocabulary=CONCEPTS, parameters={"ids": "u2", "scores": "f2"}),
        "free": cl.writing.TrackOptions(parameters={"scores": "f4"}, encoding="dense"),
    }  # fmt: skip
    build = cl.writing.create_writer(path, cl.writing.BuildOptions(tracks=tracks, block_tokens=4), plan=[None])
    with build.shard(0) as shard:
        for k in range(3):
            spans = {
                "kinds": [(0, 2, [3, 0]), (2, 4, [])],
                "sure": [(1, 3, ([1, 2], [0.5, -(2.0**-24)])), (4, 6, ([3], [1 + 2.0**-10]))],
                "free": [(0, 6, ([2**32 - 1, k], [0.1, 1e30]))],
            }
            shard.add_document(range(6 * k, 6 * k + 6), spans, id=f"d{k}")
    cl.writing.finalize(path)


def write_columns(path):
    """Columns of a dataset of 18, 0 and 7 tokens, byte by byte, by nothing of the package.

    `ids` has two u2 for each token but three of shard 0, and nothing in shard 1. `halves` has a bf16 for the tokens of
    shard 2 alone, in a file of another name behind three bytes.
    """
    ids = [b"".join(struct.pack("<HH", t, 1000 + t) for t in tokens) for tokens in (range(18), range(18, 25))]
    ids[0] = bytes(4) + ids[0][4:48] + bytes(4) + ids[0][52:68] + bytes(4)  # tokens 0, 12 and 17
    lacking = bytes([0b00000001, 0b00010000, 0b00000010])
    halves = b"abc" + b"".join(struct.pack("<f", t / 4)[2:] for t in range(7)) + b"z"
    files = {"00000.ids.column": ids[0], "00002.ids.column": ids[1], "00000.ids.holes": lacking, "halves.bin": halves}
    for name, data in files.items():
        (path / name).write_bytes(data)
    one, two, three, four = (xxhash.xxh3_64_hexdigest(data) for data in files.values())
    tokens = SpecReader(path).stream_fingerprint()
    of_ids = f"""{{
 "format": "conceptstream-column",
 "version": 1,
 "created_by": "conceptloader golden",
 "dtype": "u2",
 "shape": [2],
 "stream_fingerprint": "{tokens}",
 "files": {{
  "size": [72,null,28],
  "checksum": ["{one}",null,"{two}"],
  "sample": ["{one}",null,"{two}"]
 }},
 "holes": {{
  "tokens": 3,
  "starts": 2,
  "size": [3,null,null],
  "checksum": ["{three}",null,null],
  "sample": ["{three}",null,null]
 }},
 "extra": {{}}"""
    of_halves = f"""{{
 "format": "conceptstream-column",
 "version": 1,
 "created_by": "conceptloader golden",
 "dtype": "bf16",
 "shape": [],
 "stream_fingerprint": "{tokens}",
 "files": {{
  "size": [null,null,18],
  "checksum": [null,null,null],
  "sample": [null,null,"{four}"],
  "path": [null,null,"halves.bin"],
  "offset": [0,0,3]
 }},
 "holes": null,
 "extra": {{
  "teacher": "of nobody"
 }}"""
    for name, text in (("ids", of_ids), ("halves", of_halves)):
        checksum = f',\n "checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n'
        (path / f"{name}.column.json").write_text(text + checksum)


def write_all(root):
    """The manifest names the writer; golden bytes must not change with every release."""
    golden = [mock.patch.object(module, "CREATED_BY", "conceptloader golden") for module in (finalize, concat)]
    with golden[0], golden[1]:
        write(root / "stream", "stream-with-metadata", "spans", 257)
        write(root / "dense", "stream-with-metadata", "dense", 70_000)
        write(root / "chat", "document", "spans", 257)
        cl.concat([root / "dense", root / "stream"], root / "joined", allow_mixed_tokenizers=True)
        write_scored(root / SCORED)
        write(root / COLUMNS, "stream-with-metadata", "spans", 257)
        write_columns(root / COLUMNS)


def facts(root):
    """SHA-256 of every file of the golden datasets, and their fingerprints."""
    members = *MEMBERS, SCORED, COLUMNS
    files = sorted(file for member in members for file in (root / member).iterdir())
    opened = {member: cl.open_dataset(root / member) for member in members}
    return {
        "sha256": {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        "stream_fingerprint": {member: ds.stream_fingerprint for member, ds in opened.items()},
        "tracks_fingerprint": {member: ds.tracks_fingerprint for member, ds in opened.items()},
    }


def golden():
    """The golden datasets, to be read only."""
    return archives.unpacked(ARCHIVE)


def everything():
    """The files of the archive, made now."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_all(root)
        (root / "facts.json").write_text(json.dumps(facts(root), indent=1) + "\n")
        return archives.files_below(root)


if __name__ == "__main__":
    archives.write(ARCHIVE, everything())


def documents_in(data, start, stop):
    """(first token, number) of the documents that hold these tokens; (start of the shard, -1) where none is known."""
    found = []
    for token in range(start, stop):
        number = int(data.document_of[token])
        first = data.documents[number][0] if number >= 0 else max(a for a, _ in data.shards if a <= token)
        found.append((first, number))
    return list(dict.fromkeys(found))


def compare(path, ranges):
    """Our reader, and those written from the pages, say the same."""
    ours, theirs, data = cl.open_dataset(path), SpecReader(path), read(path)
    assert ours.num_tokens == theirs.starts[-1]
    assert ours.stream_fingerprint == theirs.stream_fingerprint()
    assert ours.tracks_fingerprint == theirs.tracks_fingerprint()
    assert theirs.check_files() == sum(int((c.size >= 0).sum()) for c in ours.manifest.shards.files.values())
    for name in {*data.ids} - {""}:
        assert theirs.find(name) == ours.find_document(name)
    compare_values(ours, data, ranges)


def compare_values(ours, data, ranges):
    """The same of a dataset or a view, and what was read of its files."""
    assert ours.num_tokens == len(data.tokens)
    assert [n for some in ours.document_lengths() for n in some.tolist()] == [e - a for a, e in data.documents]
    for name in {*data.ids} - {""}:
        assert ours.find_document(name) == [number for number, other in enumerate(data.ids) if other == name]
    for number, borders in enumerate(data.documents):
        assert (ours.document_range(number), ours.document_id(number) or "") == (borders, data.ids[number])
    for start, stop in ranges:
        sample = ours.read(start, stop, sorted(ours.tracks), documents=True)
        assert sample["tokens"].tolist() == data.tokens[start:stop].tolist()
        for name in ours.field_names:
            assert sample[name].tolist() == data.fields[name][start:stop].tolist()
        found = zip(sample["documents"].first.tolist(), sample["documents"].ids.tolist(), strict=True)
        assert list(found) == documents_in(data, start, stop)
        for track in ours.tracks:
            inside = [span for span in data.spans[track] if span.start < stop and span.end > start]
            for spans in (sample[track], ours.spans(track, start, stop)):
                columns = (spans.start, spans.end, map(bytes, spans.records), spans.begins_before, spans.ends_after)
                rows = [Span(*row) for row in zip(*columns, strict=True)]
                assert rows == [span.cut(start, stop, -start) for span in inside]
