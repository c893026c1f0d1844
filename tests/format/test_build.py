"""Builds: restarted, mixed up, disturbed, refused. Nothing that exists is ever lost or overwritten."""

import os
import shutil
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.spec.jsonfile import dump_json, seal
from conceptloader.format.tools.verify import CHECKSUMS_FORMAT, verify
from tests.corpora.small import small_corpus
from tests.raises import raises

OPTIONS = cl.writing.BuildOptions(tracks={"concepts": cl.writing.TrackOptions(vocabulary=["a", "b"])})


def begin(path, options=OPTIONS, shards=2, **more):
    return cl.writing.create_writer(path, options, plan=list(range(shards)), **more)


def write_shard(build, number):
    with build.shard(number) as writer:
        writer.add_document([number, 1, 2], spans={"concepts": [(0, 2, [number])]}, id=f"d{number}")


def contents(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_a_writer_that_is_left_alone_shows_nothing_but_temporary_files(tmp_path):
    """As after SIGKILL: the shard does not count, a restart writes it, finalize clears up."""
    build = begin(tmp_path / "ds", shards=1)
    build.shard(0).add_document([9])
    left = [name for name in os.listdir(build.path) if name.endswith(".tmp")]
    assert left
    assert not build.is_finished(0)
    with raises(FormatError, found="a build without manifest"):
        cl.open_dataset(build.path)
    write_shard(build, 0)
    cl.writing.finalize(build.path)
    assert not [name for name in os.listdir(build.path) if name.endswith(".tmp")]
    assert cl.open_dataset(build.path).num_tokens == 3


def test_a_finished_shard_is_not_written_again(tmp_path):
    build = begin(tmp_path / "ds")
    write_shard(build, 0)
    before = contents(tmp_path / "ds")
    with raises(InputError, found="shard 0 finished"):
        build.shard(0)
    assert contents(tmp_path / "ds") == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"options": cl.writing.BuildOptions(token_type="u2", tracks=OPTIONS.tracks)},
            'token_type: found "u4", expected "u2"',
        ),
        (
            {"options": cl.writing.BuildOptions(tracks={"concepts": cl.writing.TrackOptions(vocabulary=["b", "a"])})},
            r"tracks\.concepts\.vocabulary\.checksum: found",
        ),
        (
            {"options": cl.writing.BuildOptions(tracks=OPTIONS.tracks, extra={"x": 1})},
            r"extra\.x: found null, expected 1",
        ),
        ({"inputs": ["other.jsonl"]}, "found a build of other inputs, expected the same"),
        ({"shards": 3}, "found a build of another plan"),
    ],
)
def test_a_build_with_other_options_is_refused(tmp_path, changed, message):
    write_shard(begin(tmp_path / "ds"), 0)
    before = contents(tmp_path / "ds")
    with pytest.raises(ConfigError, match=message):
        begin(tmp_path / "ds", **changed)
    assert contents(tmp_path / "ds") == before


def test_other_things_in_the_directory_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with raises(ConfigError, found="files but no build.json"):
        begin(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_a_complete_dataset_is_left_alone(tmp_path):
    small_corpus().write(tmp_path / "ds", "spans")
    before = contents(tmp_path / "ds")
    with raises(ConfigError, found="a complete dataset"):
        begin(tmp_path / "ds")
    with raises(FormatError, found="manifest.json"):
        cl.writing.finalize(tmp_path / "ds")
    assert contents(tmp_path / "ds") == before


def add(build, name, data):
    with Path(build.path, name).open("ab") as file:
        file.write(data)


def replace(build, name, old, new):
    file = Path(build.path, name)
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))


def shard_of_another_build(build):
    other = begin(Path(build.path).parent / "other", inputs=["x"])
    write_shard(other, 1)
    for file in Path(other.path).glob("00001.*"):
        shutil.copy(file, build.path)


def another_shard(build):
    for file in Path(build.path).glob("00001.*"):
        shutil.copy(file, file.with_name("00000" + file.name[5:]))


