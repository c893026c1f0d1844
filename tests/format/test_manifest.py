"""A manifest that is not as the format says: each fault has its own error, naming file, key, found and expected."""

import json
import os
import shutil
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.spec.jsonfile import dump_json, seal
from conceptloader.format.tools.verify import verify
from tests.corpora.small import small_corpus
from tests.raises import raises


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("manifest") / "ds"
    small_corpus().write(path, "spans")
    return path


@pytest.fixture
def copy(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "ds"))


def rewrite(path, edit):
    """Change the manifest and seal it again, as a careless or hostile writer would."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["checksum"]
    edit(manifest)
    (path / "manifest.json").write_bytes(dump_json(manifest))


FAULTS = """
format = "parquet" => format
version = 4 => version
mode = "stream" => mode
mode = "token-stream" => tracks
tokeniser = {} => tokeniser
shards/files/x.data = shards/files/stream.bin => shards.files.x.data
shards/tokens => shards.tokens
shards/tokens = [9] => shards.tokens
shards/tokens/0 = "9" => shards.tokens[0]
shards/tokens/2 = 9223372036854775808 => shards.tokens[2]
shards/tokens = [36028797018963968, 36028797018963968, 36028797018963968] => shards.tokens
num_tokens = 23 => num_tokens
num_shards = 0 => num_shards
num_shards = 1099511627776 => num_shards
block_tokens = 0 => block_tokens
block_tokens = 5 => shards.files.documents.bin.size[0]
shards/layout/0 = 1 => shards.layout[0]
layouts = [[["token", "i2"]]] => layouts[0].token
layouts = [[["token", "u2"], ["a", "O8"]]] => layouts[0].a
layouts = [[["x", "u2"]]] => layouts[0]
layouts/1 = [["token", "u4"]] => layouts[1]
tokenizer/vocab_size = 0 => tokenizer
tokenizer/eos_id = 300 => tokenizer
tracks/..%x = tracks/source => tracks
tracks/tokens = tracks/source => tracks
tracks/t0 = tracks/source; tracks/t1 = tracks/source; tracks/t2 = tracks/source; tracks/t3 = tracks/source; tracks/t4 = tracks/source; tracks/t5 = tracks/source; tracks/t6 = tracks/source; tracks/t7 = tracks/source; tracks/t8 = tracks/source; tracks/t9 = tracks/source; tracks/t10 = tracks/source; tracks/t11 = tracks/source; tracks/t12 = tracks/source; tracks/t13 = tracks/source; tracks/t14 = tracks/source => tracks
tracks/source/max_spans = [1, 0] => tracks.source.max_spans
tracks/source/max_items = -1 => tracks.source.max_items
shards/files/stream.bin/size/0 = 55 => shards.files.stream.bin.size[0]
shards/files/stream.bin/size/0 = null => shards.files.stream.bin.size[0]
shards/offset/0 = 6 => shards.files.stream.bin.size[0]
shards/tracks/concepts/records/0 = 4294967296 => shards.tracks.concepts.records[0]
shards/tracks/concepts/entries/0 = 1 => shards.files.concepts.spans.size[0]
shards/tracks/concepts/entries/0 = 0; shards/files/concepts.spans/size/0 = 32 => shards.tracks.concepts.entries[0]
shards/tracks/concepts/encoding/0 = "zip" => shards.tracks.concepts.encoding[0]
shards/tracks/concepts/encoding/0 = "dense" => shards.tracks.concepts.encoding: layout[0]
layouts/1 = [["token", "u2"], ["weight", "f4"], ["concepts_id", "f4"]]; shards/layout/0 = 1; shards/tracks/concepts/encoding/0 = "dense"; shards/files/stream.bin/size/0 = 90 => shards.tracks.concepts.encoding: layout[0]
shards/files/documents.hash/size/0 = null => shards.files.documents.hash.size[0]
shards/files/documents.ids/size/0 = 31 => shards.files.documents.ids.size[0]
shards/files/stream.bin/sample/0 = null => shards.files.stream.bin.size[0]
shards/documents/0 = 4 => shards.files.documents.bin.size[0]
shards/files/documents.bin/size/0 = null => shards.documents[0]
shards/files/stream.bin/checksum/0 = "xyz" => shards.files.stream.bin.checksum[0]
shards/path/0 = "/etc/passwd" => shards.path
shards/path/0 = "../../x" => shards.path
shards/path/0 = "a/../../../x" => shards.path
shards/path/0 = "a/.." => shards.path
shards/path/0 = "" => shards.path
shards/path/0 = "a\\u0000" => shards.path
shards/files/stream.bin/path = ["../../../x", null, null] => shards.files.stream.bin.path
tracks/source/vocabulary = {"path": "/x", "size": 1, "checksum": "0000000000000000", "count": 1} => tracks.vocabulary
shards/foreign = [1, null, null] => shards.foreign[0]
shards/foreign = [{"kind": "x", "mtime_ns": 1, "index": "/x", "index_checksum": null}, null, null] => shards.foreign.index
"""  # noqa: E501 - places in a manifest, the value there (none: it is gone), and the place that the error names


@pytest.mark.parametrize("fault", FAULTS.strip().splitlines())
def test_each_fault_is_named_by_its_key(original, copy, fault):
    edits, _, where = fault.rpartition(" => ")

    def edit(manifest):
        def place(path):
            at = manifest
            *keys, last = (int(key) if key.isdigit() else key.replace("%", "/") for key in path.split("/"))
            for key in keys:
                at = at[key]
            return at, last

        for one in edits.split("; "):
            path, _, value = one.partition(" = ")
            at, last = place(path)
            if not value:
                del at[last]
            elif value[0].isalpha() and "/" in value:
                holder, key = place(value)
                at[last] = holder[key]
            else:
                made = json.loads(value)
                at[last if isinstance(at, dict) else slice(last, last + 1)] = made if isinstance(at, dict) else [made]

    rewrite(copy, edit)
    with pytest.raises(FormatError) as caught:
        cl.open_dataset(copy)
    assert caught.value.path == f"{copy / 'manifest.json'}: {where}"
    assert caught.value.found
    assert caught.value.expected
    with pytest.raises(FormatError) as among_others:  # where manifests are checked together
        cl.open_blend(blended(original, copy))
    assert among_others.value.path == f"datasets.d1: {caught.value.path}"
    assert among_others.value.args[1:] == caught.value.args[1:]


def blended(*paths):
    datasets = {f"d{k}": {"path": str(path), "weight": 1} for k, path in enumerate(paths)}
    return {"seq_len": 2, "allow_mixed_vocabularies": True, "datasets": datasets}


def test_manifests_that_are_checked_together_are_what_each_is_alone(tmp_path):
    paths = [tmp_path / f"{k}" for k in range(6)]
    for k, path in enumerate(paths):
        documents = cl.testing.random_documents(3 + k, seed=k)
        cl.testing.write_dataset(path, documents, shards=1 + k % 3, encoding="spans" if k % 2 else "dense")
    for path, dataset in zip(paths, cl.open_blend(blended(*paths)).datasets.values(), strict=True):
        assert dataset.manifest.dump() == (path / "manifest.json").read_bytes()


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
def test_a_file_that_is_no_manifest(copy, data, message):
    (copy / "manifest.json").write_bytes(data)
    with pytest.raises(FormatError, match=rf"manifest\.json: .*{message}"):
        cl.open_dataset(copy)


def test_an_edited_manifest_is_refused(copy):
    file = copy / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"vocab_size": 300', b'"vocab_size": 301'))
    with pytest.raises(FormatError, match=r"manifest\.json: found checksum [0-9a-f]+, expected [0-9a-f]+"):
        cl.open_dataset(copy)


def test_symbolic_links_out_of_the_roots_are_refused(copy, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    file = copy / "00000.stream.bin"
    file.rename(outside / file.name)
    file.symlink_to(outside / file.name)
    with raises(FormatError, "00000.stream.bin", expected="a file below"):
        cl.open_dataset(copy).tokens(0, 1)
    assert cl.open_dataset(copy, roots=[outside]).tokens(0, 1).tolist() == [10]
    (problem,) = verify(copy)
    assert problem.file == str(file)


def test_symbolic_links_below_the_roots_are_followed(copy):
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


def test_a_dataset_behind_a_symbolic_link_is_fine(original, tmp_path):
    (tmp_path / "link").symlink_to(original)
    assert cl.open_dataset(tmp_path / "link").tokens(0, 1).tolist() == [10]


def test_directories_that_hold_no_dataset(tmp_path, copy):
    with raises(ConfigError, found="no directory"):
        cl.open_dataset(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with raises(FormatError, found="no manifest.json"):
        cl.open_dataset(tmp_path / "empty")
    with raises(ConfigError, "roots", "the single path"):
        cl.open_dataset(copy, roots="/tmp")
    (copy / "manifest.json").unlink()
    with raises(FormatError, found="a build without manifest.json"):
        cl.open_dataset(copy)


def test_an_unreadable_manifest(copy):
    (copy / "manifest.json").unlink()
    os.mkdir(copy / "manifest.json")
    with pytest.raises(OSError, match=r"manifest\.json: cannot read .*Is a directory"):
        cl.open_dataset(copy)
