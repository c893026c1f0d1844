"""What random mutants of ingest survived without: samples of inputs, and which of several faults is named."""

from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import InputError
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.plan import default_shard_bytes
from conceptloader.ingest.records import inputs
from conceptloader.ingest.records.inputs import Source, find_sources
from tests.corpora.records import write_rows
from tests.corpora.small import written
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


def annotated(folder: Path, rows: list[dict[str, Any]]) -> Path:
    write_rows(folder / "rows.jsonl", rows)
    options = AnnotateOptions(track="t", span_unit="token")
    annotate(folder / "ds", [folder / "rows.jsonl"], folder / "out", options)
    return folder / "out"


def test_shards_of_a_large_corpus() -> None:
    """About 64 of them; the sizes are rounded up, so that there is no small one more."""

    def shard_bytes(*sizes: int) -> int:
        stamps = [Source(path="x", name="x", compression=None, row_groups=None, size=n, sample="") for n in sizes]
        return default_shard_bytes(stamps)

    assert shard_bytes(1) == shard_bytes(64 * 64 << 20) == 64 << 20
    assert shard_bytes(64 * 64 << 20, 1) == (64 << 20) + 1
    assert shard_bytes(64 * 1000 << 20) == 1000 << 20
    assert shard_bytes(1 << 60) == 16 << 30


def test_annotations_beside_documents_without_an_id(tmp_path: Path) -> None:
    written(tmp_path / "ds", [([1, 2, 3], {}, f"d{number}" if number in (0, 3, 5) else "") for number in range(6)])
    rows = [{"id": f"d{n}", "start": 0, "end": 2, "concepts": [n]} for n in (5, 0, 3)]
    with cl.open_dataset(annotated(tmp_path, rows)) as ds:
        assert ds.spans("t", 0, 18).start.tolist() == [0, 9, 15]


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


@pytest.mark.parametrize("first", ["oops", "[", "[1, 2]"])
def test_a_bad_record_at_the_very_beginning_is_left_out_like_others(tmp_path: Path, first: str) -> None:
    (tmp_path / "in.jsonl").write_text(first + '\n{"text": "a"}\n')
    bad: list[tuple[str, str, str]] = []
    with pytest.raises(InputError, match=r"line 1: found .*--bad-records FILE"):
        cl.build(tmp_path / "in.jsonl", tmp_path / "out", tokenizer="bytes")
    cl.build(tmp_path / "in.jsonl", tmp_path / "out", tokenizer="bytes", on_bad=lambda *found: bad.append(found))
    assert [where for _, where, _ in bad] == ["line 1"]
    assert cl.open_dataset(tmp_path / "out").num_documents == 1


def test_bad_records_are_not_listed_in_a_file_of_other_things(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\noops\n')
    command = [
        "build",
        str(tmp_path / "b.jsonl"),
        "--out",
        str(tmp_path / "out"),
        "--tokenizer",
        "bytes",
        "--bad-records",
    ]
    assert main([*command, str(tmp_path / "a.jsonl")]) == 2
    assert "a.jsonl: found a file of another kind" in capsys.readouterr().err
    assert (tmp_path / "a.jsonl").read_text() == '{"text": "a"}\noops\n'
    for _ in range(2):  # a record is listed once
        assert main([*command, str(tmp_path / "bad"), "--overwrite"]) == 0
        assert len((tmp_path / "bad").read_text().splitlines()) == 1
