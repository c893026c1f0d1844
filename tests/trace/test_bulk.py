"""Tables of steps and of what was seen: reads, damage, the commands. What is in them: test_answers.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml

from conceptloader.blend import open_blend
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.parquet import write_parquet
from conceptloader.format.read.bulk import gather
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.order.progress.runlog import History, RunLog, RunStart
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run, exposure, locate_concept, locate_document, trace_step, trace_steps
from tests.corpora.small import written
from tests.raises import raises


def table(run: Run, first: int, stop: int) -> list[dict[str, Any]]:
    return [row for batch in trace_steps(run, first, stop) for row in batch.to_pylist()]


class Noted:
    """Files of the numbers 0, 1, ..., and what was read of them."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        self.sizes.append(size)
        return np.arange(offset // 8, (offset + size) // 8, dtype=np.int64).tobytes()


def test_ranges_near_each_other_are_one_read_and_others_are_not() -> None:
    for low, high, sizes in (
        ([0, 10, 5], [3, 12, 6], [12]),
        ([90_000, 20, 10, 22], [90_002, 22, 13, 23], [13, 2]),  # in the order of the file
        ([1 << 40, (1 << 40) + 1_000, 0], [(1 << 40) + 1, (1 << 40) + 1_001, 1], [1, 1_001]),
    ):
        files = Noted()
        found = gather(files, "x", 0, np.int64, np.array(low), np.array(high))  # type: ignore[arg-type]
        assert found.tolist() == [n for a, b in zip(low, high, strict=True) for n in range(a, b)]
        assert files.sizes == [8 * size for size in sizes]


def test_concept_ids_without_names_may_have_32_bits(tmp_path: Path) -> None:
    document = [1] * 9, {"c": [(0, 4, [3, 1 << 31, (1 << 32) - 2])]}
    tokenizer = Tokenizer(name="t", vocab_size=9, eos_id=0)
    path = written(tmp_path / "d", [document], mode="stream-with-metadata", tokenizer=tokenizer, tracks={"c": {}})
    blend = open_blend({"seq_len": 8, "datasets": {"d": {"path": str(path)}}})
    start = RunStart(
        step=0, consumed=0, batch=[[0, 1]], micro_batch_size=1, dp_size=1, scheme="contiguous", seq_len=8, spec="0" * 32
    )
    (row,) = table(Run(blend=blend, history=History([start])), 0, 1)
    assert " ".join(row) == "step sample micro_batch dp_rank slot dataset epoch window document id start end inputs c"
    assert row["c"] == [3, 1 << 31, (1 << 32) - 2]


def test_without_a_log(run: Run) -> None:
    lonely = Run(blend=run.blend)
    assert all(one.places == [] for one in locate_document(lonely, "web-9"))
    assert {one.epoch for one in locate_document(run, "books-3")} == {0}, "without a length the first epoch is answered"
    with pytest.raises(ConfigError, match="steps cannot be mapped to samples"):
        trace_step(lonely, 0)
    with pytest.raises(ConfigError, match="steps cannot be mapped to samples"):
        exposure(lonely, until=3)
    with pytest.raises(ConfigError, match="expected until"):
        exposure(lonely)
    with pytest.raises(ConfigError, match="steps cannot be mapped to samples"):
        next(trace_steps(lonely, 0, 2))
    with pytest.raises(ConfigError, match="found 5:5"):
        next(trace_steps(run, 5, 5))


def test_opt_outs(run: Run) -> None:
    seen = exposure(run, until=20)
    rows = seen.documents(ids=["web-7", "nobody", "books-3"]).to_pylist()
    assert [(row["dataset"], row["id"]) for row in rows] == [("books", "books-3"), ("web", "web-7"), (None, "nobody")]
    every = {(row["dataset"], row["id"]): row for row in seen.documents().to_pylist()}
    assert rows[:2] == [every["books", "books-3"], every["web", "web-7"]]
    assert (rows[2]["document"], rows[2]["seen"], rows[2]["first_step"]) == (None, 0, None)


@pytest.mark.parametrize(
    ("kind", "at"),
    [("documents.bin", 80), ("documents.bin", -20), ("concepts.spans", -20), ("concepts.spans", 24 * 12)],
)
def test_damaged_tables_are_refused(tmp_path: Path, kind: str, at: int) -> None:
    raw = random_documents(200, seed=5, mean_length=60)
    path = Path(write_dataset(tmp_path / "d", raw, encoding="spans"))
    file = path / f"00000.{kind}"
    data = bytearray(file.read_bytes())
    data[at + 5 if at > 0 else at] ^= 0x40
    file.write_bytes(data)
    config = {"seq_len": 16, "datasets": {"d": {"path": str(path)}}, "loader": {"verify_files": False}}
    start = RunStart(
        step=0,
        consumed=0,
        batch=[[0, 50]],
        micro_batch_size=50,
        dp_size=1,
        scheme="contiguous",
        seq_len=16,
        spec="0" * 32,
    )
    with pytest.raises(FormatError):
        list(trace_steps(Run(blend=open_blend(config), history=History([start])), 0, 14))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = random_documents(40, seed=1)
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({"seq_len": 32, "datasets": {"d": {"path": write_dataset(tmp_path / "d", raw)}}})
    )
    config, log = tmp_path / "run.yaml", tmp_path / "log"
    log.mkdir()
    from conceptloader.trace import open_run

    blend = open_run(config).blend
    spec = blend.spec
    start = RunStart(
        step=0,
        consumed=0,
        batch=[[0, 8]],
        micro_batch_size=4,
        dp_size=2,
        scheme="contiguous",
        seq_len=32,
        spec=spec.hash,
    )
    RunLog(log).append(start, spec, blend.config.to_dict())
    run = open_run(config, log)

    def told(*words: object, code: int = 0) -> str:
        assert main([*map(str, words)]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    common = (config, "--run-log", log)
    assert [json.loads(line) for line in told("trace", *common, "--steps", "2:4").splitlines()] == table(run, 2, 4)
    out = tmp_path / "steps.parquet"
    told("trace", *common, "--steps", "0:9", "--format", "parquet", "--out", out)
    assert pyarrow.parquet.read_table(out).to_pylist() == table(run, 0, 9)
    told("trace", *common, "--steps", "0:9", "--out", tmp_path / "steps.jsonl")
    assert [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == table(run, 0, 9)
    sources = exposure(run, until=5).sources().to_pylist()
    lines = told("exposure", *common, "--until", 5, "--format", "jsonl").splitlines()
    assert [json.loads(line) for line in lines] == sources
    header, *shown = (line.split() for line in told("exposure", *common, "--until", 5).splitlines())
    assert header == list(sources[0])
    assert [dict(zip(header, row, strict=True))["tokens"].replace(",", "") for row in shown] == [
        str(one["tokens"]) for one in sources
    ]
    assert json.loads(told("exposure", *common, "--until", 5, "--json")) == {"rows": sources}
    (tmp_path / "out.txt").write_text("\ufeffdoc-3\r\n\ndoc-99 \n")  # as editors leave it
    rows = told(
        "exposure", *common, "--until", 5, "--by", "document", "--documents", tmp_path / "out.txt", "--save-every", 2,
        "--format", "jsonl",
    )  # fmt: skip
    assert [json.loads(line) for line in rows.splitlines()] == exposure(run, until=5).documents(
        ["doc-3", "doc-99"], [2, 4]
    ).to_pylist()
    told("exposure", config, "--samples", 40, "--by", "concept", "--format", "parquet", "--out", tmp_path / "c.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "c.parquet").num_rows == 20
    assert "expected A:B" in _usage(capsys, "trace", *common, "--steps", "4:4")
    assert "--out: found nothing" in told("trace", *common, "--steps", "2:4", "--format", "parquet", code=2)
    assert "--format without --steps" in told("trace", *common, "--step", "2", "--format", "parquet", code=2)
    assert "--steps and --rank" in told("trace", *common, "--steps", "2:4", "--rank", "0", code=2)
    assert "expected --by document" in told("exposure", *common, "--until", 5, "--save-every", 2, code=2)
    assert "track: found 'red'" in told("exposure", *common, "--until", 5, "--by", "concept", "--track", "red", code=2)
    assert not list(tmp_path.glob(".*"))


def _usage(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit, match="2"):
        main([*map(str, words)])
    return capsys.readouterr().err


@pytest.mark.parametrize("rows", [0, 1, 4, 8, 9])
def test_a_parquet_table_of_just_some_row_groups_is_whole(tmp_path: Path, rows: int) -> None:
    batches = [pyarrow.record_batch({"n": pyarrow.array(range(k, min(k + 8, rows)))}) for k in range(0, rows or 1, 8)]
    assert write_parquet(batches, str(tmp_path / "table"), row_group=4) == rows
    assert pyarrow.parquet.read_table(tmp_path / "table")["n"].to_pylist() == list(range(rows))


def test_what_does_not_exist(run: Run) -> None:
    with raises(ConfigError, found="no 'nobody' in books, code, web"):
        locate_document(run, "nobody")
    with raises(ConfigError, fix="name the dataset"):
        locate_document(run, 3)
    with raises(ConfigError, found="'music'"):
        locate_document(run, 3, dataset="music")
    with raises(ConfigError, found="'colour'"):
        locate_concept(run, "colour", 1)
