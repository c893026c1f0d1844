"""What the kernels know of the datasets: the shard tables and views as integer arrays, a few hundred bytes a shard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.base.compiled import numbered
from conceptloader.batch.layout import LOSS_FIELD, BatchLayout
from conceptloader.blend import View
from conceptloader.blend.samples import by_document
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec import layout as fmt

I64Array = npt.NDArray[np.int64]

# Columns of `shards`. BASE: the shard's first token in its dataset. ITEM: bytes of a stream item; OFFSET: bytes before
# the first. CODE: position in READABLE_TOKENS. DOCUMENTS: 0 without a table; FIRST_DOCUMENT: number of its first one.
# LOSS: byte of the loss field in an item, or -1. BLOCK: tokens of a block of the block tables. TOP_ID: the largest
# token id that there may be.
BASE, TOKENS, ITEM, OFFSET, CODE, DOCUMENTS, FIRST_DOCUMENT, LOSS, BLOCK, TOP_ID, SHARD_COLUMNS = numbered(11)

# Columns of `tracks` [shard, track]. KIND: NONE, DENSE or SPANS. FIELD: byte of the record id in an item. TOP_CONCEPT:
# the largest concept id that there may be.
KIND, FIELD, ENTRIES, RECORDS, DATA_SIZE, TOP_CONCEPT, TRACK_COLUMNS = numbered(7)
NONE, DENSE, SPANS = numbered(3)

# Columns of `members`. FIRST_SHARD (-1: not in the configuration) and SHARDS: rows of `shards`. START, COUNT: as in
# View. EOS: -1 without one. PAD: what padding holds. Q_FIRST, Q_END: rows of `quarantine`.
FIRST_SHARD, SHARDS, START, COUNT, BY_DOCUMENT, DATASET_ID, EOS, PAD, Q_FIRST, Q_END, MEMBER_COLUMNS = numbered(11)

# Files of a shard, columns of the descriptor table: these two, then index, data and spans of every track.
STREAM, DOCUMENT_TABLE, TRACK_FILES = numbered(3)
INDEX, DATA, ENTRY_TABLE, FILES_PER_TRACK = numbered(4)


@dataclass(frozen=True)
class Tables:
    """shards i64 [n, SHARD_COLUMNS], tracks i64 [n, t, TRACK_COLUMNS], members i64 [m, MEMBER_COLUMNS],
    quarantine i64 [q, 2]; kinds: the file kind of each descriptor column; owner: (dataset, first row) in row order;
    item_bytes: of the largest item."""

    shards: I64Array
    tracks: I64Array
    members: I64Array
    quarantine: I64Array
    kinds: tuple[str, ...]
    owners: tuple[tuple[Dataset, int], ...]

    def owner(self, row: int) -> tuple[Dataset, int]:
        """(dataset, shard) of a row of `shards`."""
        dataset, first = next(o for o in reversed(self.owners) if o[1] <= row)
        return dataset, row - first

    def needed(self, row: int) -> list[tuple[int, str]]:
        """(descriptor column, kind) of the files of a shard that are read."""
        columns = [STREAM]
        if self.shards[row, DOCUMENTS]:
            columns.append(DOCUMENT_TABLE)
        for t, kind in enumerate(self.tracks[row, :, KIND].tolist()):
            first = TRACK_FILES + t * FILES_PER_TRACK
            if kind != NONE:
                columns += [first + INDEX, first + DATA]
            if kind == SPANS:
                columns.append(first + ENTRY_TABLE)
        return [(column, self.kinds[column]) for column in columns]


def make_tables(views: Sequence[View | None], layout: BatchLayout) -> Tables:
    """The tables of some views; a dataset that several of them share has its shards in them once."""
    names = [track.name for track in layout.tracks]
    owners: list[tuple[Dataset, int]] = []
    rows: dict[int, int] = {}
    shards: list[I64Array] = []
    tracks: list[I64Array] = []
    members: list[list[int]] = []
    quarantine: list[list[int]] = []
    count = 0
    for view in views:
        if view is None:
            members.append([-1, *[0] * (MEMBER_COLUMNS - 1)])
            continue
        if id(view.dataset) not in rows:
            rows[id(view.dataset)] = count
            owners.append((view.dataset, count))
            wants_documents = by_document(view) or layout.outputs.needs_documents
            shards.append(_shard_rows(view.dataset, wants_documents))
            tracks.append(_track_rows(view, names))
            count += len(shards[-1])
        tokenizer = view.dataset.tokenizer
        eos = tokenizer.eos_id if tokenizer and tokenizer.eos_id is not None else -1
        members.append(
            [
                rows[id(view.dataset)], view.dataset.num_shards, view.start, view.count, int(by_document(view)),
                view.dataset_id, eos, max(eos, 0), len(quarantine), len(quarantine) + len(view.quarantine),
            ]
        )  # fmt: skip
        quarantine += [list(pair) for pair in view.quarantine]
    kinds = ["stream.bin", "documents.bin"]
    for name in names:
        kinds += [f"{name}.index", f"{name}.data", f"{name}.spans"]
    return Tables(
        shards=_stack(shards, (0, SHARD_COLUMNS)),
        tracks=_stack(tracks, (0, len(names), TRACK_COLUMNS)),
        members=np.array(members, np.int64),
        quarantine=np.array(quarantine, np.int64).reshape(-1, 2),
        kinds=tuple(kinds),
        owners=tuple(owners),
    )


def _stack(parts: list[I64Array], empty: tuple[int, ...]) -> I64Array:
    return np.concatenate(parts) if parts else np.zeros(empty, np.int64)


def _offset(layout: fmt.StreamLayout, field: str) -> int:
    """Byte of a field in an item, or -1."""
    return int(layout.dtype.fields[field][1]) if layout.dtype.fields and field in layout.dtype.fields else -1


def _shard_rows(dataset: Dataset, wants_documents: bool) -> I64Array:
    table, layouts = dataset.manifest.shards, dataset.manifest.layouts
    rows = np.zeros((len(table), SHARD_COLUMNS), np.int64)
    by_layout: dict[int, list[Any]] = {
        ITEM: [layout.itemsize for layout in layouts],
        CODE: [fmt.READABLE_TOKENS.index(layout.token_type) for layout in layouts],
        LOSS: [_offset(layout, LOSS_FIELD) for layout in layouts],
    }
    for column, values in by_layout.items():
        rows[:, column] = np.array(values, np.int64)[table.layout]
    rows[:, BASE] = dataset.manifest.starts()[:-1]
    rows[:, TOKENS] = table.tokens
    rows[:, OFFSET] = table.offset
    rows[:, DOCUMENTS] = table.documents if wants_documents else 0
    rows[:, FIRST_DOCUMENT] = np.cumsum(table.documents) - table.documents
    rows[:, BLOCK] = dataset.manifest.block_tokens
    rows[:, TOP_ID] = dataset.manifest.num_ids - 1
    return rows


def _track_rows(view: View, names: Sequence[str]) -> I64Array:
    table, layouts = view.dataset.manifest.shards, view.dataset.manifest.layouts
    rows = np.zeros((len(table), len(names), TRACK_COLUMNS), np.int64)
    for t, name in enumerate(names):
        if name not in view.tracks:
            continue
        column = table.tracks[name]
        codes = {None: NONE, fmt.DENSE: DENSE, fmt.SPANS: SPANS}
        rows[:, t, KIND] = [codes[encoding] for encoding in column.encoding]
        rows[:, t, FIELD] = np.array([_offset(layout, fmt.dense_field(name)) for layout in layouts])[table.layout]
        rows[:, t, ENTRIES] = column.entries
        rows[:, t, RECORDS] = column.records
        rows[:, t, DATA_SIZE] = table.files[f"{name}.data"].size
        rows[:, t, TOP_CONCEPT] = view.dataset.tracks[name].num_ids - 1
    return rows
