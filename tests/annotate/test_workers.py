"""Annotating by several processes: bytes, counts and errors are those of one."""

import json
import resource
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.base.workers import run_tasks
from conceptloader.errors import ConfigError, InputError, ReadError
from conceptloader.ingest.annotate import placing, reading
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.records.inputs import find_sources
from tests.annotate.test_annotate import write_rows
from tests.annotate.test_characters import build
from tests.cli.test_strangers import small_disk
from tests.corpora.tokenizers import byte_level
from tests.raises import raises

BAD = '{"id": "d1"}\n{broken\n{"id": "d1", "start": 5, "end": 1, "concepts": []}\n'
WORDS = ["the red cat", "and the blue bird", "a", "red bird and blue cat"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ds: shards of text; two and more processes work on any annotations of it."""
    for name in ("_WITH_TEXT", "_WITHOUT"):
        monkeypatch.setattr(placing, name, 0)
    monkeypatch.setattr(reading, "_WORTH", 0)
    byte_level().save(str(tmp_path / "tokenizer.json"))
    rows = [{"id": f"d{k}", "text": " ".join(WORDS[j % 4] for j in range(k % 7 + 1))} for k in range(60)]
    build(tmp_path, rows, shard_input_bytes=500)
    assert len(cl.open_dataset(tmp_path / "ds").manifest.shards) > 3
    return tmp_path


def spans_of(k: int) -> list[dict[str, Any]]:
    return [{"id": f"d{k}", "start": start, "end": start + 2, "concepts": [k % 5, 7]} for start in (0, 1)]


def inputs(folder: Path) -> list[Path]:
    """Three files of annotations in another order than the documents, which overlap and partly hold no token."""
    rows = [row for k in range(59, -1, -1) for row in spans_of(k)]
    rows += [{"id": f"d{k}", "concepts": [9]} for k in range(0, 60, 9)]
    return [
        write_rows(folder / f"rows{k}{kind}", rows[k::3]) for k, kind in enumerate((".jsonl", ".parquet", ".jsonl"))
    ]


def files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(path.iterdir())}


@pytest.mark.parametrize("unit", ["character", "token"])
def test_the_number_of_processes_does_not_matter(folder: Path, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = AnnotateOptions(track="c", span_unit=unit, overlap="levels", max_unaligned_spans=1)
    given = inputs(folder)
    if unit == "token":
        for path in (path for path in given if path.suffix == ".jsonl"):  # the document "a" has few tokens
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            write_rows(path, [row for row in rows if row.get("end", 0) < 3])
    ran: list[tuple[int, int]] = []
    for module in (placing, reading):

        def run(task: Any, arguments: Any, workers: int, *rest: Any) -> None:
            ran.append((workers, len(arguments)))
            run_tasks(task, arguments, workers, *rest)

        monkeypatch.setattr(module, "run_tasks", run)
    found = {}
    for workers in (1, 2):
        annotate(folder / "ds", given, folder / f"out{workers}", options, workers=workers)
        found[workers] = files(folder / f"out{workers}")
    assert found[1] == found[2]
    assert {name.split(".")[1] for name in found[1]} >= {"c", "c_level2"}
    assert ran[0] == (2, 3)  # files to read, and then parts to place
    assert ran[1][1] > 2
    if unit == "character":
        lost = cl.open_dataset(folder / "out2").manifest.extra["annotated"]["c"]["loss"]
        assert lost["lost"] > 3
        assert lost["examples"]


def test_bad_rows_and_columns_of_all_files_count(folder: Path) -> None:
    given = inputs(folder)
    for path in (given[0], given[2]):
        path.write_text(
            path.read_text() + '{"id": "d1"}\n{broken\n{"id": "d1", "start": 5, "end": 1, "concepts": []}\n'
        )
    columns = {"document": "number", "spans": "ranges"}  # of the last file's last row alone
    options = AnnotateOptions(
        track="c", span_unit="character", overlap="levels", max_unaligned_spans=1, columns=columns
    )
    bad: dict[int, list[tuple[str, str, str]]] = {1: [], 2: []}

    def note(found: list[tuple[str, str, str]], *one: str) -> None:
        found.append((one[0], one[1], one[2]))

    for workers, found in bad.items():
        with raises(InputError, given[0], found="no column 'number' in any row of 3 files"):
            annotate(folder / "ds", given, folder / "out", options, None, partial(note, found), workers)
        found.clear()
    given[2].write_text(given[2].read_text() + json.dumps({"number": 3, "ranges": []}) + "\n")
    for workers, found in bad.items():
        out = folder / f"out{workers}"
        manifest = annotate(folder / "ds", given, out, options, None, partial(note, found), workers)
        assert manifest.extra["annotated"]["c"]["bad_rows"] == len(found) == 6
    places = [(path, int(place.split()[1])) for path, place, _ in bad[1]]
    assert bad[1] == bad[2]
    assert places == sorted(places), "in the order of the files and their lines"
    assert files(folder / "out1") == files(folder / "out2")


@pytest.mark.parametrize("named", [True, False])
def test_errors_of_processes_are_those_of_one(folder: Path, named: bool) -> None:
    """A row that cannot be read, in the process that reads; offsets outside of the document, in the one that places."""
    rows = [*spans_of(1), {"id": "d2", "start": 0, "end": 900, "concepts": [1]}]
    bad = {"id": "d2", "start": 3, "end": 1, "concepts": [1]} if named else rows[-1]
    given = [write_rows(folder / "a.jsonl", [*spans_of(40), bad]), write_rows(folder / "b.jsonl", spans_of(1))]
    options = AnnotateOptions(track="c", overlap="levels")
    for workers in (1, 2):
        with raises(InputError, f"{given[0]}: line 3"):
            annotate(folder / "ds", given, folder / "out", options, workers=workers)
        assert sorted(path.name for path in folder.iterdir() if "out" in path.name) == []


def test_a_full_disk_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By processes that read, where all rows are sorted, and where they are kept for processes that place them."""
    options = AnnotateOptions(track="c", span_unit="character", overlap="levels", max_unaligned_spans=1)
    given, checked = inputs(folder), placing.Placing.checked
    before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]

    def full(self: placing.Placing, tables: Any) -> Any:
        for table in checked(self, tables):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            yield table

    for size in (2_000, 20_000, 1 << 30):
        if size == 1 << 30:
            monkeypatch.setattr(placing.Placing, "checked", full)
        with small_disk(size), raises(ReadError, "out", "cannot be written: "):
            annotate(folder / "ds", given, folder / "out", options, workers=2)
        assert [path.name for path in folder.iterdir() if "out" in path.name] == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == before


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_list_of_bad_rows_is_its_own(folder: Path, workers: int) -> None:
    def full(*_: str) -> None:
        raise OSError(28, "no room for the list")

    given = inputs(folder)
    given[0].write_text(given[0].read_text() + BAD)
    options = AnnotateOptions(track="c", span_unit="character", overlap="levels", max_unaligned_spans=1)
    with pytest.raises(OSError, match="no room for the list") as caught:
        annotate(folder / "ds", given, folder / "out", options, None, full, workers)
    assert caught.type is OSError
    assert not (folder / "out").exists()


def test_the_number_of_processes(folder: Path) -> None:
    for workers in (0, -1, None, "2"):
        with raises(ConfigError, "workers", repr(workers)):
            annotate(folder / "ds", inputs(folder), folder / "out", AnnotateOptions(track="c"), workers=workers)  # type: ignore[arg-type]


def test_a_process_that_reads_ends_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports each batch, and the first report that nobody takes ends it, not the end of its file."""
    source, blocks, real = tmp_path / "rows.jsonl", list[int](), reading.read_blocks
    source.write_text(json.dumps({"document": 0, "concepts": [1], "body": "x" * 100_000}) + "\n")
    source.write_text(source.read_text() * 60)

    def counted(*arguments: Any) -> Any:
        for block in real(*arguments):
            blocks.append(len(block[0]))
            yield block

    def gone(_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(reading, "read_blocks", counted)
    options = AnnotateOptions(track="c", ignored=["body"])
    reading._read_file(str(tmp_path), find_sources([source]), options, False, 0, lambda _: None)
    assert len(blocks) > 3
    blocks.clear()
    with pytest.raises((BrokenPipeError, ReadError)):
        reading._read_file(str(tmp_path), find_sources([source]), options, False, 0, gone)
    assert len(blocks) == 1
