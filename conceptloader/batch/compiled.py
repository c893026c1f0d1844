"""The compiled reader: a batch is one call of a kernel that holds no GIL, from sample indices to filled arrays."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np

from conceptloader.batch.descriptors import OpenFiles
from conceptloader.batch.kernels import native
from conceptloader.batch.kernels.fill import fill_samples
from conceptloader.batch.kernels.records import BATCH, OUTPUT, SLOT, STATE, Call
from conceptloader.batch.kernels.tables import Tables, make_tables
from conceptloader.batch.layout import Array, Batch, BatchLayout, Carving
from conceptloader.batch.memory import Pool
from conceptloader.batch.plain import ReferenceReader
from conceptloader.batch.reader import Allocate, CompiledOrder, I64Array, Order, U64Array
from conceptloader.blend import View
from conceptloader.blend.samples import present
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.order.mixture import NO_TABLES, KernelTables
from conceptloader.storage.descriptors import Budget
from conceptloader.storage.reads import retrying

BUFFER_BYTES = 1 << 16
RAGGED_VALUES = 1024  # room for them at first
_SLACK_ITEMS = 3  # a window's label token, and one item on each side of it for dense tracks


class CompiledReader:
    """Reads the samples of an order; views[k] is its member k. See Reader. budget: of descriptors."""

    def __init__(
        self,
        order: Order,
        views: Sequence[View | None],
        layout: BatchLayout,
        dp_rank: int = 0,
        budget: Budget | None = None,
    ) -> None:
        self.order, self.views, self.layout, self.dp_rank = order, tuple(views), layout, dp_rank
        self._kernel_tables = order.kernel_tables if isinstance(order, CompiledOrder) else None
        self._tables = make_tables(self.views, layout)
        self._files = OpenFiles(self._tables, budget)
        self._pool = Pool()
        self._shapes: dict[int, _Shape] = {}
        self._workspaces: list[_Workspace] = []
        self._idle: list[_Workspace] = []
        self._running: dict[int, _Workspace] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledReader, (self.order, self.views, self.layout, self.dp_rank)

    def read(self, samples: U64Array, allocate: Allocate | None = None) -> Batch:
        """See Reader; by default in memory that is used again once the batch is gone."""
        if self._kernel_tables is not None:
            return self._run(samples, self._kernel_tables, None, allocate)
        members, _, windows = self.order.sample_many(samples)
        return self.read_windows(members, windows, samples, allocate)

    def read_windows(
        self, members: I64Array, windows: U64Array, samples: U64Array, allocate: Allocate | None = None
    ) -> Batch:
        """`read` for given windows of given members of the order."""
        return self._run(samples, NO_TABLES, (members, windows), allocate)

    @property
    def reads(self) -> int:
        """Reads of all batches so far, for tests and benchmarks."""
        return sum(int(work.state["reads"]) for work in self._workspaces)

    @property
    def read_bytes(self) -> int:
        """Bytes of these reads."""
        return sum(int(work.state["read_bytes"]) for work in self._workspaces)

    def where(self, thread: int) -> str:
        """See Reader."""
        work = self._running.get(thread)
        return "nothing" if work is None else self._describe(work)

    def _run(
        self, samples: U64Array, order: KernelTables, picked: tuple[Any, Any] | None, allocate: Allocate | None
    ) -> Batch:
        """A batch of samples, of the windows that are found by the tables or, with NO_TABLES, of `picked` ones."""
        shape = self._shapes.get(len(samples))
        if shape is None:
            shape = self._shapes[len(samples)] = _Shape.make(self.layout, self._tables, len(samples))
        block = (allocate or self._pool.allocate)(shape.carving.size)
        batch: Batch = shape.carving.views(block)
        try:
            work = self._idle.pop()
        except IndexError:
            work = _Workspace(self.layout, self._tables, self._files)
            self._workspaces.append(work)
        thread = get_ident()
        self._running[thread] = work
        try:
            work.start(shape, block, order)
            work.samples[:] = samples  # a copy: an array of another layout would have the kernel compiled again
            if picked is not None:
                work.members[:], work.windows[:] = picked
            if self.layout.outputs.cu_seqlens:
                batch["cu_seqlens"][0] = 0
                work.state["sequences"] = 1
            for track in shape.ragged.values():
                batch[f"{track}_offsets"][0] = 0
            if self._call(work) != native.OK:
                # Attempts are counted for each read: the handles of many shards may go stale at once.
                retrying(partial(self._go_on, work), work.place)
        finally:
            del self._running[thread]
            self._idle.append(work)
        if self.layout.outputs.cu_seqlens:
            batch["cu_seqlens"] = batch["cu_seqlens"][: work.state["sequences"]]
            batch["max_seqlen"] = int(work.state["longest"])
        for t, track in shape.ragged.items():
            batch[f"{track}_values"] = work.values[t][: batch[f"{track}_offsets"][-1]].copy()
        return batch

    def _call(self, work: "_Workspace") -> int:
        """Let the kernel go on with a batch."""
        budget, kernel = self._files.budget, fill_samples
        clock = budget.begin()
        try:
            work.code = kernel(work.call, work.picks, work.order, clock)
        finally:
            budget.end(clock)
        return work.code

    def _go_on(self, work: "_Workspace") -> None:
        """Complete a batch. After a ReadError the next attempt reads on from there."""
        files, state = self._files, work.state
        pinned: list[int] = []
        pinned_for = -1
        try:
            while work.code != native.OK:
                sample, row = int(state["sample"]), int(state["row"])
                if work.code in (native.NOT_OPEN, native.CLOSED):
                    if sample != pinned_for:  # what was opened for the samples before has been used
                        files.unpin(pinned)
                        pinned, pinned_for = [], sample
                    state["column"], state["at"], state["size"] = native.STREAM, 0, -1  # no read is under way
                    try:
                        files.open(row)
                    except (FormatError, ReadError) as cause:
                        message = f"sample {work.samples[sample]}, dp_rank {self.dp_rank}: {cause.args[-1]}"
                        raise type(cause)(*cause.args[:-1], message) from cause
                    pinned.append(row)
                    if work.code == native.CLOSED:
                        work.restart_sample()
                elif work.code == native.FULL:
                    work.grow()
                elif work.code == native.FAILED:
                    error, message = int(state["error"]), f"cannot read {self._describe(work)}"
                    work.restart_sample()
                    files.close(row)
                    work.code = native.NOT_OPEN
                    if error < 0:
                        ended = "the file ends there; it was truncated after it was opened: restore it"
                        raise ReadError(errno.ENODATA, f"{message}: {ended}")
                    raise ReadError(error, f"{message}: {os.strerror(error)}")
                else:
                    raise self._damage(work, sample)
                self._call(work)
        finally:
            files.unpin(pinned)

    def _damage(self, work: "_Workspace", sample: int) -> Exception:
        """What is wrong with a sample, in the words of the plain reader."""
        present(self.views, int(work.members[sample]))
        samples, members, windows, _ = (array[sample : sample + 1] for array in work.picks)
        where = f"sample {samples[0]}, dp_rank {self.dp_rank}"
        try:
            ReferenceReader(self.order, self.views, self.layout).read_windows(members, windows, samples)
        except (FormatError, ConfigError) as error:
            return type(error)(f"{where}: {error}")
        return FormatError(
            f"{where}: {self._describe(work)}: found bytes that are not what the format promises; run "
            "`conceptloader verify --full`, restore or rebuild the dataset"
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
            what = "the first read, or for the compilation of what reads"
        return f"{what}, sample {work.samples[sample]}, dp_rank {self.dp_rank}"


@dataclass(frozen=True)
class _Shape:
    """For one batch size: how memory is laid out, the kernels' BATCH and OUTPUT records for a block at address 0, and 1
    for each number in them that is an address in the block. ragged: the names of such tracks by number."""

    samples: int
    carving: Carving
    records: I64Array
    in_block: I64Array
    ragged: dict[int, str]

    @classmethod
    def make(cls, layout: BatchLayout, tables: Tables, samples: int) -> "_Shape":
        carving = layout.carve(samples)
        at_zero, at_one = (_records(layout, tables, carving, address) for address in (0, 1))
        ragged = {t: track.name for t, track in enumerate(layout.tracks) if track.ragged}
        return cls(samples, carving, at_zero, at_one - at_zero, ragged)


def _records(layout: BatchLayout, tables: Tables, carving: Carving, address: int) -> I64Array:
    """The BATCH and the OUTPUT of each track for a block at `address`, as the numbers that they are."""
    wants, at = layout.outputs, {name: address + offset for name, offset in carving.offsets.items()}
    if "tokens" in at:
        at["input_ids"], at["labels"] = at["tokens"], at["tokens"] + 8
    batch, outputs = np.zeros(1, BATCH), tables.files.copy()
    for name in at.keys() & {*(BATCH.names or ())}:
        batch[name] = at[name]
    batch["seq_len"], batch["row_length"] = layout.seq_len, layout.seq_len + wants.shared_labels
    batch["document_positions"] = wants.position_ids == "document"
    batch["needs_documents"], batch["mask_borders"] = wants.needs_documents, wants.loss_mask_borders
    batch["eos_loss"] = wants.eos_loss
    for output, track in zip(outputs, layout.tracks, strict=True):
        for name in OUTPUT.names or ():
            output[name] += at.get(f"{track.name}_{name}", 0)
        output["max_spans"], output["max_concepts"] = track.max_spans, track.max_concepts
        output["cut_spans"], output["cut_concepts"] = track.cut_spans, track.cut_concepts
        output["ragged"] = track.ragged
    return np.concatenate([batch.view(np.int64), outputs.view(np.int64)])


class _Workspace:
    """What one batch needs for itself. values: i64 of each ragged track, empty for others; picks, order: see
    fill_samples; code: what the kernel returned; state: of the call. numbers, progress: its batch and its
    outputs, and its state up to `reads`, as the int64 that they are."""

    def __init__(self, layout: BatchLayout, tables: Tables, files: OpenFiles) -> None:
        most_spans = max((track.max_spans for track in layout.tracks), default=1)
        item_bytes = int(tables.shards["item"].max(initial=1))
        batch_numbers = BATCH.itemsize // 8
        self.values = [np.empty(RAGGED_VALUES if track.ragged else 0, np.int64) for track in layout.tracks]
        self.shape: _Shape | None = None
        self.numbers = np.zeros(batch_numbers + len(tables.files) * (OUTPUT.itemsize // 8), np.int64)
        self.call = Call(
            shards=tables.shards,
            tracks=tables.tracks,
            members=tables.members,
            quarantine=tables.quarantine,
            files=files.files,
            used=files.used,
            batch=self.numbers[:batch_numbers].view(BATCH),
            outputs=self.numbers[batch_numbers:].view(OUTPUT),
            slots=np.empty(most_spans, SLOT),
            scratch=np.empty((layout.seq_len + _SLACK_ITEMS) * item_bytes, np.uint8),
            buffer=np.empty(BUFFER_BYTES, np.uint8),
            state=np.zeros(1, STATE),
        )
        self.state = self.call.state[0]
        self.progress = self.call.state.view(np.int64)[: (STATE.names or ()).index("reads")]
        self.code = 0

    def start(self, shape: _Shape, block: Array, order: KernelTables) -> None:
        """Begin with a batch, whose arrays are in a block of memory."""
        if self.shape is not shape:
            self.shape = shape
            self.members = np.empty(shape.samples, np.int64)
            self.samples, self.windows, draws = np.empty((3, shape.samples), np.uint64)
            self.picks: tuple[Any, ...] = self.samples, self.members, self.windows, draws
        np.multiply(shape.in_block, block.__array_interface__["data"][0], out=self.numbers)
        self.numbers += shape.records
        for t in shape.ragged:
            self.use_values(t, self.values[t])
        self.progress[:] = 0
        self.order = order

    def place(self) -> list[int]:
        """Of the read that is under way."""
        return [int(self.state[name]) for name in ("sample", "row", "column", "at")]

    def restart_sample(self) -> None:
        """Let the next call begin with the first token of the sample at hand."""
        self.state["position"] = 0
        self.state["sequences"] = self.state["sequences_before"]

    def use_values(self, track: int, values: I64Array) -> None:
        """Where the concepts of a ragged track go."""
        self.values[track], output = values, self.call.outputs[track]
        output["values"], output["capacity"] = values.__array_interface__["data"][0], len(values)

    def grow(self) -> None:
        """More room for ragged values, and the batch from its beginning."""
        self.use_values(int(self.state["track"]), np.empty(2 * int(self.state["needed"]), np.int64))
        self.state["sample"] = self.state["position"] = 0
        self.state["sequences"] = 1
