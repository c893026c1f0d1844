"""A manifest that is not as the format says: each fault has its own error, naming file, key, found and expected."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ConfigError, FormatError, ReadError
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
    "magic": (put("format", "parquet"), r'format: found "parquet", expected "conceptstream"'),
    "no magic": (drop("format"), r'format: found null, expected "conceptstream"'),
    "version": (put("version", 4), "version: found 4, expected 1, which this release of conceptloader reads; make the"),
    "version type": (put("version", "1"), 'version: found "1", expected 1, which'),
    "boolean": (put("version", True), "version: found true, expected 1, which"),
    "mode": (put("mode", "stream"), 'mode: found "stream", expected one of stream-with-metadata'),
    "tracks in a token stream": (put("mode", "token-stream"), "tracks: found 2 tracks, expected none"),
    "unknown key": (
        put("tokeniser", {}),
        "tokeniser: found an unknown key .*did you mean tokenizer",
    ),
    "unknown inner key": (put("shards", "sums", []), "shards.sums: found an unknown key"),
    "unknown file kind": (
        lambda m: m["shards"]["files"].update({"x.data": m["shards"]["files"]["stream.bin"]}),
        "files.x.data: found an unknown key",
    ),
    "missing column": (drop("shards", "tokens"), "shards.tokens: found nothing, expected a list"),
    "short column": (put("shards", "tokens", [9]), "shards.tokens: found 1 elements, expected 3, one per shard"),
    "number as text": (put("shards", "tokens", 0, "9"), r'shards.tokens\[0\]: found "9", expected an integer'),
    "number with a point": (put("shards", "tokens", 0, 9.0), r"shards.tokens\[0\]: found 9.0, expected an integer"),
    "negative number": (put("shards", "tokens", 2, -1), r"shards.tokens\[2\]: found -1, expected an integer in \[0"),
    "huge number": (put("shards", "tokens", 2, 2**63), r"shards.tokens\[2\]: found 9223372036854775808, expected"),
    "sum overflows": (put("shards", "tokens", [2**55, 2**55, 2**55]), "tokens in all, expected 1 to"),
    "null": (put("shards", "documents", 0, None), r"shards.documents\[0\]: found null"),
    "total": (put("num_tokens", 23), "num_tokens: found 23, expected 24, as in the shard table"),
    "no shard": (put("num_shards", 0), r"num_shards: found 0, expected 3, as in"),
    "too many shards": (put("num_shards", 2**40), "num_shards: found 1099511627776"),
    "block size": (put("block_tokens", 0), r"block_tokens: found 0, expected an integer from 1 to"),
    "other block size": (put("block_tokens", 5), r"documents.bin.size\[0\]: found 64, expected 56"),
    "layout index": (put("shards", "layout", 0, 1), r"shards.layout\[0\]: found 1, expected an index into 1 layouts"),
    "token type": (put("layouts", [[["token", "i2"]]]), 'token: found "i2", expected one of the types u1, u2, u4'),
    "field type": (put("layouts", [[["token", "u2"], ["a", "O8"]]]), 'a: found "O8", expected one of the types'),
    "field name": (put("layouts", [[["token", "u2"], ["a/b", "u1"]]]), 'found "a/b", expected a name of'),
    "first field": (put("layouts", [[["x", "u2"]]]), 'found fields x, expected distinct names, "token" first'),
    "repeated field": (put("layouts", [[["token", "u2"], ["token", "u2"]]]), "expected distinct names"),
    "layout shape": (put("layouts", [[["token"]]]), r"layouts\[0\]\[0\]: found \['token'\], expected a list of 2"),
    "no layout": (put("layouts", []), "layouts: found none, expected at least one"),
    "different fields": (
        lambda m: m["layouts"].append([["token", "u4"]]),
        r"layouts\[1\]: found \{\}, expected the fields of the first layout, \{'weight': 'f4'\}",
    ),
    "vocabulary size": (
        put("tokenizer", "vocab_size", 0),
        r"found vocab_size 0, expected an integer in \[1, ",
    ),
    "eos": (put("tokenizer", "eos_id", 300), r"tokenizer: found eos_id 300, expected an id below the vocab_size"),
    "track name": (
        lambda m: m["tracks"].update({"../x": m["tracks"]["source"]}),
        r'tracks: found "../x", expected a name of lower-case letters',
    ),
    "reserved name": (lambda m: m["tracks"].update({"tokens": m["tracks"]["source"]}), "expected a name other than"),
    "too many tracks": (
        lambda m: m["tracks"].update({f"t{i}": m["tracks"]["source"] for i in range(15)}),
        "found 17 tracks, expected at most 16",
    ),
    "ladder": (put("tracks", "source", "max_spans", [1, 0]), r"max_spans: found \[1, 0\], expected a list of 21"),
    "falling ladder": (put("tracks", "source", "max_spans", 3, 0), "source.max_spans: found .* do not decrease"),
    "items": (put("tracks", "source", "max_items", -1), "max_items: found -1"),
    "stream size": (put(*FILES, "stream.bin", "size", 0, 55), r"stream.bin.size\[0\]: found 55, expected"),
    "longer stream": (put(*FILES, "stream.bin", "size", 0, 60), r"found 60, expected exactly tokens \* itemsize"),
    "no stream": (put(*FILES, "stream.bin", "size", 0, None), r"stream.bin.size\[0\]: found -1, expected room for"),
    "offset": (put("shards", "offset", 0, 6), "expected room for offset"),
    "index size": (put(*FILES, "concepts.index", "size", 0, 24), r"concepts.index.size\[0\]: found 24, expected 32"),
    "records": (put("shards", "tracks", "concepts", "records", 0, 2**32), r"records\[0\]: found 4294967296"),
    "entries": (put("shards", "tracks", "concepts", "entries", 0, 1), r"concepts.spans.size\[0\]: found"),
    "encoding": (put("shards", "tracks", "concepts", "encoding", 0, "zip"), r'encoding\[0\]: found "zip", expected'),
    "no dense field": (
        put("shards", "tracks", "concepts", "encoding", 0, "dense"),
        "expected one with the field concepts_id",
    ),
    "dense field of another type": (
        lambda m: (
            m["layouts"].append([["token", "u2"], ["weight", "f4"], ["concepts_id", "f4"]]),
            put("shards", "layout", 0, 1)(m),
            put("shards", "tracks", "concepts", "encoding", 0, "dense")(m),
            put(*FILES, "stream.bin", "size", 0, 90)(m),
        ),
        "expected one with the field concepts_id of type u4",
    ),
    "ids without hashes": (
        put(*FILES, "documents.hash", "size", 0, None),
        r"documents.hash.size\[0\]: found -1, expected a multiple of 16 exactly where there are ids",
    ),
    "no sample": (put(*FILES, "stream.bin", "sample", 0, None), r"stream.bin.size\[0\].* null exactly where sample"),
    "hash size": (put(*FILES, "documents.hash", "size", 0, 17), r"documents.hash.size\[0\]: found 17"),
    "ids size": (put(*FILES, "documents.ids", "size", 0, 31), r"documents.ids.size\[0\]: found 31, expected null, or"),
    "documents": (put("shards", "documents", 0, 4), "num_documents|documents.bin.size"),
    "no documents": (put(*FILES, "documents.bin", "size", 0, None), r"documents\[0\]: found 3, expected 0 where"),
    "checksum": (
        put(*FILES, "stream.bin", "checksum", 0, "xyz"),
        r'checksum\[0\]: found "xyz", expected 16 lower-case',
    ),
    "upper-case checksum": (put("shards", "token_checksum", 0, "A" * 16), r'token_checksum\[0\]: found "AAAAAAAA'),
    "absolute path": (put("shards", "path", 0, "/etc/passwd"), r"path: found '/etc/passwd', expected a file below"),
    "climbing path": (put("shards", "path", 0, "../../x"), r"path: found '../../x', expected a file below"),
    "sly path": (put("shards", "path", 0, "a/../../../x"), r"path: found 'a/../../../x', expected a file below"),
    "directory": (put("shards", "path", 0, "a/.."), r"path: found 'a/..', expected the path of a file"),
    "empty path": (put("shards", "path", 0, ""), r"path: found '', expected the path of a file"),
    "zero byte": (put("shards", "path", 0, "a\0"), "expected the path of a file"),
    "file path": (
        put(*FILES, "stream.bin", "path", ["../../../x", None, None]),
        r"stream.bin.path: found '../../../x', expected a file below",
    ),
    "vocabulary path": (
        put("tracks", "source", "vocabulary", {"path": "/x", "size": 1, "checksum": "0" * 16, "count": 1}),
        "vocabulary: found '/x', expected a file below",
    ),
    "foreign": (put("shards", "foreign", [1, None, None]), r"foreign\[0\]: found 1, expected a mapping"),
    "foreign path": (
        put("shards", "foreign", [{"kind": "x", "mtime_ns": 1, "index": "/x", "index_checksum": None}, None, None]),
        "foreign.index: found '/x', expected a file below",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_own_message(copy: Path, name: str) -> None:
    edit, message = FAULTS[name]
    rewrite(copy, edit)
    with pytest.raises(FormatError, match=message) as caught:
        cl.open_dataset(copy)
    assert str(caught.value).startswith(str(copy / "manifest.json"))


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
        (b"[" * 100_000, "no valid JSON"),
        (b"[]", "no checksum"),
    ],
)
def test_a_file_that_is_no_manifest(copy: Path, data: bytes, message: str) -> None:
    (copy / "manifest.json").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        cl.open_dataset(copy)


def test_a_number_that_no_float_holds(copy: Path) -> None:
    """It would be infinite, which no identity can be made of."""
    text = dump_json({"extra": {"a": "1e999"}}).split(b',\n "checksum"')[0]
    (copy / "manifest.json").write_bytes(seal(text.replace(b'"1e999"', b"-1e999")))
    with raises(FormatError, "manifest.json", "-1e999 is more than a number of 64 bits holds"):
        cl.open_dataset(copy)


def test_sealed_duplicates_are_refused(copy: Path) -> None:
    head = (copy / "manifest.json").read_bytes()[:-36]
    (copy / "manifest.json").write_bytes(seal(head + b',\n "mode": "document"'))
    with raises(FormatError, found="duplicate key 'mode'"):
        cl.open_dataset(copy)


def test_an_edited_manifest_is_refused(copy: Path) -> None:
    file = copy / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"vocab_size": 300', b'"vocab_size": 301'))
    with pytest.raises(FormatError, match=r"manifest\.json: found checksum [0-9a-f]+, expected [0-9a-f]+"):
        cl.open_dataset(copy)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_replaces_a_value_is_an_error_of_ours_or_harmless(copy: Path, data: st.DataObject) -> None:
    """Any value of the manifest replaced by any other: opening and reading raise our errors, and nothing else."""
    before = (copy / "manifest.json").read_bytes()
    values = (
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5)
    )

    def edit(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.integers(0, 5)) == 0:
                at[key] = data.draw(values | st.lists(values, max_size=3))
                return
            at = at[key]

    rewrite(copy, edit)
    try:
        ds = cl.open_dataset(copy)
        for window in ds.windows(5):
            for track in ds.tracks:
                window[track].decode()
        ds.find_document("a")
    except ConceptloaderError:
        pass
    finally:
        (copy / "manifest.json").write_bytes(before)


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
