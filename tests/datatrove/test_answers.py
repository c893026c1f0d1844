"""Views and tables of steps by datatrove's executors: what the commands give."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datatrove.executor import LocalPipelineExecutor

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.integrations.datatrove_lib import SelectJoin, SelectWriter, TraceWriter
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import open_run, trace_steps
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
    config = {"seq_len": 32, "datasets": {"some": {"path": "at_once"}}, "order": "sequential"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    blend = cl.open_blend(tmp_path / "run.yaml")
    partition = cl.Partition(micro_batch_size=2, dp_size=1)
    start = cl.RunStart.of(blend.spec, cl.BatchSchedule.constant(4), partition, 32)
    (tmp_path / "log").mkdir()
    cl.RunLog(tmp_path / "log").append(start, blend.spec)
    trace = TraceWriter(str(tmp_path / "run.yaml"), str(tmp_path / "log"), str(tmp_path / "steps"), 1, 8)
    LocalPipelineExecutor([trace], tasks=3, workers=1, logging_dir=str(tmp_path / "c")).run()
    files = sorted((tmp_path / "steps").iterdir())
    assert len(files) == 3
    found = pa.concat_tables(pq.read_table(file) for file in files).to_pylist()
    run = open_run(tmp_path / "run.yaml", tmp_path / "log")
    assert found == [row for batch in trace_steps(run, 1, 8) for row in batch.to_pylist()]
