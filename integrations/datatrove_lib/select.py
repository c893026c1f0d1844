"""Pipeline steps for datatrove: views by selection, a part a task."""

import os
from collections.abc import Iterable

from conceptloader.trace.select.views import Ask, select

from .step import Directory, Step, Task


class SelectWriter(Step):
    """Finds what a task of any number of tasks finds; `SelectJoin`, with the same arguments, makes the views of it.

    dataset, out: directories that all tasks see. Raises, when run: as `select`.
    """

    name = "Select"

    def __init__(self, dataset: Directory, out: Directory, ask: Ask, roots: Iterable[str] | None = None) -> None:
        super().__init__()
        self.dataset, self.out, self.ask = os.path.abspath(dataset), os.path.abspath(out), ask
        self.roots = None if roots is None else list(roots)

    def work(self, task: Task | None) -> None:
        select(self.dataset, self.out, self.ask, roots=self.roots, task=task)


class SelectJoin(SelectWriter):
    """Makes the views: the one step of a pipeline with one task that depends on the others. Raises as they."""

    name, alone = "Select: join", "join"
