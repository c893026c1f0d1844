"""SHA-256 trees of documents: what they are, that they are optional, and that a forged dataset is found."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import conceptloader as cl
from conceptloader.base import merkle
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.read.files import load_manifest
from conceptloader.format.spec.receipts import dataset_root
from tests.format.spec_reader import SpecReader
from tests.raises import raises


def plain_root(entries: list[bytes]) -> bytes:
    """As RFC 6962 defines it."""
    if len(entries) < 2:
        return hashlib.sha256(b"\0" + entries[0] if entries else b"").digest()
    split = 1 << (len(entries) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + plain_root(entries[:split]) + plain_root(entries[split:])).digest()


def test_trees_are_those_of_rfc_6962() -> None:
    for count in [*range(20), 100]:
        entries = [bytes([number]) * number for number in range(count)]
        leaves = [merkle.leaf(entry) for entry in entries]
        root = plain_root(entries)
        assert merkle.root_of(leaves) == root
        for index, found in enumerate(leaves):
            for left, beside in merkle.path_of(leaves, index):
                found = merkle.node(beside, found) if left else merkle.node(found, beside)
            assert found == root
    # of Certificate Transparency's own tests
    known = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    leaves = [merkle.leaf(bytes.fromhex(entry)) for entry in known]
    assert merkle.root_of(leaves).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The datasets plain and hashed of the same records, in several shards."""
    records = [{"id": f"d{number}" if number % 3 else None, "text": "xyz " * (number % 9)} for number in range(100)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name, receipts in (("plain", False), ("hashed", True)):
        cl.build(tmp_path / "in.jsonl", tmp_path / name, tokenizer="bytes", receipts=receipts, shard_input_bytes=1000)
    return tmp_path


def test_roots_are_of_the_documents(built: Path) -> None:
    with cl.open_dataset(built / "hashed") as dataset:
        shards = []
        first = dataset.first_documents
        for start, low, high in zip(dataset.shard_starts, first, first[1:], strict=False):
            documents = []
            for number in range(low, high):
                a, b = dataset.document_range(number)
                content = hashlib.sha256(dataset.tokens(a, b).astype("<u4").tobytes()).digest()
                place = np.array([a - start, b - a], "<u8").tobytes()
                documents.append(place + content + (dataset.document_id(number) or "").encode())
            tokens = dataset.document_range(high - 1)[1] - start
            shards.append(np.array([start, tokens, high - low], "<u8").tobytes() + plain_root(documents))
        assert len(shards) > 2
        assert dataset_root(dataset.manifest) == plain_root(shards)


def test_without_them_nothing_changes(built: Path) -> None:
    plain, hashed = (json.loads((built / name / "manifest.json").read_text()) for name in ("plain", "hashed"))
    del hashed["shards"]["document_root"], hashed["checksum"], plain["checksum"]
    assert hashed == plain
    options = json.loads((built / "plain/build.json").read_text())["options"]
    assert "receipts" not in options
    with cl.open_dataset(built / "plain") as one, cl.open_dataset(built / "hashed") as other:
        assert one.stream_fingerprint == other.stream_fingerprint
        assert one.tracks_fingerprint == other.tracks_fingerprint
        with raises(ConfigError, "receipts", "no hash", "--receipts"):
            dataset_root(one.manifest)
    assert SpecReader(built / "hashed").manifest["shards"]["document_root"]


def test_the_same_build_has_the_same_options(built: Path) -> None:
    given: dict[str, Any] = {"tokenizer": "bytes", "shard_input_bytes": 1000}
    with raises(ConfigError, "plain", "receipts: found null, expected true"):
        cl.build(built / "in.jsonl", built / "plain", receipts=True, **given)


def test_concat_keeps_them(built: Path) -> None:
    cl.concat([built / "hashed", built / "hashed"], built / "twice")
    cl.concat([built / "hashed", built / "plain"], built / "some")
    assert cl.verify(built / "twice", full=True) == []
    assert cl.verify(built / "some", full=True) == []
    once, twice = (load_manifest(built / name, None)[0].shards.document_root for name in ("hashed", "twice"))
    assert twice == once * 2
    with raises(ConfigError, "receipts", f"shard {len(once)}"):
        dataset_root(load_manifest(built / "some", None)[0])


def test_what_is_derived_keeps_them(built: Path) -> None:
    with cl.open_dataset(built / "hashed") as dataset:
        root = dataset_root(dataset.manifest)
    cl.reencode(built / "hashed", built / "again", {})
    cl.reencode(built / "plain", built / "plainer", {})
    (built / "spans.jsonl").write_text('{"id": "d1", "spans": [{"start": 0, "end": 2, "concepts": [1]}]}\n')
    command = ["annotate", str(built / "hashed"), str(built / "spans.jsonl"), "--out", str(built / "marked")]
    assert main([*command, "--track", "concepts", "--offset-unit", "tokens"]) == 0
    for name in ("again", "marked"):
        assert cl.verify(built / name, full=True) == []
        assert dataset_root(load_manifest(built / name, None)[0]) == root
    assert set(load_manifest(built / "plainer", None)[0].shards.document_root) == {None}


def test_a_recipe(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(built)
    recipe = "inputs: [in.jsonl]\nout: third\ntokenizer: bytes\nshard-input-bytes: 1000\nreceipts: true\n"
    (built / "build.yaml").write_text(recipe)
    assert main(["build", "--recipe", "build.yaml"]) == 0
    assert (built / "third/manifest.json").read_bytes() == (built / "hashed/manifest.json").read_bytes()


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """With the right checksum."""
    del manifest["checksum"]
    body = json.dumps(manifest, indent=1)[:-2]
    path.write_text(f'{body},\n "checksum": "{xxhash.xxh3_64_hexdigest(body.encode())}"\n}}\n')


@pytest.mark.parametrize("column", ["root", "tokens", "ids"])
def test_a_forgery_with_right_checksums_is_found(built: Path, column: str) -> None:
    """Whoever makes the data can make all checksums of the format right."""
    path = built / "hashed/manifest.json"
    manifest = json.loads(path.read_text())
    shards = manifest["shards"]
    if column == "root":
        shards["document_root"][1] = shards["document_root"][0]
    else:
        kind = {"tokens": "stream.bin", "ids": "documents.ids"}[column]
        file = built / f"hashed/00001.{kind}"
        data = file.read_bytes()
        data = data.replace(b"x\0", b"w\0") if column == "tokens" else data
        if column == "ids":
            offsets = data.rindex(b"d")
            data = data[:offsets] + b"D" + data[offsets + 1 :]
        file.write_bytes(data)
        entry = shards["files"][kind]
        entry["checksum"][1] = entry["sample"][1] = xxhash.xxh3_64_hexdigest(data)
        if column == "tokens":
            shards["token_checksum"][1] = entry["checksum"][1]
    write_manifest(path, manifest)
    problems = cl.verify(built / "hashed", full=True)
    assert any("tree of the documents" in str(one) and one.shard == 1 for one in problems)


@pytest.mark.parametrize("value", [[], ["0" * 63], ["A" * 64], [5], "0" * 64])
def test_columns_that_are_none(built: Path, value: object) -> None:
    path = built / "hashed/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"]["document_root"] = value
    write_manifest(path, manifest)
    with raises(FormatError, "document_root"):
        cl.open_dataset(built / "hashed")


def test_adopted_files(tmp_path: Path) -> None:
    tokens = [5, 7, 9, 2, 4, 4, 2, 2, 8]
    np.array(tokens, "<u2").tofile(tmp_path / "a.u16")
    command = ["adopt", str(tmp_path / "a.u16"), "--dtype", "uint16", "--receipts", "--out"]
    assert main([*command, str(tmp_path / "ends"), "--document-end", "2"]) == 0
    assert cl.verify(tmp_path / "ends", full=True, write_checksums=False) == []
    entries, first = [], 0
    for document in ([5, 7, 9, 2], [4, 4, 2], [2], [8]):
        content = hashlib.sha256(np.array(document, "<u4").tobytes()).digest()
        entries.append(np.array([first, len(document)], "<u8").tobytes() + content)
        first += len(document)
    (root,) = load_manifest(tmp_path / "ends", None)[0].shards.document_root
    assert root == plain_root(entries).hex()
    assert main([*command, str(tmp_path / "unknown")]) == 2
    np.array([5, -7, 9], "<i4").tofile(tmp_path / "b.bin")
    with raises(InputError, "b.bin", fix=""):
        cl_adopt = {"kind": "flat", "dtype": "int32", "document_end": 9, "receipts": True}
        cl.adopt([tmp_path / "b.bin"], tmp_path / "negative", **cl_adopt)
    assert not (tmp_path / "negative").exists()
