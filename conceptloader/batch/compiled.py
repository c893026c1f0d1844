"""The compiled reader: a batch is one call of a kernel that holds no GIL, from sample indices to filled arrays."""

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import numpy as np

from conceptloader.batch.descriptors import OpenFiles
from conceptloader.batch.held import Held
from conceptloader.batch.layout import Allocate, Array, Batch, BatchLayout, BatchMemory, Carving
from conceptloader.batch.messages import explain
from conceptloader.batch.reader import (
    CompiledOrder,
    Order,
    Picked,
    decode_records,
    in_sample,
    sample_randoms,
    weigh,
)
from conceptloader.batch.tables import FILES, Tables, make_tables
from conceptloader.blend import View
from conceptloader.blend.samples import kind_of, present
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.kernels import system
from conceptloader.kernels.fill import fill_samples
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.kernels.order import NO_TABLES, KernelTables
from conceptloader.kernels.packing import make_room
from conceptloader.kernels.records import ARRAYS, COLUMN, OUTPUT, PART, RUN, SLOT, STATE, Call, PickBy, Picks, Room
from conceptloader.storage.descriptors import Budget
from conceptloader.storage.reads import retrying

BUFFER_BYTES = 1 << 16
RAGGED_VALUES = 1024  # room for them at first
PIECES = 4096  # of documents in a block of packs; room for them at first
_NO_ROOM = make_room(0, 0, 0)
LATE_NS = 200_000  # a sample: many times what takes longest from memory, less than a network takes
_LATE_BATCHES = 32
LOOK_NS = 60 * 10**9  # from one look at a dataset in use to the next
_FEW = 4  # threads; more of them have enough reads under way without announcing any
_SLACK_ITEMS = 3  # a window's label token, and one item on each side of it for dense tracks


