"""The concept index of a dataset: shards by worker processes, then the table of all."""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from conceptloader.base.packages import need
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
from conceptloader.format.spec.jsonfile import dump_json
from conceptloader.format.tools.derived import new_directory
from conceptloader.ingest.database import PROBLEM, database, load
from conceptloader.storage.durable import completed, require_local, require_own, write_file

_ROW_GROUP = 1 << 14  # an answer reads at least as many rows of each shard

Job = tuple[str, list[str] | None, str, int, str]
"""Path, roots, track, shard, directory of the files."""


def build_index(
    path: str | os.PathLike[str],
    track: str = "concepts",
    *,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> ConceptIndex:
    """The index of a track next to the dataset, written if it is not there, whole or not at all; always the same bytes.

    workers: processes. progress(done, total): called with shards.

    Raises: ConfigError for a track without concepts, or without pyarrow or DuckDB; FormatError for a corrupt dataset or
    index, ReadError.
    """
    need("duckdb", PROBLEM)
    given = None if roots is None else [os.fspath(root) for root in roots]
    dataset = open_dataset(path, roots=given)
    _check_track(dataset, track)
    directory = index_directory(dataset.path, track)
    require_own(dataset.path, directory)
    try:
        if (found := open_index(dataset, track)) is not None:
            return found
    except OtherDataset:
        shutil.rmtree(directory)
    if os.path.lexists(directory):
        raise FormatError(directory, f"no {HEAD}", "an index", REPAIR)
    with new_directory(directory) as working:
        jobs: list[Job] = [(dataset.path, given, track, shard, working) for shard in range(dataset.num_shards)]
        done = 0

        def on_end(_: int, succeeded: bool) -> None:
            nonlocal done
            done += succeeded
            if progress is not None:
                progress(done, len(jobs))

        run_all(_write_shard, jobs, workers, on_end)
        _join_shards(dataset, track, working)
    found = open_index(dataset, track)
    assert found is not None
    return found


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


def _write_shard(job: Job, _: Tell) -> None:
    """Write the spans of a shard by concept, and its part of the table."""
    path, roots, track, shard, working = job
    pairs, rows = (os.path.join(working, shard_file(shard, kind)) for kind in ("parquet", "concepts.parquet"))
    with open_dataset(path, roots=roots) as dataset, _database(working) as found:
        base = dataset.shard_starts[shard]
        some = concept_pairs(dataset, track, shard)
        spans = ((concept, start + base, end - start) for concept, start, end in some)
        load(found, "loaded", "concept UINTEGER, start UBIGINT, length UINTEGER", spans)
        _write(pairs, found.sql("FROM loaded ORDER BY concept, start"))
        totals = "count(*)::UBIGINT AS spans, sum(length)::UBIGINT AS tokens"
        table = f"SELECT concept, {shard}::UINTEGER AS shard, {totals} FROM loaded GROUP BY concept ORDER BY concept"
        _write(rows, found.sql(table))


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


def _join_shards(dataset: Dataset, track: str, working: str) -> None:
    """Write the table over all shards, and the file that names all of them."""
    parts = [os.path.join(working, shard_file(shard, "concepts.parquet")) for shard in range(dataset.num_shards)]
    table = os.path.join(working, CONCEPTS)
    columns = "concept", "shard", "spans", "tokens"
    with _database(working) as found:
        each = (SortedParquet(part, footer_checksum(part), REPAIR).columns(*columns) for part in parts)
        load(found, "loaded", "concept UINTEGER, shard UINTEGER, spans UBIGINT, tokens UBIGINT", each)
        _write(table, found.sql("FROM loaded ORDER BY concept, shard"))
    for part in parts:
        os.unlink(part)
    head = {"format": FORMAT, "version": VERSION, "source": source_fingerprint(dataset.manifest), "track": track}
    spans = [footer_checksum(os.path.join(working, shard_file(shard))) for shard in range(dataset.num_shards)]
    write_file(os.path.join(working, HEAD), dump_json({**head, "concepts": footer_checksum(table), "spans": spans}))
