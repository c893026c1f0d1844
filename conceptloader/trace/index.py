"""The concept index of a dataset: shards by worker processes or by tasks of a cluster, then the table of all."""

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from conceptloader.base.checks import check_task
from conceptloader.base.packages import need
from conceptloader.base.terminal import counted
from conceptloader.base.workers import Tell, run_all
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.parquet import SortedParquet, footer_checksum, write_parquet
from conceptloader.format.read.concepts import concept_pairs
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.read.index import (
    CONCEPTS,
    FORMAT,
    HEAD,
    REPAIR,
    VERSION,
    ConceptIndex,
    OtherDataset,
    index_directory,
    open_index,
    shard_file,
    source_fingerprint,
)
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.jsonfile import dump_json, load_json
from conceptloader.ingest.database import PROBLEM, database, load
from conceptloader.storage.durable import TEMPORARY, completed, make_directories, require_local, require_own, write_file
from conceptloader.storage.lock import build_lock

_ROW_GROUP = 1 << 14  # an answer reads at least as many rows of each shard

Job = tuple[str, list[str] | None, str, int]
"""Path, roots, track, shard."""


def build_index(
    path: str | os.PathLike[str],
    track: str = "concepts",
    *,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    workers: int = 1,
    task: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConceptIndex | None:
    """Write the index of a track next to the dataset, or what is missing of it; its bytes are always the same.

    workers: processes. task: (number, tasks): write only the shards of this one of several tasks, which may run on
    other machines, and no table; a call without it joins them.
    progress(done, total): called with shards. Returns: the index, None for a task.

    Raises: ConfigError for a track without concepts, or without pyarrow or DuckDB; FormatError for a corrupt dataset or
    index, ReadError.
    """
    need("duckdb", PROBLEM)
    given = None if roots is None else [os.fspath(root) for root in roots]
    dataset = open_dataset(path, roots=given)
    _check_track(dataset, track)
    directory = index_directory(dataset.path, track)
    check_task(task)
    require_own(dataset.path, directory)
    with build_lock(directory, shared=task is not None):
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
        for entry in filter(lambda one: TEMPORARY.fullmatch(one.name), os.scandir(directory)):  # of killed runs
            shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)
    return open_index(dataset, track)


def _check_track(dataset: Dataset, track: str) -> None:
    """Raises: ConfigError unless the track holds concepts, and the dataset is local and no view."""
    if dataset.runs is not None:
        raise ConfigError(
            dataset.path,
            "a view, which has the index of its source",
            f"the source, {dataset.source}",
            f"run `conceptloader index {dataset.source}`",
        )
    known = dataset.concept_tracks
    if track not in known:
        raise ConfigError(
            dataset.path, f"no track {track!r} of concepts", f"one of {known}", "pass --track with one of these"
        )
    require_local(dataset.path)


def _write_job(job: Job, _: Tell) -> None:
    path, roots, track, shard = job
    with open_dataset(path, roots=roots) as dataset:
        _write_shard(dataset, track, shard)


def _write_shard(dataset: Dataset, track: str, shard: int) -> None:
    """Write the spans of a shard by concept, and its part of the table, unless they are there."""
    directory = index_directory(dataset.path, track)
    if _report(dataset, track, shard) is not None:
        return
    make_directories(directory)
    pairs, rows = (os.path.join(directory, shard_file(shard, kind)) for kind in ("parquet", "concepts.parquet"))
    base = dataset.shard_starts[shard]
    with _database(directory) as found:
        some = concept_pairs(dataset, track, shard)
        spans = ((concept, start + base, end - start) for concept, start, end in some)
        load(found, "loaded", "concept UINTEGER, start UBIGINT, length UINTEGER", spans)
        _write(pairs, found.sql("FROM loaded ORDER BY concept, start"))
        totals = "count(*)::UBIGINT AS spans, sum(length)::UBIGINT AS tokens"
        table = f"SELECT concept, {shard}::UINTEGER AS shard, {totals} FROM loaded GROUP BY concept ORDER BY concept"
        _write(rows, found.sql(table))
    report = {**_head(dataset, track), "shard": shard, "spans": footer_checksum(pairs)}
    report["concepts"] = footer_checksum(rows)
    write_file(os.path.join(directory, shard_file(shard, "json")), dump_json(report))


def _database(directory: str) -> AbstractContextManager[Any]:
    problem = f"{directory}: spans cannot be sorted"
    return database(
        directory,
        "400MB",
        lambda found: ReadError(f"{problem}", f"{found}", fix="run the same `conceptloader index` command again"),
    )


def _write(path: str, rows: Any) -> None:
    """Write what a query finds, which is sorted: neighbours differ by little."""
    arrow = need("pyarrow", PROBLEM)
    with arrow.RecordBatchReader.from_stream(rows) as batches, completed(path) as temporary:
        none = arrow.RecordBatch.from_pylist([], schema=batches.schema)  # a shard may have no span
        encodings = dict.fromkeys(batches.schema.names, "DELTA_BINARY_PACKED")
        write_parquet(
            chain([none], batches), temporary, _ROW_GROUP,
            use_dictionary=False, column_encoding=encodings, write_page_checksum=True,
        )  # fmt: skip


def _head(dataset: Dataset, track: str) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "source": source_fingerprint(dataset.manifest), "track": track}


def _report(dataset: Dataset, track: str, shard: int) -> dict[str, Any] | None:
    """That of a shard that is finished; None if it is to be written."""
    try:
        report = load_json(os.path.join(index_directory(dataset.path, track), shard_file(shard, "json"))).value
    except (ReadError, FormatError):
        return None
    return report if _head(dataset, track).items() <= report.items() else None


def join_shards(dataset: Dataset, track: str) -> None:
    """Write the table over all shards, which makes it an index. Raises: FormatError if a shard is missing."""
    directory = index_directory(dataset.path, track)
    reports = {shard: _report(dataset, track, shard) for shard in range(dataset.num_shards)}
    missing = [shard for shard, report in reports.items() if report is None]
    if missing:
        raise FormatError(
            directory,
            f"no spans of {counted(len(missing), 'shard')}, the first is {missing[0]}",
            f"all {dataset.num_shards}",
            "run the --task that is missing, or the command without --task",
        )
    table = os.path.join(directory, CONCEPTS)
    done = {shard: report for shard, report in reports.items() if report is not None}
    with _database(directory) as found:
        parts = (_part(directory, shard, report) for shard, report in done.items())
        load(found, "loaded", "concept UINTEGER, shard UINTEGER, spans UBIGINT, tokens UBIGINT", parts)
        _write(table, found.sql("FROM loaded ORDER BY concept, shard"))
    spans = [report["spans"] for report in done.values()]
    head = {**_head(dataset, track), "concepts": footer_checksum(table), "spans": spans}
    write_file(os.path.join(directory, HEAD), dump_json(head))
    for shard in reports:
        for kind in ("concepts.parquet", "json"):
            with contextlib.suppress(OSError):  # nobody reads what stays
                os.unlink(os.path.join(directory, shard_file(shard, kind)))


def _part(directory: str, shard: int, report: dict[str, Any]) -> Sequence[Ints]:
    """The table of one shard. Raises: FormatError if it is not what was written."""
    path = os.path.join(directory, shard_file(shard, "concepts.parquet"))
    part = SortedParquet(path, report.get("concepts", ""), REPAIR)
    return part.columns("concept", "shard", "spans", "tokens")
