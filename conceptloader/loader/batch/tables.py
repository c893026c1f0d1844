"""What the kernels know of the datasets: the shard tables and views as records, tens of bytes a shard."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conceptloader.config import View
from conceptloader.config.packing import OVERFLOWS
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columnfile import BF16, holes_kind, items_kind
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
    owners: list[tuple[Dataset, int]] = []
    rows: dict[tuple[int, tuple[str, ...]], int] = {}
    first_runs: dict[int, int] = {}
    runs, num_runs = [np.zeros(0, RUN)], 0
    shards, layouts = [np.zeros(0, SHARD)], [np.zeros(0, LAYOUT)]
    tracks, fields = [np.zeros((0, len(names)), TRACK)], [np.zeros((0, len(layout.fields)), FIELD)]
    members = np.zeros(len(views), MEMBER)
    left_out, num_ranges = [np.zeros(0, LEFT_OUT)], 0
    count = num_layouts = 0
    for member, view in zip(members, views, strict=True):
        member["first_shard"] = -1
        if view is None:
            continue
        key = id(view.dataset.files), view.tracks  # views of one source share its files
        member["documents"] = view.kind != "window" or layout.outputs.needs_documents
        if key not in rows:
            rows[key] = count
            owners.append((view.dataset, count))
            shards.append(_shard_rows(view.dataset, num_layouts))
            layouts.append(_layout_rows(view.dataset))
            num_layouts += len(layouts[-1])
            tracks.append(_track_rows(view, layout.read_tracks))
            fields.append(_field_rows(view, layout.fields, [*kinds, *of_columns]))
            count += len(shards[-1])
        tokenizer = view.dataset.tokenizer
        eos = tokenizer.eos_id if tokenizer and tokenizer.eos_id is not None else -1
        member["first_shard"], member["shards"] = rows[key], view.dataset.num_shards
        if view.dataset.runs is not None:
            if id(view.dataset) not in first_runs:
                first_runs[id(view.dataset)] = num_runs
                runs.append(_run_rows(view.dataset.runs))
                num_runs += len(runs[-1])
            member["first_run"], member["runs"] = first_runs[id(view.dataset)], len(view.dataset.runs)
        member["start"], member["count"], member["by_document"] = view.start, view.count, view.by_document
        member["dataset_id"], member["eos"], member["pad"] = view.dataset_id, eos, max(eos, 0)
        member["first_range"] = num_ranges
        for end, mask in (("end_range", view.mask), ("end_own", view.own)):
            left_out.append(np.array(list(zip(*mask, strict=True)), LEFT_OUT))
            num_ranges += len(left_out[-1])
            member[end] = num_ranges
        if view.packs is not None:
            packing = view.packs.packing
            member["bins"], member["stop"] = packing.bins, view.packs.stop
            member["overflow"] = OVERFLOWS.index(packing.overflow)
    all_shards, all_tracks, all_fields = map(_joined, (shards, tracks, fields))
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
        layouts=_joined(layouts),
        tracks=all_tracks,
        fields=all_fields,
        members=members,
        left_out=_joined(left_out),
        runs=_joined(runs),
        kinds=(*kinds, *of_columns),
        needed=needed,
        owners=tuple(owners),
    )


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts, dtype=parts[0].dtype)  # else numpy works the common type out, for each part


def _offset(layout: fmt.StreamLayout, field: str) -> int:
    """Byte of a field in an item, or -1."""
    return int(layout.dtype.fields[field][1]) if layout.dtype.fields and field in layout.dtype.fields else -1


def _run_rows(runs: Runs) -> Array:
    rows = np.zeros(len(runs) + 1, RUN)
    rows["first"], rows["source"][:-1] = runs.first, runs.source
    return rows


def _shard_rows(dataset: Dataset, first_layout: int) -> Array:
    table = dataset.manifest.shards
    rows = np.zeros(len(table), SHARD)
    rows["base"], rows["first_document"] = table.starts[:-1], table.first_documents[:-1]
    for name in ("tokens", "offset", "documents"):
        rows[name] = getattr(table, name)
    rows["layout"] = first_layout + table.layout
    return rows


def _layout_rows(dataset: Dataset) -> Array:
    manifest = dataset.manifest
    rows = np.zeros(len(manifest.layouts), LAYOUT)
    rows["item"] = [layout.itemsize for layout in manifest.layouts]
    rows["code"] = [CODES[layout.token_type] for layout in manifest.layouts]
    rows["loss"] = [_offset(layout, LOSS_FIELD) for layout in manifest.layouts]
    rows["block"], rows["top_id"] = manifest.block_tokens, manifest.num_ids - 1
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


def _track_rows(view: View, layouts_of: Sequence[TrackLayout]) -> Array:
    table, layouts = view.dataset.manifest.shards, view.dataset.manifest.layouts
    rows = np.zeros((len(table), len(layouts_of)), TRACK)
    for track, layout in zip(rows.T, layouts_of, strict=True):
        name = layout.track
        if name not in view.levels:
            continue
        column = table.tracks[name]
        codes = {None: NONE, fmt.DENSE: DENSE, fmt.SPANS: SPANS}
        track["kind"] = [codes[encoding] for encoding in column.encoding]
        track["field"] = np.array([_offset(layout, fmt.dense_field(name)) for layout in layouts])[table.layout]
        track["entries"] = column.entries
        track["records"] = column.records
        track["data_size"] = table.files[f"{name}.data"].size
        track["top_concept"] = view.dataset.stored_tracks[name].num_ids - 1
        if layout.holds_concepts:
            codec = view.dataset.files.concepts(name)
            track["id_bytes"], track["score_bytes"] = codec.ids.itemsize, codec.item - codec.ids.itemsize
            track["id_code"] = CODES[codec.ids.str[1:]]
            track["score_code"] = CODES[codec.scores.str[1:]] if codec.scores is not None else 0
        else:
            track["id_bytes"], track["id_code"] = layout.item.itemsize, -layout.item.itemsize
    return rows
