"""The concept index by datatrove's executors: the bytes of the command."""

import shutil
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor

from conceptloader.errors import ConfigError
from conceptloader.format.read.index import index_directory
from conceptloader.integrations.datatrove_lib import ConceptIndexJoin, ConceptIndexWriter
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace.index import build_index
from tests.raises import raises


def content(path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(index_directory(path, "concepts")).iterdir()}


def test_tasks_give_the_bytes_of_the_command(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", random_documents(80, seed=1), shards=5)
    LocalPipelineExecutor([ConceptIndexWriter(path)], tasks=3, workers=1, logging_dir=str(tmp_path / "a")).run()
    LocalPipelineExecutor([ConceptIndexJoin(path)], tasks=1, workers=1, logging_dir=str(tmp_path / "b")).run()
    found = content(path)
    assert "index.json" in found
    shutil.rmtree(index_directory(path, "concepts"))
    build_index(path)
    assert content(path) == found
    with raises(ConfigError, found="2 tasks"):
        ConceptIndexJoin(tmp_path).run(rank=0, world_size=2)
