"""Pipeline steps for datatrove: each task builds its share of the shards, then one completes the dataset."""

import os
from collections.abc import Sequence
from typing import Any

from conceptloader.ingest.build.simple import build

from .step import Directory, Step, Task


class ConceptBuild(Step):
    """Writes the shards of a task, of any number of tasks, as `conceptloader.build`; `ConceptBuildFinish` completes it.

    It reads the inputs itself: a line that is no record raises, where a reader of datatrove skips it. The bytes of the
    dataset depend on inputs and options alone. A task that is run again keeps the shards that are finished.

    Raises, when run: see `conceptloader.build`.

    Args:
        inputs: Files, or directories of files, that all tasks see.
        out: Directory of the dataset, that all tasks see.
        options: Of `conceptloader.build`; they have to pickle.
    """

    name = "Concept build"

    def __init__(self, inputs: Directory | Sequence[Directory], out: Directory, **options: Any) -> None:
        super().__init__()
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
        self.inputs = [os.path.abspath(one) for one in given]
        self.out = os.path.abspath(out)
        self.options = options

    def work(self, task: Task | None) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # tasks are what runs in parallel
        summary = build(self.inputs, self.out, task=task, **self.options)
        for name in ("shards", "documents", "tokens", "lost_spans", "bad_records"):
            self.stat_update(name, value=getattr(summary, name))


class ConceptBuildFinish(ConceptBuild):
    """Completes the dataset: the one step of a pipeline with one task that depends on theirs, with the same arguments.

    It writes the shards that are missing. Raises as they, and InputError for more lost spans than the options allow.
    """

    name, alone = "Concept build: finish", "finish"