UNPLANNED = [
    (lambda build: Path(build.path, "00001.shard.json").unlink(), "", "1 of 2 shards missing (1)"),
    (lambda build: add(build, "00002.stream.bin", b""), "", "00002.stream.bin (1 in all)"),
    (shard_of_another_build, "00001.shard.json: options_hash", ""),
    (another_shard, "00000.shard.json: shard", "1"),
    (lambda build: add(build, "00001.concepts.data", b"\0"), "00001.concepts.data", "5 bytes"),
    (lambda build: Path(build.path, "00000.documents.bin").unlink(), "", "00000.documents.bin"),
    (lambda build: replace(build, "00000.shard.json", b'"tokens": 3', b'"tokens": 4'), "00000.shard.json", "checksum"),
    (lambda build: replace(build, "build.json", b'"plan": [0,1]', b'"plan": [0,2]'), "build.json", "checksum"),
    (lambda build: replace(build, "concepts.vocabulary.json", b'"b"', b'"c"'), "concepts.vocabulary.json", "checksum"),
]


@pytest.mark.parametrize(("change", "where", "found"), UNPLANNED)
def test_what_was_not_planned_is_not_finalized(tmp_path, change, where, found):
    build = begin(tmp_path / "ds")
    for number in range(2):
        write_shard(build, number)
    change(build)
    before = contents(Path(build.path))
    with raises(FormatError, where, found):
        cl.writing.finalize(build.path)
    assert contents(Path(build.path)) == before


def test_planned_shards_only(tmp_path):
    build = begin(tmp_path / "ds")
    for number in (-1, 2):
        with pytest.raises(ConfigError, match=rf"found shard {number}, expected a number from 0 to 1, as planned"):
            build.shard(number)


def test_an_interrupted_creation_is_completed(tmp_path):
    """Killed between build.json and the vocabulary: the same call goes on."""
    build = begin(tmp_path / "ds")
    Path(build.path, "concepts.vocabulary.json").unlink()
    with pytest.raises(OSError, match=r"concepts\.vocabulary\.json"):
        cl.writing.open_writer(build.path)
    assert begin(tmp_path / "ds").vocabularies == build.vocabularies


@pytest.mark.parametrize(
    ("vocab_size", "token_type", "written"),
    [(300, None, "u2"), (65536, None, "u2"), (65537, None, "u4"), (300, "u4", "u4"), (None, None, "u4")],
)
def test_the_type_of_tokens(tmp_path, vocab_size, token_type, written):
    tokenizer = None if vocab_size is None else cl.writing.Tokenizer(name="t", vocab_size=vocab_size)
    build = begin(tmp_path / "ds", cl.writing.BuildOptions(tokenizer=tokenizer, token_type=token_type), shards=1)
    largest = (vocab_size or 2**32) - 1
    with build.shard(0) as writer:
        writer.add_document([0, largest])
    assert cl.writing.finalize(build.path).layouts[0].fields == (("token", written),)
    assert cl.open_dataset(build.path).tokens(0, 2).tolist() == [0, largest]


def test_builds_without_shards_or_with_unknown_codecs(tmp_path):
    with raises(ConfigError, "plan", "0 shards"):
        begin(tmp_path / "ds", shards=0)
    with pytest.raises(FormatError, match=r"track 'a': found codec 'mine', expected .*or one that is registered"):
        begin(tmp_path / "ds", cl.writing.BuildOptions(tracks={"a": cl.writing.TrackOptions(codec="mine")}))
    assert not (tmp_path / "ds").exists()


def test_files_of_another_version_are_refused(tmp_path):
    """Those beside the manifest, whose own test is in test_manifest.py."""
    sums = dump_json({"format": CHECKSUMS_FORMAT, "version": 1, "files": {}})
    write_shard(begin(tmp_path, shards=1), 0)

    def refuse(name, read):
        was = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(seal(was[:-36].replace(b'"version": 1', b'"version": 2')))
        with pytest.raises(
            FormatError, match=f"{name}: version: found 2, expected 1, .* make the file again with this"
        ):
            read(tmp_path)
        (tmp_path / name).write_bytes(was)
        read(tmp_path)

    refuse("build.json", cl.writing.open_writer)
    refuse("00000.shard.json", cl.writing.finalize)
    (tmp_path / "checksums.json").write_bytes(sums)
    refuse("checksums.json", verify)
