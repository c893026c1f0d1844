"""Views and tables of steps by datatrove's executors: what the commands give."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from datatrove.executor import LocalPipelineExecutor

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.integrations.datatrove_lib import ExposureWriter, SelectJoin, SelectWriter, TableJoin, TraceWriter
from conceptloader.integrations.datatrove_lib.answers import TableWriter
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace.select import views
from conceptloader.trace.select.views import Ask, select


def test_any_number_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "CHUNK", 9)
    path = write_dataset(tmp_path / "data", random_documents(80, seed=1), shards=5)
    ask = Ask(where="tokens > 40 and 'concept-2' in concepts")
    writer = SelectWriter(path, tmp_path / "by_tasks", ask)
    LocalPipelineExecutor([writer], tasks=3, workers=1, logging_dir=str(tmp_path / "a")).run()
    join = SelectJoin(path, tmp_path / "by_tasks", ask)
    with pytest.raises(ConfigError, match="found 2 tasks, expected one"):
        join.run(rank=0, world_size=2)
    LocalPipelineExecutor([join], tasks=1, workers=1, logging_dir=str(tmp_path / "b")).run()
    select(path, tmp_path / "at_once", ask)
    for name in ("manifest.json", "runs.bin"):
        assert (tmp_path / "by_tasks" / name).read_bytes() == (tmp_path / "at_once" / name).read_bytes()


@pytest.fixture(scope="module")
def run_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a dataset of five shards and a view of it, with its log beside it."""
    tmp_path = tmp_path_factory.mktemp("run")
    data = write_dataset(tmp_path / "data", random_documents(80, seed=1), shards=5)
    select(data, tmp_path / "some", Ask(where="document % 3 > 0"))
    config = {
        "seq_len": 32,
        "datasets": {"data": {"path": "data", "weight": 2}, "some": {"path": "some", "weight": 1}},
        "concepts": {"concepts": {}},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    blend = cl.open_blend(path)
    partition = cl.Partition(micro_batch_size=2, dp_size=1)
    start = cl.RunStart.of(blend.spec, cl.BatchSchedule.constant(4), partition, 32)
    (tmp_path / "log").mkdir()
    cl.RunLog(tmp_path / "log").append(start, blend.spec)
    return path


@pytest.mark.parametrize("table", ["trace", "documents", "concepts"])
def test_a_table_of_any_number_of_tasks_is_that_of_the_command(
    run_yaml: Path, tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, log = str(run_yaml), str(run_yaml.parent / "log")
    out = str(tmp_path / "tasks.parquet")
    until = ["exposure", config, "--log", log, "--until", "8", "--by"]
    writer: TableWriter
    if table == "trace":
        writer, command = TraceWriter(config, log, out, 1, 8), ["trace", config, "--log", log, "--steps", "1:8"]
    elif table == "documents":
        writer, command = (
            ExposureWriter(config, log, out, 8, checkpoints=[4, 8]),
            [*until, "document", "--save-every", "4"],
        )
    else:
        writer, command = ExposureWriter(config, log, out, 8, by="concept"), [*until, "concept"]
    join = TableJoin(writer)
    assert main([*command, "--format", "parquet", "--out", str(tmp_path / "one.parquet")]) == 0
    wanted = (tmp_path / "one.parquet").read_bytes()
    assert pq.read_table(tmp_path / "one.parquet").num_rows > 5
    for tasks in (1, 3, 7):
        executor = LocalPipelineExecutor([writer], tasks=tasks, workers=1, logging_dir=str(tmp_path / f"{tasks}"))
        executor.run()
        join.run()
        assert Path(out).read_bytes() == wanted
        join.run()  # again: it was done
        Path(out).unlink()
    writer.run(rank=0, world_size=2)
    with pytest.raises(ConfigError, match=r"found 00000-of-00002\.arrow, expected each part of one number of tasks"):
        join.run()
    with pytest.raises(ConfigError, match="found 2 tasks, expected one"):
        join.run(rank=0, world_size=2)


def test_more_tasks_than_steps(run_yaml: Path, tmp_path: Path) -> None:
    writer = TraceWriter(str(run_yaml), str(run_yaml.parent / "log"), str(tmp_path / "out"), 1, 3)
    with pytest.raises(ConfigError, match="found 4 tasks for 2 steps"):
        writer.run(rank=0, world_size=4)


def test_parts_of_other_arguments_are_refused(run_yaml: Path, tmp_path: Path) -> None:
    """As of a pipeline that was killed, changed and started again: the tasks that had ended are not run once more."""
    config, log, out = str(run_yaml), str(run_yaml.parent / "log"), str(tmp_path / "seen.parquet")
    ExposureWriter(config, log, out, 4).run(rank=0, world_size=2)
    changed = ExposureWriter(config, log, out, 8)
    changed.run(rank=1, world_size=2)
    with pytest.raises(ConfigError, match="found parts of a table that was asked for with other arguments"):
        TableJoin(changed).run()
    assert not Path(out).exists()
    changed.run(rank=0, world_size=2)
    mine = tmp_path / "seen.parquet.parts" / "notes.txt"
    mine.write_text("not of the tasks")
    left = mine.with_name(".00001-of-00002.arrow.0123456789abcdef.tmp")  # of a task that was killed
    left.write_bytes(b"")
    TableJoin(changed).run()
    assert list(mine.parent.iterdir()) == [mine]
