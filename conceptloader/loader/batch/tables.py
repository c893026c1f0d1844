"""What the kernels know of the datasets: the shard tables and views as records, tens of bytes a shard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from conceptloader.config import View
from conceptloader.config.packing import OVERFLOWS
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columnfile import BF16, holes_kind, items_kind
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.viewfile import Runs
from conceptloader.kernels.records import DENSE, FIELD, LAYOUT, LEFT_OUT, MEMBER, NONE, RUN, SHARD, SPANS, TRACK
from conceptloader.kernels.system import BRAIN, DOCUMENTS, HALF, SHORT, SINGLE, STREAM
from conceptloader.loader.batch.layout import LOSS_FIELD, Array, BatchLayout, FieldLayout, TrackLayout

CODES = {**{kind: k for k, kind in enumerate(fmt.READABLE_TOKENS)}, "f2": int(HALF), "f4": int(SINGLE)}  # of `take`
WIDER = {"u2": ("i4", int(SHORT)), "u4": ("i8", CODES["u4"]), BF16: ("f4", int(BRAIN))}  # in batches; how
FILES = ("index", "data", "spans")  # of a track


@dataclass(frozen=True)
class Tables:
    """Arrays of records.py: shards [n], layouts [k], tracks [n, t], fields [n, f], members [m], left_out [l], runs [r].

    kinds: the file kind of each column of Call.files; needed: bool [n, columns], which files are read; owners:
    (dataset, first row) in row order.
    """

    shards: Array
    layouts: Array
    tracks: Array
    fields: Array
    members: Array
    left_out: Array
    runs: Array
    kinds: tuple[str, ...]
    needed: Array
    owners: tuple[tuple[Dataset, int], ...]


def make_tables(views: Sequence[View | None], layout: BatchLayout) -> Tables:
    """The tables of some views; a dataset that several of them share has its shards in them once."""
    names = [track.track for track in layout.read_tracks]
    kinds = ["stream.bin", "documents.bin", *(f"{name}.{file}" for name in names for file in FILES)]
    of_columns = [
        kind(one.field) for one in layout.fields if one.shape is not None for kind in (items_kind, holes_kind)
    ]
    first_rows: dict[tuple[int, tuple[str, ...]], int] = {}
    first_runs: dict[int, int] = {}
    owners: list[View] = []
    runs, left_out, members = [np.zeros(0, RUN)], [np.zeros(0, LEFT_OUT)], np.zeros(len(views), MEMBER)
    count = num_runs = num_ranges = 0
    documents = layout.outputs.needs_documents
    rows: list[dict[str, int]] = []
    for view in views:
        rows.append(member := dict.fromkeys(MEMBER.names or (), 0))
        member["first_shard"] = -1
        if view is None:
            continue
        dataset = view.dataset
        key = id(dataset.files), view.tracks  # views of one source share its files
        if key not in first_rows:
            first_rows[key] = count
            owners.append(view)
            count += dataset.num_shards
        tokenizer = dataset.tokenizer
        eos = tokenizer.eos_id if tokenizer and tokenizer.eos_id is not None else -1
        if dataset.runs is not None:
            if id(dataset) not in first_runs:
                first_runs[id(dataset)] = num_runs
                runs.append(_run_rows(dataset.runs))
                num_runs += len(runs[-1])
            member |= {"first_run": first_runs[id(dataset)], "runs": len(dataset.runs)}
        first_range, ends = num_ranges, []
        for mask in (view.mask, view.own):
            if len(mask.at):
                left_out.append(np.array(list(zip(*mask, strict=True)), LEFT_OUT))
                num_ranges += len(left_out[-1])
            ends.append(num_ranges)
        if view.packs is not None:
            packing = view.packs.packing
            overflow = OVERFLOWS.index(packing.overflow)
            member |= {"bins": packing.bins, "stop": view.packs.stop, "overflow": overflow}
        member |= {"first_shard": first_rows[key], "shards": dataset.num_shards, "dataset_id": view.dataset_id}
        member |= {"start": view.start, "count": view.count, "by_document": view.by_document, "eos": eos}
        member |= {"documents": documents or view.kind != "window", "pad": max(eos, 0)}
        member |= {"first_range": first_range, "end_range": ends[0], "end_own": ends[1]}
    members[:] = [(*member.values(),) for member in rows]
    counts = np.array([view.dataset.num_shards for view in owners], np.int64)
    all_shards, all_tracks = _shard_rows(owners, counts), _track_rows(owners, counts, layout.read_tracks)
    all_fields = np.zeros((count, len(layout.fields)), FIELD)
    if layout.fields and owners:
        all_fields = _joined([_field_rows(view, layout.fields, [*kinds, *of_columns]) for view in owners])
    needed = np.ones((len(all_shards), len(kinds)), np.bool_)
    needed[:, DOCUMENTS] = False
    for member in members[members["documents"] > 0]:  # any of those that share the shards
        some = slice(member["first_shard"], member["first_shard"] + member["shards"])
        needed[some, DOCUMENTS] = all_shards["documents"][some] > 0
    for column, file in enumerate(FILES, int(DOCUMENTS) + 1):
        needed[:, column :: len(FILES)] = all_tracks["kind"] >= (SPANS if file == "spans" else DENSE)
    read = [
        (all_fields["file"] == k).any(1) | (all_fields["holes"] == k).any(1)
        for k in range(len(kinds), len(kinds) + len(of_columns))
    ]
    needed = np.column_stack([needed, *read])
    return Tables(
        shards=all_shards,
        layouts=_layout_rows(owners),
        tracks=all_tracks,
        fields=all_fields,
        members=members,
        left_out=_joined(left_out),
        runs=_joined(runs),
        kinds=(*kinds, *of_columns),
        needed=needed,
        owners=tuple(zip((view.dataset for view in owners), first_rows.values(), strict=True)),
    )


def _joined(parts: Iterable[Array]) -> Array:
    some = list(parts)
    if not some:
        return np.zeros(0, np.int64)
    return np.concatenate(some, dtype=some[0].dtype)  # else numpy works the common type out, for each part


def _offset(layout: fmt.StreamLayout, field: str) -> int:
    """Byte of a field in an item, or -1."""
    return int(layout.dtype.fields[field][1]) if layout.dtype.fields and field in layout.dtype.fields else -1


def _run_rows(runs: Runs) -> Array:
    rows = np.zeros(len(runs) + 1, RUN)
    rows["first"], rows["source"][:-1] = runs.first, runs.source
    return rows


def _shard_rows(owners: Sequence[View], counts: Ints) -> Array:
    """counts: of their shards."""
    tables = [view.dataset.manifest.shards for view in owners]
    rows = np.zeros(int(counts.sum()), SHARD)
    rows["base"] = _joined(table.starts[:-1] for table in tables)
    rows["first_document"] = _joined(table.first_documents[:-1] for table in tables)
    for name in ("tokens", "offset", "documents", "layout"):
        rows[name] = _joined(getattr(table, name) for table in tables)
    rows["layout"] += np.repeat(offsets_of([len(view.dataset.manifest.layouts) for view in owners])[:-1], counts)
    return rows


def _layout_rows(owners: Sequence[View]) -> Array:
    of_all = [(layout, view.dataset.manifest) for view in owners for layout in view.dataset.manifest.layouts]
    rows = np.zeros(len(of_all), LAYOUT)
    rows["item"] = [layout.itemsize for layout, _ in of_all]
    rows["code"] = [CODES[layout.token_type] for layout, _ in of_all]
    rows["loss"] = [_offset(layout, LOSS_FIELD) for layout, _ in of_all]
    rows["block"] = [manifest.block_tokens for _, manifest in of_all]
    rows["top_id"] = [manifest.num_ids - 1 for _, manifest in of_all]
    return rows


def _field_rows(view: View, fields: Sequence[FieldLayout], kinds: Sequence[str]) -> Array:
    table, layouts = view.dataset.manifest.shards, view.dataset.manifest.layouts
    rows = np.zeros((len(table), len(fields)), FIELD)
    rows["holes"] = -1
    for row, field in zip(rows.T, fields, strict=True):
        if field.shape is not None:
            column = view.dataset.columns.get(field.field)
            row["file"] = -1
            if column is not None:
                row["file"] = np.where(column.files.size >= 0, kinds.index(items_kind(field.field)), -1)
                row["at"], row["step"] = column.files.offset, column.itemsize
                if field.dtype.itemsize > column.stored.itemsize:
                    row["code"], row["unit"] = WIDER[field.stored][1], column.stored.itemsize
                if column.holes is not None and field.blank:  # without a value items are 0
                    row["holes"] = np.where(column.holes.size >= 0, kinds.index(holes_kind(field.field)), -1)
            continue
        row["file"] = STREAM
        row["at"] = np.array([_offset(layout, field.field) for layout in layouts])[table.layout]
        if field.field in view.dataset.field_names:
            kind = layouts[0].dtype[field.field]
            row["code"] = CODES[kind.str[1:]] if field.weight else -kind.itemsize
        else:
            row["code"] = np.float32(field.outside if field.field in view.tracks else field.missing).view(np.int32)
    return rows


def _track_rows(owners: Sequence[View], counts: Ints, layouts_of: Sequence[TrackLayout]) -> Array:
    rows = np.zeros((int(counts.sum()), len(layouts_of)), TRACK)
    codes = {None: NONE, fmt.DENSE: DENSE, fmt.SPANS: SPANS}
    for track, layout in zip(rows.T, layouts_of, strict=True):
        name = layout.track
        has = np.array([name in view.levels for view in owners], np.bool_)
        having = [owners[k].dataset for k in np.flatnonzero(has).tolist()]
        tables = [dataset.manifest.shards for dataset in having]
        columns, part = [table.tracks[name] for table in tables], np.zeros(int(counts[has].sum()), TRACK)
        part["kind"] = [codes[encoding] for column in columns for encoding in column.encoding]
        field, each = fmt.dense_field(name), counts[has]
        fields = [np.array([_offset(one, field) for one in dataset.manifest.layouts]) for dataset in having]
        part["field"] = _joined(at[table.layout] for at, table in zip(fields, tables, strict=True))
        part["entries"] = _joined(column.entries for column in columns)
        part["records"] = _joined(column.records for column in columns)
        part["data_size"] = _joined(table.files[f"{name}.data"].size for table in tables)
        part["top_concept"] = np.repeat([dataset.stored_tracks[name].num_ids - 1 for dataset in having], each)
        if layout.holds_concepts:
            codecs = [dataset.files.concepts(name) for dataset in having]
            part["id_bytes"] = np.repeat([codec.ids.itemsize for codec in codecs], each)
            part["score_bytes"] = np.repeat([codec.item - codec.ids.itemsize for codec in codecs], each)
            part["id_code"] = np.repeat([CODES[codec.ids.str[1:]] for codec in codecs], each)
            scores = [codec.scores for codec in codecs]
            part["score_code"] = np.repeat([0 if one is None else CODES[one.str[1:]] for one in scores], each)
        else:
            part["id_bytes"], part["id_code"] = layout.item.itemsize, -layout.item.itemsize
        track[np.repeat(has, counts)] = part
    return rows
