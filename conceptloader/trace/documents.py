"""The documents and the spans of a dataset as columns, some at a time: what SQL asks about them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash

from conceptloader.base.hashing import derive_key
from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.bulk import concepts_of, gather, ragged, records_of, spans_of
from conceptloader.format.read.concepts import concept_pairs
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.trace.ranges import document_ranges, documents_by_shard, ranges_by_shard

CHUNK = 1 << 15  # documents that are read at once
Columns = Mapping[str, Any]
_NONE = np.zeros(0, np.int64)


def track_types(dataset: Dataset) -> dict[str, Any]:
    """Columns for tracks of concepts, by Arrow type: lists of names, or of ids where there are no names."""
    arrow = need("pyarrow", "lists of concepts")
    names = {name: dataset.vocabulary(name) for name in sorted(dataset.concept_tracks)}
    return {name: arrow.list_(arrow.int64() if known is None else arrow.string()) for name, known in names.items()}


def document_types(dataset: Dataset) -> dict[str, Any]:
    """The columns of the documents of a dataset, by Arrow type.

    document, id, start, stop (its tokens of the dataset), tokens (how many), share (a hash of its id, or without one of
    its number: uniform in [0, 1)); of a track of concepts the list of those that its tokens carry; of a track of
    numbers their mean; of a track of json the first record, as text.

    Raises:
        ConfigError: If the dataset has no document table.
    """
    arrow = need("pyarrow", "documents: found no pyarrow package, which makes the tables")
    if not dataset.num_documents:
        fix = "omit what asks for documents, or rebuild or adopt the dataset with documents"
        raise ConfigError(dataset.path, "no document table", "a document table, to ask for documents", fix)
    types = dict.fromkeys(("document", "start", "stop", "tokens"), arrow.int64())
    types |= {"id": arrow.large_string(), "share": arrow.float64(), **track_types(dataset)}
    for name, track in sorted(dataset.tracks.items()):
        if track.codec == "numpy":
            types[name] = arrow.float64()
        elif track.codec == "json":
            types[name] = arrow.string()
    return types


def documents(dataset: Dataset, names: Collection[str], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Some of these columns of all documents, in order, and always document, start and stop. seed: of share."""
    arrow, key = need("pyarrow", "documents"), derive_key(seed, "share of documents")
    for low in range(0, dataset.num_documents, CHUNK):
        numbers = np.arange(low, min(low + CHUNK, dataset.num_documents))
        start, stop = document_ranges(dataset, numbers)
        found: dict[str, Any] = {"document": numbers, "start": start, "stop": stop, "tokens": stop - start}
        if not {"id", "share"}.isdisjoint(names):
            found["id"] = document_ids(dataset, numbers)
        if "share" in names:
            found["share"] = _shares(dataset, key, numbers, found["id"])
        for name, track in dataset.tracks.items():
            if track.codec == "concepts" and name in names:
                found[name] = _lists(dataset, name, start, stop)
            elif track.codec == "json" and name in names:
                first = np.full(len(numbers), None, object)
                for rows, records in _records(dataset, name, start, stop):
                    for k in np.unique(rows, return_index=True)[1].tolist():
                        first[rows[k]] = first[rows[k]] or str(records[k], "utf-8")
                found[name] = arrow.array(first, arrow.string())
            elif track.codec == "numpy" and name in names:
                found[name] = _means(dataset, name, start, stop)
        yield found


def spans(dataset: Dataset, track: str) -> Iterator[dict[str, Any]]:
    """Each concept of each span of a track, some at a time: its id, its name, tokens [start, stop) of the dataset."""
    arrow, names = need("pyarrow", "spans"), dataset.vocabulary(track)
    for shard in range(dataset.num_shards):
        base = dataset.shard_starts[shard]
        for ids, start, end in concept_pairs(dataset, track, shard):
            inside, start, end = dataset.placed(start + base, end + base)
            found = {"concept": ids[inside], "start": start, "stop": end}
            yield found if names is None else {**found, "name": arrow.array(names, "string").take(ids[inside])}


def id_lists(dataset: Dataset, track: str, count: int, part: Ints, ids: Ints) -> Any:
    """`count` lists of concepts, an Arrow array as in track_types. part: of each id its list, ascending."""
    arrow, names = need("pyarrow", "lists of concepts"), dataset.vocabulary(track)
    offsets = arrow.array(offsets_of(np.bincount(part, minlength=count)), arrow.int32())
    values = arrow.array(ids) if names is None else arrow.array(names, arrow.string()).take(arrow.array(ids))
    return arrow.ListArray.from_arrays(offsets, values)