class CompiledReader:
    """Reads batches of the samples of an order; views[k] is its member k. Safe to use from many threads, after a fork,
    and to pickle. dp_rank: named in errors, with the sample, if it is given. budget: of descriptors."""

    def __init__(
        self,
        order: Order,
        views: Sequence[View | None],
        layout: BatchLayout,
        dp_rank: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.views, self.layout, self.dp_rank = tuple(views), layout, dp_rank
        self._decodes = any(track.decoded for track in layout.read_tracks)
        self._packed = any(view is not None and kind_of(view) == "pack" for view in views)
        self.follow(order)
        self._tables = make_tables(self.views, layout)
        self._files = OpenFiles(self._tables, budget)
        self._memory = BatchMemory()
        self._shapes: dict[int, _Shape] = {}
        self._workspaces: list[_Workspace] = []
        self._idle: list[_Workspace] = []
        self._running: dict[int, _Workspace] = {}
        self._late = 0  # batches for which the storage counts as slow
        # One of all ranks looks: each would be a request to the same server.
        self._pause_ns = LOOK_NS // max(8, len(self._tables.owners))
        self._due_ns = sys.maxsize if dp_rank else perf_counter_ns() + self._pause_ns

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.order, self.views, self.layout, self.dp_rank)

    def follow(self, order: Order) -> None:
        """Read on in another order of the same members, which agrees with this one on what is being read."""
        self.order, self._kernel_tables = order, order.kernel_tables if isinstance(order, CompiledOrder) else None

    def read(
        self,
        samples: U64Array,
        allocate: Allocate | None = None,
        picked: Picked | None = None,
        pieces: Sequence[Sequence[range]] | None = None,
    ) -> Batch:
        """The batch of trainer sample indices uint64 [B], as the layout says, in memory from `allocate`; by default in
        memory that is used again once the batch is gone.

        picked: the windows to read for them; by default those that the order says. pieces: for each sample, in place of
        the window that is picked, seq_len + 1 tokens of its member's dataset, or more, that are read end to end. Each
        piece counts as a document, whose number is its place among those of the sample.

        Raises: FormatError for damaged data, ReadError if the operating system fails; ConfigError for a sample of a
        member that has left the configuration.
        """
        order = self._kernel_tables if picked is None else None
        shape = self._shapes.get(len(samples))
        if shape is None:
            shape = self._shapes[len(samples)] = _Shape.make(self.layout, self._tables, len(samples))
        block = (allocate or self._memory.allocate)(shape.carving.size)
        batch: Batch = shape.carving.views(block)
        try:
            work = self._idle.pop()
        except IndexError:
            work = _Workspace(self.layout, self._tables, self._files)
            self._workspaces.append(work)
        thread = get_ident()
        self._running[thread] = work
        try:
            work.start(shape, block, NO_TABLES if order is None else order, samples)
            if order is None:
                work.members[:], work.windows[:] = picked or self.order.sample_many(samples)[::2]
            if pieces is not None:
                self._check_pieces(work, pieces)
                work.use_pieces(pieces)
            if self.layout.outputs.cu_seqlens:
                batch["cu_seqlens"][0] = 0
                work.state["sequences"] = 1
            for track in shape.ragged.values():
                batch[f"{track}_offsets"][:] = 0  # not only the first: samples may be left out for the moment
            # Packing takes time too, which says nothing of the storage.
            alone = self._late and not self._packed and len(self._running) <= _FEW
            work.state["announced"] = -1 if alone else len(samples)
            if self._call(work) != system.OK or self._files.unproven:
                # Attempts are counted for each read: the handles of many shards may go stale at once.
                retrying(partial(self._go_on, work), work.place)
            if work.spent_ns > LATE_NS * len(samples):
                self._late = _LATE_BATCHES
            elif self._late:
                self._late -= 1
            if self.layout.outputs.cu_seqlens:
                batch["cu_seqlens"] = batch["cu_seqlens"][: work.state["sequences"]]
                batch["max_seqlen"] = int(work.state["longest"])
            for t, track in shape.ragged.items():
                batch[f"{track}_values"] = work.values[t][: batch[f"{track}_offsets"][-1]].copy()
                if self.layout.tracks[t].scored:
                    batch[f"{track}_scores"] = work.scores[t][: batch[f"{track}_offsets"][-1]].copy()
            if perf_counter_ns() > self._due_ns:
                retrying(self._files.look_again)
                self._due_ns = perf_counter_ns() + self._pause_ns
            members = work.members.copy() if self._decodes else None
        finally:
            if work.held.touched:
                work.let_go()
            del self._running[thread]
            self._idle.append(work)  # from here on it is another thread's
        if self.layout.outputs.random:
            batch["random"][:] = sample_randoms(self.layout.random_key, samples)
        if self.layout.weights is not None:
            weigh(batch, self.layout.weights, samples)
        if members is not None:
            decode_records(batch, self.layout, self.views, members)
        return batch

    def where(self, thread: int) -> str:
        """What the thread of this identifier is reading at this moment, for a log: sample, file, offset."""
        work = self._running.get(thread)
        return "nothing" if work is None else self._describe(work)

    def _call(self, work: "_Workspace") -> int:
        """Let the kernel go on with a batch."""
        budget = self._files.budget
        clock, began = budget.begin(), perf_counter_ns()
        work.state["clock"] = clock
        try:
            if work.run():
                raise fill_samples.stopped()
            work.code = work.run.block[0]
        finally:
            work.spent_ns += perf_counter_ns() - began
            budget.end(clock)
        return work.code

    def _go_on(self, work: "_Workspace") -> None:
        """Complete a batch. After a ReadError the next attempt reads on from there."""
        files, state = self._files, work.state
        pinned: list[int] = []
        pinned_for = -1
        try:
            while work.code != system.OK or work.left_out:
                sample, row = int(state["sample"]), int(state["row"])
                if work.code in (system.NOT_OPEN, system.CLOSED):
                    if sample != pinned_for:  # what was opened for the samples before has been used
                        files.unpin(pinned)
                        pinned, pinned_for = [], sample
                    state["column"], state["at"], state["size"] = system.STREAM, 0, -1  # no read is under way
                    try:
                        files.open(row)
                    except (FormatError, ReadError) as cause:
                        raise in_sample(cause, self._who(work, sample)) from cause
                    pinned.append(row)
                    if work.code == system.CLOSED:
                        work.restart_sample()
                elif work.code == system.FULL:
                    work.grow()
                elif work.code == system.MORE:
                    room = work.call.room
                    work.use_room(make_room(2 * len(room.pieces), self.layout.seq_len, len(room.rooms)))
                elif work.code == system.MISSING:
                    column = int(state["column"])
                    if files.files[row, column] == system.OBJECT:
                        place = row, column, int(state["at"]), int(state["size"])
                        work.held.want(*place, self._who(work, sample))
                    work.leave_out_sample()
                elif work.code == system.OK:  # but for samples that were left out: all that they miss is known
                    work.next_round()
                elif work.code == system.FAILED:
                    error, message = int(state["value"]), f"cannot read {self._describe(work)}"
                    work.restart_sample()
                    files.close(row)
                    work.code = system.NOT_OPEN
                    if error < 0:
                        ended = "the file ends there; it was truncated after it was opened: restore it"
                        raise ReadError(errno.ENODATA, f"{message}: {ended}")
                    raise ReadError(error, f"{message}: {os.strerror(error)}")
                else:
                    view = self.views[work.members[sample]]
                    raise explain(state, files, self.layout, view, self._who(work, sample))
                self._call(work)
            opened = files.unproven.copy()
            for dataset in {dataset for dataset, _ in opened}:
                dataset.require_unchanged()
            files.unproven -= opened  # what was opened meanwhile stays
        finally:
            files.unpin(pinned)

    def _who(self, work: "_Workspace", sample: int) -> str:
        return f"sample {work.samples[sample]}" + ("" if self.dp_rank is None else f", dp_rank {self.dp_rank}")

    def _check_pieces(self, work: "_Workspace", pieces: Sequence[Sequence[range]]) -> None:
        """Raises: ConfigError for what kernels must not be given."""
        for sample, (member, parts) in enumerate(zip(work.members.tolist(), pieces, strict=True)):
            tokens, wanted = present(self.views, member).dataset.num_tokens, self.layout.seq_len + 1
            outside = [part for part in parts if not 0 <= part.start <= part.stop <= tokens]
            if outside or sum(map(len, parts)) < wanted:
                raise ConfigError(
                    f"{self._who(work, sample)}: found {sum(map(len, parts))} tokens in {len(parts)} pieces, of which "
                    f"{len(outside)} {outside[:1]} are not in the dataset, expected {wanted} of its {tokens}; correct "
                    "the order"
                )

    def _describe(self, work: "_Workspace") -> str:
        """What a call is reading."""
        state = work.state
        sample = min(int(state["sample"]), len(work.samples) - 1)
        path = self._files.path(int(state["row"]), int(state["column"]))
        if state["size"] > 0:
            what = f"{state['size']} bytes at offset {state['at']} of {path}"
        elif state["size"] < 0:
            what = f"the opening of {path} and what belongs to it"
        else:
            what = "the first read"
        return f"{what}, {self._who(work, sample)}"


