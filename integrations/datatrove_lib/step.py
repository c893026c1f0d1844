"""Pipeline steps that read no documents: each task of so many does its part, or one does all that is left."""

import os
from collections.abc import Iterable
from typing import Any

from datatrove.pipeline.base import PipelineStep

from conceptloader.errors import ConfigError

Directory = str | os.PathLike[str]
Task = tuple[int, int]
"""Its number, of how many."""


class Step(PipelineStep):  # type: ignore[misc]
    """alone: what it is called in messages if it must be the one step of a pipeline with one task; else ""."""

    type = "💾 - WRITER"
    alone = ""

    def run(self, data: Iterable[Any] | None = None, rank: int = 0, world_size: int = 1) -> None:
        if self.alone and world_size != 1:
            raise ConfigError(
                self.alone, f"{world_size} tasks", "one task", "pass it to an executor of its own with tasks=1"
            )
        self.work(None if self.alone else (rank, world_size))

    def work(self, task: Task | None) -> None:
        """The part of a task; all that is left if it is None."""
        raise NotImplementedError