def concepts_in(
    dataset: Dataset, shard: int, track: str, ranges: tuple[Ints, Ints], parts: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints]:
    """(part, concept), each once, in order, of the tokens of parts of ranges; parts: (range, first, end)."""
    some = ranges[0] < ranges[1]
    rows, (part_row, first, end) = np.flatnonzero(some), parts
    pairs = [_NONE]
    for level in dataset.levels[track]:
        found, records = spans_of(dataset.files, shard, level, ranges[0][some], ranges[1][some])
        if not len(records):
            continue
        offsets, ids = concepts_of(dataset.files, shard, level, records, dataset.tracks[track].num_ids)
        row = rows[found.row]
        low, high = np.maximum(found.first, ranges[0][row]), np.minimum(found.end, ranges[1][row])
        # As if the ranges lay end to end: then the spans of a part follow each other, and so do their concepts.
        stride = max(int(high.max()), int(end.max(initial=0))) + 1
        before = np.searchsorted(row * stride + high, part_row * stride + first, "right")
        after = np.searchsorted(row * stride + low, part_row * stride + end)
        counts = offsets[after] - offsets[before]
        pairs.append(np.repeat(np.arange(len(counts)), counts) << 32 | ids[ragged(offsets[before], counts)])
    once = np.unique(np.concatenate(pairs))
    return once >> 32, once & 0xFFFFFFFF


def document_ids(dataset: Dataset, numbers: Ints) -> Any:
    """The ids that documents had in the input, an Arrow array of strings; null for none, and for document -1."""
    arrow, files, kind = need("pyarrow", "document_ids"), dataset.files, "documents.ids"
    found = [arrow.nulls(1, arrow.large_binary())]
    place, done = np.zeros(len(numbers), np.int64), 1
    for shard, chosen, ordinals in documents_by_shard(dataset, dataset.sources(numbers)):
        size, base = int(files.table.files[kind].size[shard]), 8 * (int(files.table.documents[shard]) + 1)
        if size < 0:
            continue
        a, b = gather(files, kind, shard, fmt.OFFSET, ordinals, ordinals + 2).astype(np.int64).reshape(-1, 2).T
        if (a > b).any() or (b > size - base).any():
            raise FormatError(
                files.path(kind, shard), "offsets that descend", "ascending offsets", "run `conceptloader verify`"
            )
        text = gather(files, kind, shard, "u1", a, b, base)
        buffers = [None, arrow.py_buffer(offsets_of(b - a)), arrow.py_buffer(text)]
        found.append(arrow.Array.from_buffers(arrow.large_binary(), len(chosen), buffers))
        place[chosen] = np.where(a < b, done + np.arange(len(chosen)), 0)
        done += len(chosen)
    try:
        return arrow.concat_arrays(found).take(arrow.array(place)).cast(arrow.large_string())
    except arrow.ArrowInvalid as error:
        raise FormatError(
            dataset.path, f"an id that is not UTF-8 ({error})", "UTF-8", "run `conceptloader verify`"
        ) from error


def _shares(dataset: Dataset, key: int, numbers: Ints, ids: Any) -> Any:
    texts = (
        f"{dataset.manifest.stream_fingerprint()}/{n}" if one is None else one
        for one, n in zip(ids.to_pylist(), dataset.sources(numbers).tolist(), strict=True)
    )
    hashes = np.array([xxhash.xxh3_64_intdigest(one.encode(), key) for one in texts], np.uint64)
    return (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53


def _spans(dataset: Dataset, track: str, start: Ints, stop: Ints) -> Iterator[tuple[int, Ints, Ints, Ints]]:
    """(shard, documents, ranges of tokens of these) by shard."""
    some = np.flatnonzero(start < stop)
    for shard, cut in ranges_by_shard(dataset, start[some], stop[some]):
        if dataset.manifest.shards.tracks[track].encoding[shard] is not None:
            yield shard, some[cut.row], cut.first, cut.end


def _lists(dataset: Dataset, track: str, start: Ints, stop: Ints) -> Any:
    parts, ids = [_NONE], [_NONE]
    for shard, rows, a, b in _spans(dataset, track, start, stop):
        which, found = concepts_in(dataset, shard, track, (a, b), (np.arange(len(a)), a, b))
        parts.append(rows[which])
        ids.append(found)
    return id_lists(dataset, track, len(start), np.concatenate(parts), np.concatenate(ids))


def _records(dataset: Dataset, track: str, start: Ints, stop: Ints) -> Iterator[tuple[Ints, list[memoryview]]]:
    """(documents, records) by shard, a record for each span."""
    for shard, rows, a, b in _spans(dataset, track, start, stop):
        for level in dataset.levels[track]:  # the outermost first
            found, numbers = spans_of(dataset.files, shard, level, a, b)
            yield rows[found.row], records_of(dataset.files, shard, level, numbers)


def _means(dataset: Dataset, track: str, start: Ints, stop: Ints) -> Any:
    count, total, codec = np.zeros(len(start), np.int64), np.zeros(len(start)), dataset.codec(track)
    dtype = codec.dtype  # type: ignore[attr-defined]
    for rows, records in _records(dataset, track, start, stop):
        values = np.frombuffer(b"".join(records), dtype).astype(np.float64)
        owner = np.repeat(rows, [len(record) // dtype.itemsize for record in records])
        count += np.bincount(owner, minlength=len(start))
        total += np.bincount(owner, values, minlength=len(start))
    means = total / np.maximum(count, 1)
    return need("pyarrow", "documents").array(means, mask=(count == 0) | np.isnan(means))  # to SQL, NaN is above all