@dataclass(frozen=True)
class _Shape:
    """For one batch size: how memory is laid out, the kernels' ARRAYS and OUTPUT records for a block at address 0, and
    1 for each number in them that is an address in the block. ragged: the names of such tracks by number."""

    samples: int
    carving: Carving
    records: I64Array
    in_block: I64Array
    ragged: dict[int, str]

    @classmethod
    def make(cls, layout: BatchLayout, tables: Tables, samples: int) -> "_Shape":
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
        arrays["mask_borders"][0], arrays["eos_loss"][0] = wants.loss_mask_borders, wants.eos_loss
        arrays["ignore_index"][0] = wants.ignore_index or 0
        for t, track in enumerate(layout.read_tracks):
            for name in OUTPUT.names or ():
                if f"{track.name}_{name}" in at:
                    outputs[name][:, t] = at[f"{track.name}_{name}"], 1
                elif hasattr(track, name):
                    outputs[name][0, t] = getattr(track, name)
            for file in FILES:
                outputs[f"{file}_file"][0, t] = tables.kinds.index(f"{track.track}.{file}")
            outputs["width"][0, t], outputs["single"][0, t] = track.item.itemsize, track.numbers is not None
        columns = np.zeros((2, len(layout.fields)), COLUMN)
        for column, field in zip(columns.T, layout.fields, strict=True):
            column["address"], column["width"][0] = [at[field.name], 1], field.dtype.itemsize
            column["labels"][0] = field.labels
        tables_of = arrays, outputs, columns
        records, in_block = (np.concatenate([table[k].view(np.int64) for table in tables_of]) for k in (0, 1))
        ragged = {t: track.name for t, track in enumerate(layout.read_tracks) if track.ragged}
        return cls(samples, carving, records, in_block, ragged)


