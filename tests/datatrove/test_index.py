"""The concept index by datatrove's executors: the bytes of the command."""

from pathlib import Path

import pytest
from datatrove.executor import LocalPipelineExecutor

from conceptloader.errors import ConfigError
from conceptloader.format.index import index_directory
from conceptloader.ingest.index import build_index
from conceptloader.integrations.datatrove_lib import ConceptIndexJoin, ConceptIndexWriter
from conceptloader.testing import random_documents, write_dataset
from tests.raises import raises


def content(path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(index_directory(path, "concepts")).iterdir()}


@pytest.mark.parametrize("tasks", [1, 3, 7])
def test_any_number_of_tasks_gives_the_same_bytes(tmp_path: Path, tasks: int) -> None:
    path = write_dataset(tmp_path / "data", random_documents(80, seed=1), shards=5)
    writer = LocalPipelineExecutor([ConceptIndexWriter(path)], tasks=tasks, workers=1, logging_dir=str(tmp_path / "a"))
    writer.run()
    join = LocalPipelineExecutor([ConceptIndexJoin(path)], tasks=1, workers=1, logging_dir=str(tmp_path / "b"))
    join.run()
    found = content(path)
    assert "index.json" in found
    build_index(path, anew=True)
    assert content(path) == found


def test_joining_is_for_one_task(tmp_path: Path) -> None:
    with raises(ConfigError, found="2 tasks"):
        ConceptIndexJoin(tmp_path).run(rank=0, world_size=2)
