"""A manifest that is not as the format says: each fault has its own error, naming file, key, found and expected."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.spec.jsonfile import dump_json, seal
from conceptloader.format.tools.verify import verify
from tests.corpora.small import small_corpus
from tests.raises import raises

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifest") / "ds"
    small_corpus().write(path, "spans")
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "ds"))


def rewrite(path: Path, edit: Edit) -> None:
    """Change the manifest and seal it again, as a careless or hostile writer would."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["checksum"]
    edit(manifest)
    (path / "manifest.json").write_bytes(dump_json(manifest))


def put(*keys: Any) -> Edit:
    """An edit that sets the value at a path of keys: put("shards", "tokens", 0, -1)."""

    def edit(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in keys[:-2]:
            at = at[key]
        at[keys[-2]] = keys[-1]

    return edit


def drop(*keys: Any) -> Edit:
    def edit(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in keys[:-1]:
            at = at[key]
        del at[keys[-1]]

    return edit


FILES = ("shards", "files")

FAULTS = {
    "magic": (put("format", "parquet"), "format"),
    "version": (put("version", 4), "version"),
    "mode": (put("mode", "stream"), "mode"),
    "tracks in a token stream": (put("mode", "token-stream"), "tracks"),
    "unknown key": (put("tokeniser", {}), "tokeniser"),
    "unknown file kind": (
        lambda m: m["shards"]["files"].update({"x.data": m["shards"]["files"]["stream.bin"]}),
        "shards.files.x.data",
    ),
    "missing column": (drop("shards", "tokens"), "shards.tokens"),
    "short column": (put("shards", "tokens", [9]), "shards.tokens"),
    "number as text": (put("shards", "tokens", 0, "9"), "shards.tokens[0]"),
    "huge number": (put("shards", "tokens", 2, 2**63), "shards.tokens[2]"),
    "sum overflows": (put("shards", "tokens", [2**55, 2**55, 2**55]), "shards.tokens"),
    "total": (put("num_tokens", 23), "num_tokens"),
    "no shard": (put("num_shards", 0), "num_shards"),
    "too many shards": (put("num_shards", 2**40), "num_shards"),
    "block size": (put("block_tokens", 0), "block_tokens"),
    "other block size": (put("block_tokens", 5), "shards.files.documents.bin.size[0]"),
    "layout index": (put("shards", "layout", 0, 1), "shards.layout[0]"),
    "token type": (put("layouts", [[["token", "i2"]]]), "layouts[0].token"),
    "field type": (put("layouts", [[["token", "u2"], ["a", "O8"]]]), "layouts[0].a"),
    "first field": (put("layouts", [[["x", "u2"]]]), "layouts[0]"),
    "different fields": (lambda m: m["layouts"].append([["token", "u4"]]), "layouts[1]"),
    "vocabulary size": (put("tokenizer", "vocab_size", 0), "tokenizer"),
    "eos": (put("tokenizer", "eos_id", 300), "tokenizer"),
    "track name": (lambda m: m["tracks"].update({"../x": m["tracks"]["source"]}), "tracks"),
    "reserved name": (lambda m: m["tracks"].update({"tokens": m["tracks"]["source"]}), "tracks"),
    "too many tracks": (lambda m: m["tracks"].update({f"t{i}": m["tracks"]["source"] for i in range(15)}), "tracks"),
    "ladder": (put("tracks", "source", "max_spans", [1, 0]), "tracks.source.max_spans"),
    "items": (put("tracks", "source", "max_items", -1), "tracks.source.max_items"),
    "stream size": (put(*FILES, "stream.bin", "size", 0, 55), "shards.files.stream.bin.size[0]"),
    "no stream": (put(*FILES, "stream.bin", "size", 0, None), "shards.files.stream.bin.size[0]"),
    "offset": (put("shards", "offset", 0, 6), "shards.files.stream.bin.size[0]"),
    "records": (put("shards", "tracks", "concepts", "records", 0, 2**32), "shards.tracks.concepts.records[0]"),
    "entries": (put("shards", "tracks", "concepts", "entries", 0, 1), "shards.files.concepts.spans.size[0]"),
    "encoding": (put("shards", "tracks", "concepts", "encoding", 0, "zip"), "shards.tracks.concepts.encoding[0]"),
    "no dense field": (
        put("shards", "tracks", "concepts", "encoding", 0, "dense"),
        "shards.tracks.concepts.encoding: layout[0]",
    ),
    "dense field of another type": (
        lambda m: (
            m["layouts"].append([["token", "u2"], ["weight", "f4"], ["concepts_id", "f4"]]),
            put("shards", "layout", 0, 1)(m),
            put("shards", "tracks", "concepts", "encoding", 0, "dense")(m),
            put(*FILES, "stream.bin", "size", 0, 90)(m),
        ),
        "shards.tracks.concepts.encoding: layout[0]",
    ),
    "ids without hashes": (put(*FILES, "documents.hash", "size", 0, None), "shards.files.documents.hash.size[0]"),
    "no sample": (put(*FILES, "stream.bin", "sample", 0, None), "shards.files.stream.bin.size[0]"),
    "documents": (put("shards", "documents", 0, 4), "shards.files.documents.bin.size[0]"),
    "no documents": (put(*FILES, "documents.bin", "size", 0, None), "shards.documents[0]"),
    "checksum": (put(*FILES, "stream.bin", "checksum", 0, "xyz"), "shards.files.stream.bin.checksum[0]"),
    "absolute path": (put("shards", "path", 0, "/etc/passwd"), "shards.path"),
    "climbing path": (put("shards", "path", 0, "../../x"), "shards.path"),
    "sly path": (put("shards", "path", 0, "a/../../../x"), "shards.path"),
    "directory": (put("shards", "path", 0, "a/.."), "shards.path"),
    "empty path": (put("shards", "path", 0, ""), "shards.path"),
    "zero byte": (put("shards", "path", 0, "a\0"), "shards.path"),
    "file path": (put(*FILES, "stream.bin", "path", ["../../../x", None, None]), "shards.files.stream.bin.path"),
    "vocabulary path": (
        put("tracks", "source", "vocabulary", {"path": "/x", "size": 1, "checksum": "0" * 16, "count": 1}),
        "tracks.vocabulary",
    ),
    "foreign": (put("shards", "foreign", [1, None, None]), "shards.foreign[0]"),
    "foreign path": (
        put("shards", "foreign", [{"kind": "x", "mtime_ns": 1, "index": "/x", "index_checksum": None}, None, None]),
        "shards.foreign.index",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_by_its_key(copy: Path, name: str) -> None:
    edit, where = FAULTS[name]
    rewrite(copy, edit)
    with pytest.raises(FormatError) as caught:
        cl.open_dataset(copy)
    assert caught.value.path == ": ".join([str(copy / "manifest.json"), *filter(None, [where])])
    assert caught.value.found
    assert caught.value.expected


def test_an_edit_that_changes_nothing_is_fine(copy: Path) -> None:
    rewrite(copy, lambda manifest: None)
    assert verify(copy, full=True) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"\xff\xfe", "no valid JSON"),
        (b'{"a": 1}\n', "no checksum at the end"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1, "a": 2}', "duplicate key 'a'"),
        (seal(b'{"mode": "stream", "mode": "document"'), "duplicate key 'mode'"),
        (b"[" * 100_000, "no valid JSON"),
        (b'{"a":' * 100_000, "no valid JSON"),
        (b"1" * 1_000_000, "no (valid JSON|checksum)"),
        (b"[]", "no checksum"),
        # It would be infinite, which no identity can be made of.
        (seal(b'{"extra": {"a": -1e999}'), "-1e999 is more than a number of 64 bits holds"),
    ],
)
def test_a_file_that_is_no_manifest(copy: Path, data: bytes, message: str) -> None:
    (copy / "manifest.json").write_bytes(data)
    with pytest.raises(FormatError, match=rf"manifest\.json: .*{message}"):
        cl.open_dataset(copy)


def test_an_edited_manifest_is_refused(copy: Path) -> None:
    file = copy / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"vocab_size": 300', b'"vocab_size": 301'))
    with pytest.raises(FormatError, match=r"manifest\.json: found checksum [0-9a-f]+, expected [0-9a-f]+"):
        cl.open_dataset(copy)


def test_symbolic_links_out_of_the_roots_are_refused(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    file = copy / "00000.stream.bin"
    file.rename(outside / file.name)
    file.symlink_to(outside / file.name)
    with raises(FormatError, "00000.stream.bin", expected="a file below"):
        cl.open_dataset(copy).tokens(0, 1)
    assert cl.open_dataset(copy, roots=[outside]).tokens(0, 1).tolist() == [10]
    (problem,) = verify(copy)
    assert problem.file == str(file)


def test_symbolic_links_below_the_roots_are_followed(copy: Path) -> None:
    file, beside = copy / "00000.stream.bin", copy.parent / "beside"
    beside.mkdir()
    file.rename(beside / "stream")
    (beside / "link").symlink_to("stream")
    file.symlink_to("../beside/link")
    assert cl.open_dataset(copy).tokens(0, 1).tolist() == [10]
    assert verify(copy) == []
    (beside / "stream").unlink()
    with raises(ReadError, "stream", "cannot be opened: No such file"):
        cl.open_dataset(copy).tokens(0, 1)
    (beside / "stream").symlink_to("link")
    with raises(ReadError, "00000.stream.bin", "cannot be looked at: Too many levels of symbolic links"):
        cl.open_dataset(copy).tokens(0, 1)


def test_a_dataset_behind_a_symbolic_link_is_fine(original: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(original)
    assert cl.open_dataset(tmp_path / "link").tokens(0, 1).tolist() == [10]


def test_directories_that_hold_no_dataset(tmp_path: Path, copy: Path) -> None:
    with raises(ConfigError, found="no directory"):
        cl.open_dataset(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with raises(FormatError, found="no manifest.json"):
        cl.open_dataset(tmp_path / "empty")
    with raises(ConfigError, "roots", "the single path"):
        cl.open_dataset(copy, roots="/tmp")  # type: ignore[arg-type]
    (copy / "manifest.json").unlink()
    with raises(FormatError, found="a build without manifest.json"):
        cl.open_dataset(copy)


def test_an_unreadable_manifest(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    os.mkdir(copy / "manifest.json")
    with pytest.raises(OSError, match=r"manifest\.json: cannot read .*Is a directory"):
        cl.open_dataset(copy)
