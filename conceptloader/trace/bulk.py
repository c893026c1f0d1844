"""What is in many steps, as Arrow tables: a row for every document that a sample reads from.

The order is evaluated for many samples at once, and these are looked up in the order in which they lie in the data, so
that tables are read in a few large pieces. samples.py says what one sample is made of.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.bulk import Pieces, concepts_of, documents_of, gather, ragged, spans_of
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.trace.ranges import Member, by_value, documents_by_shard, ranges_by_shard, ranges_of
from conceptloader.trace.run import Run

_SAMPLES = 1 << 17
_NONE = np.zeros(0, np.int64)


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
    need("pyarrow", "trace_steps: found no pyarrow package, which makes the tables")
    if not 0 <= first < stop:
        raise ConfigError(
            "steps",
            f"{first}:{stop}",
            "first:end with first below end",
            "pass steps of which the first is below the end",
        )
    run.at_step(first)
    ranges = list(sample_ranges(run, first, stop))
    members = [member for *_, era in ranges for member in era.members if member is not None]
    tracks = sorted({track for one in members for track in one.tracks if track in one.dataset.concept_tracks})
    views = any(member.dataset.runs is not None for member in members)
    for low, high, plan, era in ranges:
        for at in range(low, high, _SAMPLES):
            samples = np.arange(at, min(at + _SAMPLES, high), dtype=np.uint64)
            yield _batch(era, plan, samples, tracks, views)


def _batch(run: Run, plan: Any, samples: NDArray[np.uint64], tracks: Sequence[str], views: bool) -> Any:
    arrow = need("pyarrow", "trace_steps")
    members, epochs, windows = run.blend.order.sample_many(samples)
    places = plan.places(samples)
    tables = []
    for index, rows in by_value(members):
        member = run.member(index)
        for row, *rest in _pieces(member, windows[rows].astype(np.int64), samples[rows].astype(np.int64), tracks):
            tables.append(_table(views, member.dataset, rows[row], *rest))
    found = arrow.concat_tables(tables).combine_chunks()
    found = found.take(np.lexsort((found["start"], found["row"])))
    row = found["row"].to_numpy()
    names = [str(name) for name in run.blend.order.names]
    columns = {
        "step": places.step[row],
        "sample": samples[row].astype(np.int64),
        "micro_batch": places.micro_batch[row],
        "dp_rank": places.dp_rank[row],
        "slot": places.slot[row],
        "dataset": arrow.DictionaryArray.from_arrays(members[row].astype(np.int32), names),
        "epoch": epochs[row].astype(np.int64),
        "window": windows[row].astype(np.int64),
    }
    columns |= dict(zip(found.column_names[1:], found.columns[1:], strict=True))
    return arrow.table(columns).combine_chunks().to_batches()[0]


def _table(
    views: bool, dataset: Dataset, row: Ints, document: Ints, start: Ints, end: Ints, inputs: Ints,
    concepts: Mapping[str, Any],
) -> Any:  # fmt: skip
    """A row for each document, -1 for none, that is in the sample of a row: tokens [start, end), -1 for none."""
    arrow = need("pyarrow", "trace_steps")

    def known(column: Ints) -> Any:
        return arrow.array(column, mask=column < 0)

    return arrow.table({
        "row": row,
        "document": known(document),
        "id": document_ids(dataset, document),
        "start": known(start),
        "end": known(end),
        "inputs": inputs,
        **({"source_document": known(dataset.sources(document))} if views else {}),
        **{track: id_lists(len(row), *found) for track, found in concepts.items()},
    })  # fmt: skip


def id_lists(count: int, part: Ints, ids: Ints) -> Any:
    """An Arrow array of `count` lists, of the ids of each part. part: ascending."""
    arrow = need("pyarrow", "lists of ids")
    offsets = offsets_of(np.bincount(part, minlength=count))
    return arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), ids.astype(np.uint32))


def _pieces(member: Member, windows: Ints, samples: Ints, tracks: Sequence[str]) -> Iterator[Any]:
    """Documents in some windows of a member: the window's place, and the other columns of `_table`.

    Those are the document, start and end, how many of its tokens are inputs, and for each track (place, concept).
    """
    read = ranges_of(member, windows)
    read = read.take((read.since > samples[read.row]) & (read.start < read.stop)).joined()
    read = read.take(np.argsort(read.start, kind="stable"))
    left, concepts = np.setdiff1d(np.arange(len(windows)), read.row), dict.fromkeys(tracks, (_NONE, _NONE))
    none = np.full_like(left, -1)
    yield left, none, none, none, np.zeros_like(left), concepts
    dataset = member.dataset
    for shard, cut in ranges_by_shard(dataset, read.start, read.stop):
        a, b, rows = cut.first, cut.end, cut.row
        if dataset.runs is None:
            found = documents_of(dataset.reader, shard, a, b)
            document = np.where(found.number < 0, -1, found.number + dataset.first_documents[shard])
        else:
            found, document = Pieces(np.arange(len(a)), cut.run, a, b), cut.run
        first, end = np.maximum(found.first, a[found.row]), np.minimum(found.end, b[found.row])
        # What is only a label carries no concept into the inputs.
        inputs = np.minimum(b, (read.start + read.inputs)[rows] - cut.base)
        base, counts = cut.base[found.row], np.maximum(np.minimum(end, inputs[found.row]) - first, 0)
        carried = {
            track: concepts_in(dataset, shard, track, (a, inputs), (found.row, first, end))
            for track in tracks
            if track in dataset.tracks
        }
        yield read.row[rows][found.row], document, first + base, end + base, counts, {**concepts, **carried}


def concepts_in(
    dataset: Dataset, shard: int, track: str, ranges: tuple[Ints, Ints], parts: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints]:
    """(part, concept), each once, in order, of the tokens of parts of ranges; parts: (range, first, end)."""
    some = ranges[0] < ranges[1]
    rows, (part_row, first, end) = np.flatnonzero(some), parts
    found = [_NONE]
    for level in dataset.levels[track]:
        spans, records = spans_of(dataset.reader, shard, level, ranges[0][some], ranges[1][some])
        if not len(records):
            continue
        offsets, ids = concepts_of(dataset.reader, shard, level, records, dataset.tracks[track].num_ids)
        row = rows[spans.row]
        low, high = np.maximum(spans.first, ranges[0][row]), np.minimum(spans.end, ranges[1][row])
        # As if the ranges lay end to end: then the spans of a part follow each other, and so do their concepts.
        stride = max(int(high.max()), int(end.max(initial=0))) + 1
        before = np.searchsorted(row * stride + high, part_row * stride + first, "right")
        after = np.searchsorted(row * stride + low, part_row * stride + end)
        counts = offsets[after] - offsets[before]
        part = np.repeat(np.arange(len(counts)), counts)
        found.append(part << 32 | ids[ragged(offsets[before], counts)])
    pairs = np.sort(np.concatenate(found))
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return pairs >> 32, pairs & 0xFFFFFFFF


def document_ids(dataset: Dataset, documents: Ints) -> Any:
    """The ids that documents had in the input, an Arrow array of strings; null for none, and for document -1."""
    arrow, files, kind = need("pyarrow", "document_ids"), dataset.files, "documents.ids"
    found = [arrow.nulls(1, arrow.large_binary())]
    place, done = np.zeros(len(documents), np.int64), 1
    for shard, chosen, ordinals in documents_by_shard(dataset, dataset.sources(documents)):
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
