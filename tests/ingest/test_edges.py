"""Shards of large corpora; links, and files that are there twice."""

from pathlib import Path

from conceptloader.errors import InputError
from conceptloader.ingest.build.plan import default_shard_bytes
from conceptloader.ingest.records.inputs import Source, find_sources
from tests.raises import raises


def test_shards_of_a_large_corpus():
    """About 64 of them; the sizes are rounded up, so that there is no small one more."""
    for sizes, wanted in (([1], 64 << 20), ([4 << 30, 1], (64 << 20) + 1), ([1 << 60], 16 << 30)):
        made = [Source(path="x", name="x", compression=None, row_groups=None, size=n, sample="") for n in sizes]
        assert default_shard_bytes(made) == wanted


def test_linked_folders_are_read_once(tmp_path):
    """os.walk leaves them out, and would go around in a ring."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "elsewhere" / "deep" / "b.jsonl").write_text('{"text": "b"}\n')
    (tmp_path / "corpus" / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "corpus" / "more").symlink_to(tmp_path / "elsewhere")
    found = [Path(source.path) for source in find_sources([tmp_path / "corpus"])]
    assert [path.name for path in found] == ["a.jsonl", "b.jsonl"]
    (tmp_path / "elsewhere" / "ring").symlink_to(tmp_path / "corpus")
    with raises(InputError, found="a folder that is read already, as ", fix="rm "):
        find_sources([tmp_path / "corpus"])


def test_a_file_that_is_there_twice_is_said(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    (tmp_path / "soft.jsonl").symlink_to(tmp_path / "a.jsonl")
    (tmp_path / "hard.jsonl").hardlink_to(tmp_path / "a.jsonl")
    assert len(find_sources([tmp_path])) == 3
    for name in ("soft", "hard"):
        assert f"{tmp_path}/{name}.jsonl: found the same file as {tmp_path}/a.jsonl; its records are" in caplog.text
