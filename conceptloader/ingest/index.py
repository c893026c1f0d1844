"""The concept index of a dataset: shards by worker processes or by tasks of a cluster, then the table."""

import os
from collections.abc import Callable, Sequence

from conceptloader.base.checks import check_task
from conceptloader.errors import ConfigError
from conceptloader.format.index.layout import index_directory
from conceptloader.format.index.read import ConceptIndex, OtherDataset, open_index
from conceptloader.format.index.write import check_track, join_shards, write_shard
from conceptloader.format.read.dataset import open_dataset
from conceptloader.ingest.build.workers import Tell, run_all
from conceptloader.storage.durable import TEMPORARY
from conceptloader.storage.lock import build_lock

Job = tuple[str, list[str] | None, str, int]
"""Path, roots, track, shard."""


def build_index(
    path: str | os.PathLike[str],
    track: str = "concepts",
    *,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    workers: int = 1,
    task: tuple[int, int] | None = None,
    anew: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ConceptIndex | None:
    """Write the index of a track beside the dataset, or what is missing of it; its bytes are the same in any way.

    workers: processes. task: (number, tasks): write only the shards of this one of several tasks, which may run on
    other machines, and no table; a call without it joins them. anew: whatever index is there is removed first.
    progress(done, total): called with shards. Returns: the index, None for a task.

    Raises: ConfigError for a track without concepts, FormatError for a damaged dataset or index, ReadError.
    """
    given = None if roots is None else [os.fspath(root) for root in roots]
    dataset = open_dataset(path, roots=given)
    check_track(dataset, track)
    directory = index_directory(dataset.path, track)
    check_task(task)
    with build_lock(directory, shared=task is not None):
        if anew:
            if task is not None:
                raise ConfigError("anew: found together with task, which would remove what other tasks wrote")
            _remove(directory, lambda name: not name.startswith("."))
        try:
            found = open_index(dataset, track)
        except OtherDataset:
            found = None  # shards of the former one are written over
        if found is not None:
            return found
        number, tasks = task or (0, 1)
        jobs: list[Job] = [(dataset.path, given, track, k) for k in range(number, dataset.num_shards, tasks)]
        done = 0

        def on_end(_: int, succeeded: bool) -> None:
            nonlocal done
            done += succeeded
            if progress is not None:
                progress(done, len(jobs))

        run_all(_write_job, jobs, workers, on_end)
        if task is not None:
            return None
        join_shards(dataset, track)
        _remove(directory, TEMPORARY.fullmatch)  # of runs that were killed
    return open_index(dataset, track)


def _write_job(job: Job, _: Tell) -> None:
    path, roots, track, shard = job
    with open_dataset(path, roots=roots) as dataset:
        write_shard(dataset, track, shard)


def _remove(directory: str, chosen: Callable[[str], object]) -> None:
    for entry in os.scandir(directory):
        if chosen(entry.name):
            os.unlink(entry.path)
