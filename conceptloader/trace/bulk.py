"""What is in many steps, as Arrow tables: a row for every document that a sample reads from.

The order is evaluated for many samples at once, and these are looked up in the order in which they lie in the data, so
that tables are read in a few large pieces. samples.py says what one sample is made of.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.bulk import Pieces, concepts_of, documents_of, gather, ragged, spans_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.ranges import Cut
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.trace.ranges import Member, documents_by_shard, ranges_of
from conceptloader.trace.run import Run

_SAMPLES = 1 << 17
_RANGES = 1 << 11  # looked up at once: their spans are in memory

_NONE = np.zeros(0, np.int64)


class _Parts(NamedTuple):
    """Documents in samples.

    Fields: the sample's row, the document's number (-1: none is known), its tokens [start, end), how many of them are
    inputs.
    """

    row: Ints
    document: Ints
    start: Ints
    end: Ints
    inputs: Ints


def sample_ranges(run: Run, first: int, stop: int) -> Iterator[tuple[int, int, Any, Run]]:
    """(first sample, end, plan, run of one order) of the steps [first, stop) as the run counts."""
    for segment in run.steps.segments:
        low = max(first, segment.start.step)
        plan = segment.plan
        high = min(one for one in (stop, segment.stop_step, plan.stop_step) if one is not None)
        if low < high:
            yield plan.consumed_at(low), plan.consumed_at(high), plan, run.at_step(low)


def trace_steps(run: Run, first: int, stop: int) -> Iterator[Any]:
    """Pyarrow record batches of the steps [first, stop), in order: the documents that their samples consist of.

    Columns: step, sample, micro_batch, dp_rank, slot, dataset, epoch, window; document (its number) and id; start, end:
    its tokens of the dataset that the sample reads, of which the first `inputs` are in input_ids; of a subset also
    source_document, the document's number in its source; and for each track of concepts the ids of those that its
    tokens in input_ids carry. Rows of a sample are in the order of start, in a pack too. A sample that is
    excluded, or an empty pack, has one row without document, start and end.

    Raises:
        ConfigError: If steps are not known, or lie before the run log; or without pyarrow.
    """
    arrow = need("pyarrow", "trace_steps: found no pyarrow package, which makes the tables")
    if not 0 <= first < stop:
        raise ConfigError("steps", f"{first}:{stop}", "first:end with first below end", "correct the range")
    run.at_step(first)
    ranges = list(sample_ranges(run, first, stop))
    members = [member for *_, era in ranges for member in era.members if member is not None]
    tracks = sorted({
        track
        for member in members
        for track in member.tracks
        if track in member.dataset.tracks and member.dataset.tracks[track].codec == "concepts"
    })  # fmt: skip
    views = any(member.dataset.runs is not None for member in members)
    for low, high, plan, era in ranges:
        for at in range(low, high, _SAMPLES):
            samples = np.arange(at, min(at + _SAMPLES, high), dtype=np.uint64)
            yield _batch(arrow, era, plan, samples, tracks, views)


def _batch(arrow: Any, run: Run, plan: Any, samples: NDArray[np.uint64], tracks: Sequence[str], views: bool) -> Any:
    members, epochs, windows = run.blend.order.sample_many(samples)
    places = plan.places(samples)
    parts: list[_Parts] = []
    names: list[Any] = []
    sources: list[Ints] = []
    concepts: dict[str, list[tuple[Ints, Ints]]] = {track: [(_NONE, _NONE)] for track in tracks}
    done = 0
    for index in np.unique(members).tolist():
        member, rows = run.member(index), np.flatnonzero(members == index)
        for found, pairs in _pieces(member, windows[rows].astype(np.int64), samples[rows].astype(np.int64), tracks):
            parts.append(found._replace(row=rows[found.row]))
            names.append(document_ids(arrow, member.dataset, found.document))
            sources.append(member.dataset.sources(found.document))
            for track, (part, ids) in pairs.items():
                concepts[track].append((part + done, ids))
            done += len(found.row)
    joined = _Parts(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    order = np.lexsort((joined.start, joined.row))
    row, document, start, end, inputs = (column[order] for column in joined)
    columns = {
        "step": places.step[row],
        "sample": samples[row].astype(np.int64),
        "micro_batch": places.micro_batch[row],
        "dp_rank": places.dp_rank[row],
        "slot": places.slot[row],
        "dataset": arrow.DictionaryArray.from_arrays(
            members[row].astype(np.int32), [str(n) for n in run.blend.order.names]
        ),
        "epoch": epochs[row].astype(np.int64),
        "window": windows[row].astype(np.int64),
        "document": arrow.array(document, mask=document < 0),
        "id": arrow.concat_arrays(names).take(arrow.array(order)),
        "start": arrow.array(start, mask=start < 0),
        "end": arrow.array(end, mask=start < 0),
        "inputs": inputs,
    }
    if views:
        source = np.concatenate(sources)[order]
        columns["source_document"] = arrow.array(source, mask=source < 0)
    for track in tracks:
        part, ids = (np.concatenate(column) for column in zip(*concepts[track], strict=True))
        columns[track] = id_lists(arrow, part, ids, order)
    return arrow.RecordBatch.from_pydict(columns)


def id_lists(arrow: Any, part: Ints, ids: Ints, order: Ints) -> Any:
    """An Arrow array of lists: for each row, in a new order, the ids of its part. part: ascending."""
    counts = np.bincount(part, minlength=len(order))
    starts = offsets_of(counts)[:-1]
    offsets = offsets_of(counts[order])
    values = ids[ragged(starts[order], counts[order])].astype(np.uint32)
    return arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), arrow.array(values))


def _pieces(
    member: Member, windows: Ints, samples: Ints, tracks: Sequence[str]
) -> Iterator[tuple[_Parts, dict[str, tuple[Ints, Ints]]]]:
    """Documents of some windows of a member, and for each track (number of the part, concept), in order."""
    read = ranges_of(member, windows)
    read = read.take((read.since > samples[read.row]) & (read.start < read.stop)).joined()
    read = read.take(np.argsort(read.start, kind="stable"))
    left = np.setdiff1d(np.arange(len(windows)), read.row)
    none, zero = np.full(len(left), -1), np.zeros(len(left), np.int64)
    yield _Parts(left, none, none, none, zero), {}
    for shard, cut in _by_shard(member.dataset, read.start, read.stop):
        a, b, rows = cut.first, cut.end, cut.row
        if member.dataset.runs is None:
            found = documents_of(member.dataset.reader, shard, a, b)
            document = np.where(found.number < 0, -1, found.number + member.dataset.first_documents[shard])
        else:
            found, document = Pieces(np.arange(len(a)), cut.run, a, b), cut.run
        first, end = np.maximum(found.first, a[found.row]), np.minimum(found.end, b[found.row])
        # What is only a label carries no concept into the inputs.
        inputs = np.minimum(b, (read.start + read.inputs)[rows] - cut.base)
        base, counts = cut.base[found.row], np.maximum(np.minimum(end, inputs[found.row]) - first, 0)
        yield (
            _Parts(read.row[rows][found.row], document, first + base, end + base, counts),
            {
                track: concepts_in(member.dataset, shard, track, (a, inputs), (found.row, first, end))
                for track in tracks
                if track in member.dataset.tracks
            },
        )


def concepts_in(
    dataset: Dataset, shard: int, track: str, ranges: tuple[Ints, Ints], parts: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints]:
    """(part, concept), each once, in order, of the tokens of parts of ranges; parts: (range, first, end)."""
    if dataset.manifest.shards.tracks[track].encoding[shard] is None:
        return _NONE, _NONE
    some = ranges[0] < ranges[1]
    rows = np.flatnonzero(some)
    spans, records = spans_of(dataset.reader, shard, track, ranges[0][some], ranges[1][some])
    if not len(records):
        return _NONE, _NONE
    offsets, ids = concepts_of(dataset.reader, shard, track, records, dataset.tracks[track].num_ids)
    row, (part_row, first, end) = rows[spans.row], parts
    low, high = np.maximum(spans.first, ranges[0][row]), np.minimum(spans.end, ranges[1][row])
    # As if the ranges lay end to end: then the spans of a part follow each other, and so do their concepts.
    stride = max(int(high.max()), int(end.max(initial=0))) + 1
    before = np.searchsorted(row * stride + high, part_row * stride + first, "right")
    after = np.searchsorted(row * stride + low, part_row * stride + end)
    counts = offsets[after] - offsets[before]
    part = np.repeat(np.arange(len(counts)), counts)
    pairs = np.sort(part << 32 | ids[ragged(offsets[before], counts)])
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return pairs >> 32, pairs & 0xFFFFFFFF


def document_ids(arrow: Any, dataset: Dataset, documents: Ints) -> Any:
    """The ids that documents had in the input, an Arrow array of strings; null for none, and for document -1."""
    pieces, places = [], []
    lengths = np.zeros(len(documents), np.int64)
    for shard, chosen, ordinals in documents_by_shard(dataset, dataset.sources(documents)):
        if dataset.manifest.shards.files["documents.ids"].size[shard] < 0:
            continue
        base = 8 * (int(dataset.manifest.shards.documents[shard]) + 1)
        pairs = gather(dataset.files, "documents.ids", shard, fmt.OFFSET, ordinals, ordinals + 2).astype(np.int64)
        a, b = pairs[::2], pairs[1::2]
        if (a > b).any() or (b > dataset.manifest.shards.files["documents.ids"].size[shard] - base).any():
            raise FormatError(
                dataset.files.path("documents.ids", shard),
                "offsets that descend",
                "ascending offsets",
                "run `conceptloader verify`",
            )
        pieces.append(gather(dataset.files, "documents.ids", shard, "u1", a, b, base))
        places.append(chosen)
        lengths[chosen] = b - a
    text = np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
    order = np.concatenate(places) if places else np.zeros(0, np.int64)
    begins = np.zeros(len(documents), np.int64)
    begins[order] = offsets_of(lengths[order])[:-1]
    data = np.ascontiguousarray(text[ragged(begins, lengths)])
    buffers = [None, arrow.py_buffer(offsets_of(lengths)), arrow.py_buffer(data)]
    try:
        found = arrow.Array.from_buffers(arrow.large_binary(), len(documents), buffers).cast(arrow.large_string())
    except arrow.ArrowInvalid as error:
        raise FormatError(
            dataset.path, f"an id that is not UTF-8 ({error})", "UTF-8", "run `conceptloader verify`"
        ) from error
    return need("pyarrow.compute", "document_ids").if_else(
        arrow.array(lengths > 0), found, arrow.scalar(None, found.type)
    )


def _by_shard(dataset: Dataset, start: Ints, stop: Ints) -> Iterator[tuple[int, Cut]]:
    """(shard, pieces) of ascending token ranges, split where shards or a subset's runs begin; in batches."""
    cut = dataset.cut(start, stop)
    order = np.argsort(cut.shard, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(cut.shard[order])) + 1):
        for low in range(0, len(some), _RANGES):
            part = Cut(*(column[some[low : low + _RANGES]] for column in cut))
            yield int(part.shard[0]), part
