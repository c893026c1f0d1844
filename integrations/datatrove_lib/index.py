"""Pipeline steps for datatrove: the concept index of a dataset, some shards a task, then joined."""

import os
from collections.abc import Iterable
from typing import Any

from datatrove.pipeline.base import PipelineStep

from conceptloader.errors import ConfigError
from conceptloader.ingest.index import build_index


class ConceptIndexWriter(PipelineStep):  # type: ignore[misc]
    """Writes the index of a track for the shards of a task, of any number of tasks; `ConceptIndexJoin` completes it.

    dataset: directory that all tasks see. roots: directories that may hold its shards.

    Raises, when run: ConfigError for a track without concepts, FormatError for a damaged dataset.
    """

    name = "Concept index"
    type = "💾 - WRITER"

    def __init__(
        self, dataset: str | os.PathLike[str], track: str = "concepts", roots: Iterable[str] | None = None
    ) -> None:
        super().__init__()
        self.dataset, self.track = os.path.abspath(dataset), track
        self.roots = None if roots is None else list(roots)

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        build_index(self.dataset, self.track, roots=self.roots, task=(rank, world_size))


class ConceptIndexJoin(ConceptIndexWriter):
    """Joins what the tasks wrote: the one step of a pipeline with one task that depends on theirs. Raises as they."""

    name = "Concept index: join"

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        one_task(world_size)
        build_index(self.dataset, self.track, roots=self.roots)


def one_task(world_size: int) -> None:
    """Raises: ConfigError for a step of more tasks than one."""
    if world_size != 1:
        raise ConfigError(f"join: found {world_size} tasks, expected one; give it an executor of its own")
