"""What random mutants of ingest survived without: samples of inputs, and which of several faults is named."""

from pathlib import Path

import pytest

from conceptloader.errors import InputError
from conceptloader.ingest.build.plan import default_shard_bytes
from conceptloader.ingest.records import inputs
from conceptloader.ingest.records.inputs import Source, find_sources
from tests.raises import raises


def test_an_edit_at_any_sampled_place_of_an_input_is_noticed(tmp_path: Path) -> None:
    """They are spread over the whole file, its end included."""
    file, unit, count = tmp_path / "x.jsonl", inputs._SAMPLE_BYTES, inputs._SAMPLES
    size = 10 * count * unit
    file.write_bytes(bytes(size))
    before = find_sources([file])[0].sample
    step = (size - unit) // (count - 1)
    for k in range(count):
        for at in (k * step, k * step + unit - 1):
            with file.open("r+b") as edited:
                edited.seek(at)
                edited.write(b"x")
            assert find_sources([file])[0].sample != before, (k, at)
            with file.open("r+b") as edited:
                edited.seek(at)
                edited.write(b"\0")
    assert find_sources([file])[0].sample == before


def test_shards_of_a_large_corpus() -> None:
    """About 64 of them; the sizes are rounded up, so that there is no small one more."""

    def shard_bytes(*sizes: int) -> int:
        stamps = [Source(path="x", name="x", compression=None, row_groups=None, size=n, sample="") for n in sizes]
        return default_shard_bytes(stamps)

    assert shard_bytes(1) == shard_bytes(64 * 64 << 20) == 64 << 20
    assert shard_bytes(64 * 64 << 20, 1) == (64 << 20) + 1
    assert shard_bytes(64 * 1000 << 20) == 1000 << 20
    assert shard_bytes(1 << 60) == 16 << 30


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
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


def test_a_file_that_is_there_twice_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    (tmp_path / "soft.jsonl").symlink_to(tmp_path / "a.jsonl")
    (tmp_path / "hard.jsonl").hardlink_to(tmp_path / "a.jsonl")
    assert len(find_sources([tmp_path])) == 3
    for name in ("soft", "hard"):
        assert f"{tmp_path}/{name}.jsonl: found the same file as {tmp_path}/a.jsonl; its records are" in caplog.text
