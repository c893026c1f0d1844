"""Pipeline steps for datatrove: the concept index of a dataset, some shards a task, then joined."""

import os
from collections.abc import Iterable

from conceptloader.trace.index import build_index

from .step import Directory, Step, Task


class ConceptIndexWriter(Step):
    """Writes the index of a track for the shards of a task, of any number of tasks; `ConceptIndexJoin` completes it.

    Raises, when run: ConfigError for a track without concepts, FormatError for a corrupt dataset.

    Args:
        dataset: Directory that all tasks see.
        roots: Directories that may hold its shards.
    """

    name = "Concept index"

    def __init__(self, dataset: Directory, track: str = "concepts", roots: Iterable[str] | None = None) -> None:
        super().__init__()
        self.dataset, self.track = os.path.abspath(dataset), track
        self.roots = None if roots is None else list(roots)

    def work(self, task: Task | None) -> None:
        build_index(self.dataset, self.track, roots=self.roots, task=task)


class ConceptIndexJoin(ConceptIndexWriter):
    """Joins what the tasks wrote: the one step of a pipeline with one task that depends on theirs. Raises as they."""

    name, alone = "Concept index: join", "join"
