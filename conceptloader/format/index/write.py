"""Writing an index: a shard at a time, in any process, and then the table that joins them.

The bytes of a shard's files depend on the shard alone, those of the table on the shards, so that the number of tasks
changes nothing. Memory is bounded: a large shard has several pieces, of about _POSTINGS postings, each by concept.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.index import layout as ix
from conceptloader.format.read.bulk import concepts_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.jsonfile import dump_json, load_json
from conceptloader.kernels.codecs import encode_spans
from conceptloader.storage.durable import Spool, make_directories, sync_directory, write_file
from conceptloader.storage.reads import read_file

_CHUNK_TOKENS = 1 << 22
_POSTINGS = 1 << 21
_ROWS = 1 << 20
_LIMIT = 1 << 40

Postings = tuple[Ints, Ints, Ints]
"""Concept, start and end of spans."""


def check_track(dataset: Dataset, track: str) -> None:
    """Raises: ConfigError unless the track holds concepts, and the dataset is local and no view."""
    if dataset.runs is not None:
        raise ConfigError(f"{dataset.path}: found a view, whose index is that of its source: {dataset.source}")
    known = sorted(name for name, entry in dataset.tracks.items() if entry.codec == "concepts")
    if track not in known:
        raise ConfigError(f"{dataset.path}: found no track {track!r} of concepts, expected one of {known}")
    if "://" in dataset.path:
        raise ConfigError(f"{dataset.path}: found a URL, expected a local directory, where the index can be written")


def written(directory: str, shard: int, source: str) -> dict[str, Any] | None:
    """The report of a shard that is finished for this source; None if it is to be written."""
    try:
        report = load_json(os.path.join(directory, ix.shard_file(shard, "json"))).value
    except (ReadError, FormatError):
        return None
    return report if report.get("source") == source and report.get("version") == ix.VERSION else None


def write_shard(dataset: Dataset, track: str, shard: int) -> None:
    """Write the postings of a shard, unless they are there. Raises: FormatError, ReadError."""
    directory, source = ix.index_directory(dataset.path, track), ix.source_fingerprint(dataset.manifest)
    if written(directory, shard, source) is not None:
        return
    make_directories(directory)
    names = {kind: os.path.join(directory, ix.shard_file(shard, kind)) for kind in ("postings", "rows", "json")}
    with Spool(names["postings"]) as spool, Spool(names["rows"]) as table:
        rows = np.concatenate([np.zeros(0, ix.ROW), *_write_pieces(dataset, track, shard, spool)])
        table.write(rows[np.argsort(rows["concept"], kind="stable")])
        spool.commit()
        table.commit()
        sync_directory(directory)
        facts = {"postings": spool.facts(), "rows": table.facts()}
    head = {"format": ix.FORMAT, "version": ix.VERSION, "source": source, "track": track, "shard": shard}
    write_file(names["json"], dump_json({**head, **facts}))


def _write_pieces(dataset: Dataset, track: str, shard: int, spool: Spool) -> Iterator[NDArray[Any]]:
    """Write postings in pieces, each by concept. Returns: the rows of each piece."""
    for concept, start, end in postings(dataset, track, shard):
        order = np.argsort(concept, kind="stable")
        concept, start, end = concept[order], start[order], end[order]
        ids, first = np.unique(concept, return_index=True)
        out, sizes = np.empty(20 * len(concept), np.uint8), np.empty(len(concept), np.int64)
        data = out[: encode_spans(concept, start, end, out, sizes)].tobytes()
        rows = np.zeros(len(ids), ix.ROW)
        rows["concept"], rows["shard"], rows["spans"] = ids, shard, np.diff(np.append(first, len(concept)))
        rows["tokens"], rows["bytes"] = np.add.reduceat(end - start, first), np.add.reduceat(sizes, first)
        at = offsets_of(rows["bytes"].astype(np.int64))
        rows["checksum"] = [xxhash.xxh3_64_intdigest(data[a:b]) for a, b in pairwise(at.tolist())]
        rows["offset"] = spool.size + at[:-1]
        spool.write(data)
        yield rows


def postings(dataset: Dataset, track: str, shard: int) -> Iterator[Postings]:
    """All (concept, start, end) of a shard, in order of start, about _POSTINGS at a time."""
    held: list[Postings] = []
    tokens = dataset.shard_starts[shard + 1] - dataset.shard_starts[shard]
    for start, end, record in dataset.reader.whole_runs(shard, track, 0, tokens, _CHUNK_TOKENS):
        records, num_ids = record.astype(np.int64), dataset.tracks[track].num_ids
        offsets, ids = concepts_of(dataset.reader, shard, track, records, num_ids)
        which = np.repeat(np.arange(len(record)), np.diff(offsets))
        pairs = np.sort(which << 32 | ids, kind="stable")
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]]  # a record may name a concept twice
        which, ids = pairs >> 32, pairs & 0xFFFFFFFF
        held.append((ids, start[which], end[which]))
        if sum(len(one[0]) for one in held) >= _POSTINGS:
            yield _joined(held)
            held = []
    if sum(len(one[0]) for one in held):
        yield _joined(held)


def _joined(held: list[Postings]) -> Postings:
    concept, start, end = (np.concatenate(column) for column in zip(*held, strict=True))
    return concept, start, end


def join_shards(dataset: Dataset, track: str) -> None:
    """Write the table over all shards, which makes it an index. Raises: FormatError if a shard is missing."""
    directory, source = ix.index_directory(dataset.path, track), ix.source_fingerprint(dataset.manifest)
    reports = [written(directory, shard, source) for shard in range(dataset.num_shards)]
    missing = [shard for shard, report in enumerate(reports) if report is None]
    if missing:
        raise FormatError(
            f"{directory}: found no postings of {len(missing)} shards, the first is {missing[0]}, expected all "
            f"{dataset.num_shards}; run the tasks that are missing, or the command without --task"
        )
    done = [report for report in reports if report is not None]
    paths = [os.path.join(directory, ix.shard_file(shard, "rows")) for shard in range(dataset.num_shards)]
    with Spool(os.path.join(directory, "rows")) as table, Spool(os.path.join(directory, "heads")) as heads:
        for low, high in _concept_ranges(paths):
            rows = np.concatenate([_rows(path, low, high) for path in paths])
            rows = rows[np.argsort(rows["concept"], kind="stable")]
            ids, first = np.unique(rows["concept"], return_index=True)
            found = np.zeros(len(ids), ix.HEAD)
            found["concept"], found["first"] = ids, first + table.size // ix.ROW.itemsize
            if len(ids):
                for name in ("spans", "tokens"):
                    found[name] = np.add.reduceat(rows[name], first)
            table.write(rows)
            heads.write(found)
        table.commit()
        heads.commit()
        facts = {"heads": heads.facts(), "rows": table.facts()}
    sync_directory(directory)
    postings = {key: [report["postings"][key] for report in done] for key in ("size", "checksum", "sample")}
    head = {"format": ix.FORMAT, "version": ix.VERSION, "source": source, "track": track}
    write_file(os.path.join(directory, ix.INDEX), dump_json({**head, **facts, "postings": postings}))
    for shard in range(dataset.num_shards):
        for kind in ("rows", "json"):
            with contextlib.suppress(OSError):  # nobody reads what stays
                os.unlink(os.path.join(directory, ix.shard_file(shard, kind)))


def _rows(path: str, low: int = 0, high: int = 1 << 32) -> NDArray[Any]:
    """The rows of concepts in [low, high)."""
    rows = np.frombuffer(read_file(path, _LIMIT), ix.ROW)
    return rows[slice(*np.searchsorted(rows["concept"], [low, high]))]


def _concept_ranges(paths: list[str]) -> list[tuple[int, int]]:
    """Ranges [low, high) of concept ids with about _ROWS rows of all shards each."""
    counts: Counter[int] = Counter()
    for path in paths:
        counts.update(_rows(path)["concept"].tolist())
    ids = sorted(counts)
    part = np.cumsum([counts[one] for one in ids]) // _ROWS
    cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(ids)]
    return [(ids[low], ids[high - 1] + 1) for low, high in pairwise(cuts) if low < high]