class _Workspace:
    """What one batch needs for itself. values: of each ragged track, empty for others; scores: of these; picks,
    order: see fill_samples; run: this kernel with these arguments; code: what it returned; spent_ns: in it; left_out:
    whether samples were, in this round; state: of the call. numbers, progress: its arrays and its outputs, and its
    state up to `reads`, as the int64 that they are."""

    def __init__(self, layout: BatchLayout, tables: Tables, files: OpenFiles) -> None:
        most_spans = max((track.max_spans for track in layout.read_tracks), default=1)
        item_bytes = int(tables.shards["item"].max(initial=1))
        sizes = ARRAYS.itemsize, len(layout.read_tracks) * OUTPUT.itemsize, len(layout.fields) * COLUMN.itemsize
        ends = np.cumsum(sizes) // 8
        bins = int(tables.members["bins"].max(initial=0))
        self.values = [np.empty(RAGGED_VALUES if track.ragged else 0, track.item) for track in layout.read_tracks]
        self.scores = [np.empty(RAGGED_VALUES if track.ragged else 0, np.float32) for track in layout.read_tracks]
        self.shape: _Shape | None = None
        self.samples: U64Array = np.zeros(1, np.uint64)  # for who asks before there are any
        self.held = Held(files)
        self.numbers = np.zeros(ends[-1], np.int64)
        self.call = Call(
            shards=tables.shards,
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
            room=make_room(PIECES, layout.seq_len, bins) if bins else _NO_ROOM,
        )
        self.state = self.call.state[0]
        self.state["packed_member"] = -1
        self.progress = self.call.state.view(np.int64)[: (STATE.names or ()).index("reads")]
        self.code = 0
        self.tables: KernelTables | None = None

    def start(self, shape: _Shape, block: Array, tables: KernelTables, samples: U64Array) -> None:
        """Begin with a batch, whose arrays are in a block of memory."""
        self.progress[:] = 0
        self.left_out, self.spent_ns = False, 0
        if self.shape is not shape or self.tables is not tables:
            self.shape = None  # until all is there: the next batch does not go on with what an interrupt leaves
            self.members = np.empty(shape.samples, np.int64)
            self.windows, draws = np.empty((2, shape.samples), np.uint64)
            self.samples = np.array(samples, np.uint64)
            self.picks = Picks(self.samples, self.members, self.windows, draws)
            self.order = PickBy(tables, np.empty(tables.room, np.uint64))
            self.run = fill_samples.bind(self.call, self.picks, self.order)
            self.shape, self.tables = shape, tables
        self.samples[:] = samples
        np.multiply(shape.in_block, block.__array_interface__["data"][0], out=self.numbers)
        self.numbers += shape.records
        for t in shape.ragged:
            self.use_values(t, self.values[t], self.scores[t])

    def use_pieces(self, pieces: Sequence[Sequence[range]]) -> None:
        """Let the samples of this batch be these tokens of their members, as if each were a view with such runs."""
        self.shape = None  # the next batch begins anew
        members, runs = self.call.members[self.members], list[tuple[int, int]]()
        for member, parts in zip(members, pieces, strict=True):
            member["start"], member["count"], member["by_document"] = 0, 1, 0
            member["first_run"], member["runs"] = len(runs), len(parts)
            sources = [part.start for part in parts]
            runs += zip(accumulate(map(len, parts), initial=0), [*sources, 0], strict=True)
        call = self.call._replace(members=members, runs=np.array(runs, RUN))
        numbers, windows = np.arange(len(members)), np.zeros(len(members), np.uint64)
        self.run = fill_samples.bind(call, Picks(self.samples, numbers, windows, self.picks.draws), self.order)

    def place(self) -> list[int]:
        """Of the read that is under way."""
        return [int(self.state[name]) for name in ("sample", "row", "column", "at")]

    def restart(self) -> None:
        """Let the next call begin with the first sample."""
        self.state["sample"] = self.state["position"] = 0
        self.state["sequences"] = 1
        self.left_out = False

    def next_round(self) -> None:
        """Begin anew, with what samples that were left out asked for."""
        if self.held:
            self.held.fetch()
            self.use_held()
        self.state["announced"] = len(self.samples)
        self.restart()

    def let_go(self) -> None:
        """Keep no more of objects than what the next batches are likely to need."""
        self.held.drop()
        self.use_held()

    def use_held(self) -> None:
        """Let kernels have what is held of objects."""
        table, state = self.held.table, self.state
        state["held"], state["num_held"] = table.__array_interface__["data"][0], len(table)

    def use_room(self, room: Room) -> None:
        """Pack in other arrays."""
        self.call = self.call._replace(room=room)
        self.run = fill_samples.bind(self.call, self.picks, self.order)

    def leave_out_sample(self) -> None:
        """Let the next call begin with the next sample."""
        self.restart_sample()
        self.state["sample"] += 1
        self.left_out = True

    def restart_sample(self) -> None:
        """Let the next call begin with the first token of the sample at hand."""
        self.state["position"] = 0
        self.state["sequences"] = self.state["sequences_before"]

    def use_values(self, track: int, values: Array, scores: Array) -> None:
        """Where the concepts of a ragged track go, and their scores, if it has any."""
        self.values[track], self.scores[track], output = values, scores, self.call.outputs[track]
        output["values"], output["capacity"] = values.__array_interface__["data"][0], len(values)
        output["scores"] = scores.__array_interface__["data"][0]

    def grow(self) -> None:
        """More room for ragged values, and the batch from its beginning."""
        room = 2 * int(self.state["value"])
        track = int(self.state["track"])
        self.use_values(track, np.empty(room, self.values[track].dtype), np.empty(room, np.float32))
        self.restart()
