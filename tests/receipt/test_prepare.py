"""What receipts need of a dataset: SHA-256 trees as RFC 6962 has them, and a file that fits, or says what to do."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xxhash

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError
from conceptloader.receipts import merkle, prepare
from conceptloader.receipts.trees import FILE, dataset_root
from tests.corpora.records import write_rows
from tests.hostile.targets import resealed
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several shards, prepared."""
    folder = tmp_path_factory.mktemp("prepared")
    records = [{"id": f"d{number}" if number % 3 else None, "text": "xyz " * (number % 9)} for number in range(100)]
    write_rows(folder / "in.jsonl", records)
    cl.build(folder / "in.jsonl", folder / "ds", tokenizer="bytes", shard_input_bytes=1000)
    before = {file.name: file.read_bytes() for file in (folder / "ds").iterdir()}
    assert prepare(folder / "ds")
    after = {file.name: file.read_bytes() for file in (folder / "ds").iterdir()}
    assert {**before, FILE: after[FILE]} == after
    return folder


@pytest.fixture
def ds(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made / "ds", tmp_path / "ds"))


def root_of(path: Path | str) -> bytes:
    with cl.open_dataset(path) as dataset:
        return dataset_root(dataset.files)


def edit(path: Path, **changed: Any) -> None:
    """Of a file with a seal, which is made right again."""
    path.write_bytes(resealed(json.dumps({**json.loads(path.read_text()), **changed}).encode()))


def test_the_file_is_of_the_documents(made: Path) -> None:
    with cl.open_dataset(made / "ds") as dataset:
        shards, roots = [], []
        first = dataset.first_documents
        for start, low, high in zip(dataset.shard_starts, first, first[1:], strict=False):
            documents = []
            for number in range(low, high):
                a, b = dataset.document_range(number)
                content = hashlib.sha256(dataset.tokens(a, b).astype("<u4").tobytes()).digest()
                place = np.array([a - start, b - a], "<u8").tobytes()
                documents.append(place + content + (dataset.document_id(number) or "").encode())
            tokens = dataset.document_range(high - 1)[1] - start
            roots.append(plain_root(documents))
            shards.append(np.array([start, tokens, high - low], "<u8").tobytes() + roots[-1])
        found = json.loads((made / "ds" / FILE).read_text())
        del found["checksum"]
        assert found == {
            "format": "conceptloader-receipts",
            "version": 1,
            "stream_fingerprint": dataset.stream_fingerprint,
            "tracks_fingerprint": dataset.tracks_fingerprint,
            "document_roots": [root.hex() for root in roots],
        }
    assert len(shards) > 2
    assert root_of(made / "ds") == plain_root(shards)


@pytest.mark.parametrize(
    ("changed", "kind", "what"),
    [
        (None, ConfigError, f"no {FILE}"),
        ({"stream_fingerprint": "0" * 32}, ConfigError, "stream_fingerprint"),
        ({"tracks_fingerprint": "0" * 32}, ConfigError, "tracks_fingerprint"),
        ({"document_roots": ["0" * 64]}, FormatError, "document_roots"),
        ({"document_roots": ["A" * 64]}, FormatError, "document_roots"),
        ({"document_roots": [5]}, FormatError, "document_roots"),
        ({"version": 2}, FormatError, "version"),
        ({"more": 0}, FormatError, "more"),
    ],
)
def test_a_file_that_does_not_fit(ds: Path, changed: dict[str, Any] | None, kind: Any, what: str) -> None:
    data = (ds / FILE).read_bytes()
    assert not prepare(ds)
    if changed is None:
        (ds / FILE).unlink()
    else:
        edit(ds / FILE, **changed)
    for tried in (lambda: root_of(ds), lambda: prepare(ds, check=True)):
        with raises(kind, found="", fix=f"receipt --prepare {ds}" if kind is ConfigError else "") as caught:
            tried()
        assert what in str(caught.value)
    assert prepare(ds)
    assert (ds / FILE).read_bytes() == data


def test_a_dataset_that_is_replaced_meanwhile(ds: Path) -> None:
    (ds / FILE).unlink()

    def replace(done: int, total: int) -> None:
        if done == total:
            edit(ds / "manifest.json", created_by="another")

    with raises(FormatError, "manifest.json", fix="restart"):
        prepare(ds, progress=replace)
    assert not (ds / FILE).exists()


