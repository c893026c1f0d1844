"""What a call of the kernel is given: the arrays of a batch as addresses, and what one thread works with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conceptloader.kernels.fill import fill_samples
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.kernels.order import KernelTables
from conceptloader.kernels.packing import make_room
from conceptloader.kernels.records import (
    ARRAYS,
    COLUMN,
    GIVEN,
    OUTPUT,
    PART,
    SLOT,
    STATE,
    WANT,
    Call,
    PickBy,
    Picks,
)
from conceptloader.loader.batch.held import Held
from conceptloader.loader.batch.layout import Array, Batch, BatchLayout, Carving
from conceptloader.loader.batch.open_files import OpenFiles
from conceptloader.loader.batch.tables import FILES, Tables

BUFFER_BYTES = 1 << 16
RAGGED_VALUES = 1024  # room for them at first
PIECES = 4096  # of documents in a block of packs; room for them at first
WANTS = 1024  # of a pass; what finds no place is wanted by the next one
_SLACK_ITEMS = 3  # a window's label token, and one item on each side of it for dense tracks
_NO_ROOM = make_room(0, 0, 0)
_NONE_GIVEN: dict[str, Any] = {"given": np.empty(0, GIVEN), "first_given": np.empty(0, np.int64)}


@dataclass(frozen=True)
class Shape:
    """How the memory of a batch of one size is laid out.

    The kernels' ARRAYS, OUTPUT and COLUMN records for a block at address 0, and 1 for each number in them that is an
    address in the block.
    """

    samples: int
    carving: Carving
    records: I64Array
    in_block: I64Array

    @classmethod
    def make(cls, layout: BatchLayout, tables: Tables, samples: int) -> "Shape":
        carving, wants = layout.carve(samples), layout.outputs
        at = dict(carving.offsets)
        if "tokens" in at:
            at["input_ids"], at["labels"] = at["tokens"], at["tokens"] + 8
        # [0]: the records; [1]: what in them is an address.
        arrays, outputs = np.zeros((2, 1), ARRAYS), np.zeros((2, len(layout.read_tracks)), OUTPUT)
        for name in at.keys() & {*(ARRAYS.names or ())}:
            arrays[name] = [[at[name]], [1]]
        arrays["seq_len"][0], arrays["row_length"][0] = layout.seq_len, layout.seq_len + wants.shared_labels
        arrays["document_positions"][0] = wants.position_ids == "document"
        arrays["mask_boundaries"][0], arrays["loss_on_eos"][0] = wants.mask_document_boundaries, wants.loss_on_eos
        arrays["ignore_index"][0] = wants.ignore_index or 0
        arrays["random_key"][0] = np.uint64(layout.random_key).view(np.int64)
        for t, track in enumerate(layout.read_tracks):
            for name in OUTPUT.names or ():
                if f"{track.name}_{name}" in at:
                    outputs[name][:, t] = at[f"{track.name}_{name}"], 1
                elif hasattr(track, name):
                    outputs[name][0, t] = getattr(track, name)
            for file in FILES:
                outputs[f"{file}_file"][0, t] = tables.kinds.index(f"{track.track}.{file}")
            outputs["width"][0, t] = track.item.itemsize
        columns = np.zeros((2, len(layout.blanked)), COLUMN)
        for column, name in zip(columns.T, layout.blanked, strict=True):
            spec = carving.specs[name]
            column["address"] = [at[name], 1]
            whole = not spec.along or spec.gaps
            column["bytes" if whole else "width"][0] = spec.dtype.itemsize * math.prod(spec.shape[1 if whole else 2 :])
            eight = np.full(8 // spec.dtype.itemsize, spec.blank or 0, spec.dtype)
            column["labels"][0], column["blank"][0] = spec.labels, eight.view(np.int64)[0]
        tables_of = arrays, outputs, columns
        records, in_block = (np.concatenate([table[k].view(np.int64) for table in tables_of]) for k in (0, 1))
        return cls(samples, carving, records, in_block)


class Workspace:
    """What one batch needs for itself.

    ragged: numbers of such tracks; values: of each, empty for others; scores: of these; picks, order: see fill_samples;
    run: this kernel with these arguments; code: what it returned; spent_ns: in it; state: of the call. numbers,
    progress: its arrays and its outputs, and its state up to `parts`, as the int64 that they are.
    """

    def __init__(self, layout: BatchLayout, tables: Tables, files: OpenFiles) -> None:
        most_spans = max((track.max_spans for track in layout.read_tracks), default=1)
        item_bytes = int(tables.layouts["item"].max(initial=1))
        sizes = ARRAYS.itemsize, len(layout.read_tracks) * OUTPUT.itemsize, len(layout.blanked) * COLUMN.itemsize
        ends = np.cumsum(sizes) // 8
        bins = int(tables.members["bins"].max(initial=0))
        self.values = [np.empty(RAGGED_VALUES if track.ragged else 0, track.item) for track in layout.read_tracks]
        self.scores = [np.empty(RAGGED_VALUES if track.ragged else 0, np.float32) for track in layout.read_tracks]
        self.ragged = [t for t, track in enumerate(layout.read_tracks) if track.ragged]
        self.shape: Shape | None = None
        self.samples: U64Array = np.zeros(1, np.uint64)  # for who asks before there are any
        self.held = Held(files)
        self.numbers = np.zeros(ends[-1], np.int64)
        self.call = Call(
            shards=tables.shards,
            layouts=tables.layouts,
            tracks=tables.tracks,
            members=tables.members,
            left_out=tables.left_out,
            runs=tables.runs,
            files=files.files,
            used=files.used,
            arrays=self.numbers[: ends[0]].view(ARRAYS),
            outputs=self.numbers[ends[0] : ends[1]].view(OUTPUT),
            columns=self.numbers[ends[1] :].view(COLUMN),
            fields=tables.fields,
            parts=np.empty(layout.seq_len + 1, PART),  # a token in each
            slots=np.empty(most_spans, SLOT),
            scratch=np.empty((layout.seq_len + _SLACK_ITEMS) * item_bytes, np.uint8),
            buffer=np.empty(BUFFER_BYTES, np.uint8),
            state=np.zeros(1, STATE),
            wants=np.empty(WANTS, WANT),
            room=make_room(PIECES, layout.seq_len, bins) if bins else _NO_ROOM,
            **_NONE_GIVEN,
        )
        self.state = self.call.state[0]
        self.state["packed_member"] = -1
        self.progress = self.call.state.view(np.int64)[: (STATE.names or ()).index("parts")]
        self.code = 0
        self.tables: KernelTables | None = None

    def start(self, shape: Shape, block: Array, tables: KernelTables, samples: U64Array, positions: U64Array) -> None:
        """Begin with a batch, whose arrays are in a block of memory."""
        self.progress[:] = 0
        self.spent_ns = self.passes = self.passed = 0
        if self.shape is not shape or self.tables is not tables:
            self.shape = None  # until all is there: the next batch does not go on with what an interrupt leaves
            self.members = np.empty(shape.samples, np.int64)
            self.windows, draws = np.empty((2, shape.samples), np.uint64)
            self.samples, self.positions = np.array([samples, positions], np.uint64)
            self.picks = Picks(self.samples, self.positions, self.members, self.windows, draws)
            self.order = PickBy(tables, np.empty(tables.room, np.uint64))
            self._call_with(**_NONE_GIVEN)
            self.shape, self.tables = shape, tables
        self.samples[:], self.positions[:] = samples, positions
        np.multiply(shape.in_block, block.__array_interface__["data"][0], out=self.numbers)
        self.numbers += shape.records
        for t in self.ragged:
            self._use_values(t)

    def give(self, ranges: Sequence[Sequence[range]]) -> None:
        """Let the samples of this batch be these tokens of their members' datasets."""
        self.shape = None  # for this batch only
        given = np.array([(part.start, part.stop) for parts in ranges for part in parts], GIVEN)
        self._call_with(given=given, first_given=np.cumsum([0, *map(len, ranges)]))

    def finish(self, batch: Batch, layout: BatchLayout) -> None:
        """Give the batch what has the size of what was read."""
        if layout.outputs.cu_seqlens:
            batch["cu_seqlens"] = batch["cu_seqlens"][: self.state["sequences"]]
            batch["max_seqlen"] = int(self.state["longest"])
        for t, track in enumerate(layout.tracks):
            if track.ragged:
                end = batch[f"{track.name}_offsets"][-1]
                batch[f"{track.name}_values"] = self.values[t][:end].copy()
                if track.scored:
                    batch[f"{track.name}_scores"] = self.scores[t][:end].copy()

    def place(self) -> list[int]:
        """Of the read that is under way."""
        return [int(self.state[name]) for name in ("sample", "row", "column", "at")]

    def grow(self) -> None:
        """More room for what state.track says, which keeps the values of complete samples."""
        track, room = int(self.state["track"]), self.call.room
        if track < 0:
            self._call_with(room=make_room(2 * len(room.pieces), len(room.tally) - 1, len(room.rooms)))
            return
        for kept in (self.values, self.scores):
            before = kept[track]
            kept[track] = np.empty(2 * int(self.state["value"]), before.dtype)
            kept[track][: len(before)] = before
        self._use_values(track)

    def use_held(self) -> None:
        """Let kernels have what is held of objects."""
        table, state = self.held.table, self.state
        state["held"], state["num_held"] = table.__array_interface__["data"][0], len(table)

    def _call_with(self, **arrays: Any) -> None:
        """Have these in the next calls."""
        self.call = self.call._replace(**arrays)
        self.run = fill_samples.bind(self.call, self.picks, self.order)

    def _use_values(self, track: int) -> None:
        """Where the concepts of a ragged track go, and their scores, if it has any."""
        values, scores, output = self.values[track], self.scores[track], self.call.outputs[track]
        output["values"], output["capacity"] = values.__array_interface__["data"][0], len(values)
        output["scores"] = scores.__array_interface__["data"][0]
