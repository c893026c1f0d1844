"""What random mutants of ingest survived without: samples of inputs, and which of several faults is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import InputError
from conceptloader.ingest.align.spans import check_ids
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.build.plan import default_shard_bytes
from conceptloader.ingest.records import inputs
from conceptloader.ingest.records.batch import BadRow, Ragged
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.inputs import Source, find_sources
from conceptloader.ingest.records.tokenizer import load_tokenizer
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


def test_how_many_shards_have_errors(tmp_path: Path) -> None:
    options = IngestOptions(columns=Columns(), tokenizer=load_tokenizer("bytes"), shard_input_bytes=1)
    for bad in (1, 2, 3):
        for number in range(4):
            line = '{"text": 1}' if number < bad else json.dumps({"text": "x" * 100})
            (tmp_path / f"{number}.jsonl").write_text(line)
        with pytest.raises(InputError) as caught:
            build_dataset(find_sources(sorted(tmp_path.glob("*.jsonl"))), tmp_path / f"ds{bad}", options)
        assert (f"and errors in {bad - 1} other shard" in str(caught.value)) == (bad > 1)


def test_the_first_token_outside_of_the_vocabulary_is_named() -> None:
    good = np.array([0, 9, 9, 0, 5], np.int64)
    offsets = np.array([0, 2, 2, 5], np.int64)
    check_ids(Ragged(good, offsets), 10)
    for wrong, row, position in [(0, 0, 0), (1, 0, 1), (2, 2, 0), (4, 2, 2)]:
        for value in (-1, 10):
            values = good.copy()
            values[wrong:] = value
            with pytest.raises(BadRow, match=f"found token {value} at position {position}") as caught:
                check_ids(Ragged(values, offsets), 10)
            assert caught.value.row == row


def annotated(folder: Path, rows: list[dict[str, Any]]) -> Path:
    write_rows(folder / "rows.jsonl", rows)
    options = AnnotateOptions(track="t", span_unit="token")
    annotate(folder / "ds", [folder / "rows.jsonl"], folder / "out", options)
    return folder / "out"


def test_the_first_annotation_of_an_unknown_document_is_named(tmp_path: Path) -> None:
    written(tmp_path / "ds", [([1, 2, 3],), ([4, 5],)])
    with raises(InputError, "line 2", "document 2"):
        annotated(tmp_path, [{"document": d, "start": 0, "end": 1, "concepts": [1]} for d in (0, 2, 1, 7)])


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


def test_what_is_left_out_of_a_folder_and_what_is_there_twice_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.jsonl", "b.txt", "c.jsonl.xz", "d.json", ".hidden"):
        (folder / name).write_text('{"text": "a"}')
    assert len(find_sources([folder])) == 1
    assert f"{folder}: skipped 3 files of other kinds, such as {folder}/b.txt" in caplog.text
    (folder / "soft.jsonl").symlink_to(folder / "a.jsonl")
    (folder / "hard.jsonl").hardlink_to(folder / "a.jsonl")
    caplog.clear()
    assert len(find_sources([folder])) == 3
    for name in ("soft", "hard"):
        assert f"{folder}/{name}.jsonl: found the same file as {folder}/a.jsonl; its records are" in caplog.text


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