@pytest.mark.parametrize("column", ["root", "tokens", "ids"])
def test_a_forgery_with_right_checksums_is_found(ds: Path, column: str) -> None:
    """Whoever makes the data can make all checksums of the format right."""
    roots = json.loads((ds / FILE).read_text())["document_roots"]
    if column == "root":
        edit(ds / FILE, document_roots=[roots[0], roots[0], *roots[2:]])
    else:
        kind = {"tokens": "stream.bin", "ids": "documents.ids"}[column]
        file, shards = ds / f"00001.{kind}", json.loads((ds / "manifest.json").read_text())["shards"]
        data = file.read_bytes()
        at = data.rindex(b"d") if column == "ids" else data.index(b"x\0")
        data = data[:at] + b"D" + data[at + 1 :]
        file.write_bytes(data)
        entry = shards["files"][kind]
        entry["checksum"][1] = entry["sample"][1] = xxhash.xxh3_64_hexdigest(data)
        if column == "tokens":
            shards["token_checksum"][1] = entry["checksum"][1]
        edit(ds / "manifest.json", shards=shards)
        with raises(ConfigError, FILE, fix="--prepare"):
            root_of(ds)
        with cl.open_dataset(ds) as dataset:  # a forger makes the fingerprints right, too
            of = {"stream_fingerprint": dataset.stream_fingerprint, "tracks_fingerprint": dataset.tracks_fingerprint}
        edit(ds / FILE, **of)
    assert column == "ids" or cl.verify(ds, full=True) == []
    with raises(FormatError, "document_roots", "1 shard, the first is 1", fix="`conceptloader verify "):
        prepare(ds, check=True)


def test_the_command(ds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, command = (ds / FILE).read_bytes(), ["receipt", "--prepare", str(ds)]
    (ds / FILE).unlink()
    assert main([*command, "--workers", "2"]) == 0
    assert (ds / FILE).read_bytes() == data
    assert main([*command]) == 0
    assert main([*command, "--check"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{ds}: ") for line in said] == [
        "ready for receipts",
        "ready for receipts (as before: --check reads it)",
        "its documents are those that were prepared",
    ]
    for more in (["--samples", "5"], ["run.yaml"], ["--document", "d1"]):
        assert main([*command, *more]) == 2
    assert main(["receipt", "--run-log", "log", "--samples", "5", "--check"]) == 2
    assert main(["receipt", "--run-log", "log"]) == 2


def test_adopted_files(tmp_path: Path) -> None:
    np.array([5, 7, 9, 2, 4, 4, 2, 2, 8], "<u2").tofile(tmp_path / "a.u16")
    cl.adopt([tmp_path / "a.u16"], tmp_path / "ends", kind="flat", dtype="uint16", document_end=2)
    entries, first = [], 0
    for document in ([5, 7, 9, 2], [4, 4, 2], [2], [8]):
        content = hashlib.sha256(np.array(document, "<u4").tobytes()).digest()
        entries.append(np.array([first, len(document)], "<u8").tobytes() + content)
        first += len(document)
    assert prepare(tmp_path / "ends")
    assert root_of(tmp_path / "ends") == plain_root([np.array([0, 9, 4], "<u8").tobytes() + plain_root(entries)])
    cl.adopt([tmp_path / "a.u16"], tmp_path / "unknown", kind="flat", dtype="uint16")
    with raises(ConfigError, "unknown", "no documents in shard 0"):
        prepare(tmp_path / "unknown")
    np.array([5, -7, 9], "<i4").tofile(tmp_path / "b.bin")
    cl.adopt([tmp_path / "b.bin"], tmp_path / "negative", kind="flat", dtype="int32", document_end=9)
    with raises(FormatError, "b.bin"):
        prepare(tmp_path / "negative")
    assert not (tmp_path / "negative" / FILE).exists()


def test_other_kinds_of_datasets(ds: Path) -> None:
    """Those that refer to its files have a file of their own, or none; a store has that of a copy."""
    folder, roots = ds.parent, json.loads((ds / FILE).read_text())["document_roots"]
    cl.concat([ds, ds], folder / "twice")
    with raises(ConfigError, "twice", f"no {FILE}"):
        root_of(folder / "twice")
    assert prepare(folder / "twice")
    assert json.loads((folder / "twice" / FILE).read_text())["document_roots"] == roots * 2
    assert main(["subset", str(ds), "--where", "tokens > 9", "--out", str(folder / "view"), "--quiet"]) == 0
    with raises(FormatError, f"view: found a view of {ds}"):
        prepare(folder / "view")
    fsspec.filesystem("memory").put(str(ds), "/receipts/ds", recursive=True)
    assert root_of("memory://receipts/ds") == root_of(ds)
    with raises(ConfigError, "memory://receipts/ds", "a URL", fix="local copy"):
        prepare("memory://receipts/ds")
    fsspec.filesystem("memory").rm(f"/receipts/ds/{FILE}")
    with raises(ConfigError, "memory://receipts/ds", f"no {FILE}", fix=f"upload its {FILE}"):
        root_of("memory://receipts/ds")


def test_the_format_knows_nothing_of_it(made: Path, ds: Path) -> None:
    """A dataset that is replaced takes the file along; the manifest has no such column."""
    (ds / "Receipts.derived.json").touch()
    given = {"tokenizer": "bytes", "shard_input_bytes": 900, "overwrite": True}
    with raises(ConfigError, "overwrite", "Receipts.derived.json"):
        cl.build(made / "in.jsonl", ds, **given)
    (ds / "Receipts.derived.json").unlink()
    cl.build(made / "in.jsonl", ds, **given)
    assert not (ds / FILE).exists()
    shards = json.loads((ds / "manifest.json").read_text())["shards"]
    edit(ds / "manifest.json", shards={**shards, "document_root": [None] * len(shards["path"])})
    with raises(FormatError, "document_root"):
        cl.open_dataset(ds)
