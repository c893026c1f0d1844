"""Views by datatrove's executors: what the command gives."""

from pathlib import Path

import pytest
from datatrove.executor import LocalPipelineExecutor

from conceptloader.errors import ConfigError
from conceptloader.integrations.datatrove_lib import SelectJoin, SelectWriter
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace.select import views
from conceptloader.trace.select.views import Ask, select
from tests.raises import raises


def test_any_number_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "CHUNK", 9)
    path = write_dataset(tmp_path / "data", random_documents(80, seed=1), shards=5)
    ask = Ask(where="tokens > 40 and 'concept-2' in concepts")
    writer = SelectWriter(path, tmp_path / "by_tasks", ask)
    LocalPipelineExecutor([writer], tasks=3, workers=1, logging_dir=str(tmp_path / "a")).run()
    join = SelectJoin(path, tmp_path / "by_tasks", ask)
    with raises(ConfigError, found="2 tasks"):
        join.run(rank=0, world_size=2)
    LocalPipelineExecutor([join], tasks=1, workers=1, logging_dir=str(tmp_path / "b")).run()
    select(path, tmp_path / "at_once", ask)
    for name in ("manifest.json", "runs.bin"):
        assert (tmp_path / "by_tasks" / name).read_bytes() == (tmp_path / "at_once" / name).read_bytes()
