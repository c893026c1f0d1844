"""The compiled reader: a batch is one call of a kernel that holds no GIL, from sample indices to filled arrays."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.batch.descriptors import OpenFiles
from conceptloader.batch.kernels import fill, spans, streams
from conceptloader.batch.kernels.native import address_of
from conceptloader.batch.kernels.tables import ITEM, STREAM, make_tables
from conceptloader.batch.layout import Array, Batch, BatchLayout, Carving
from conceptloader.batch.memory import Pool
from conceptloader.batch.plain import ReferenceReader
from conceptloader.batch.reader import Allocate, I64Array, Order, U64Array
from conceptloader.blend import View
from conceptloader.blend.samples import present
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.order.mixture import Mixture
from conceptloader.storage.descriptors import Budget
from conceptloader.storage.reads import retrying

BUFFER_BYTES = 1 << 16
FOUND = 3  # numbers behind the state that kernels find for each other
NO_ORDER = Mixture([1]).kernel_tables
_SLACK_ITEMS = 3  # a window's label token, and one item on each side of it for dense tracks


class CompiledReader:
    """Reads the samples of an order; views[k] is its member k. See Reader. budget: of descriptors; the process's own.

    reads, read_bytes: of all batches so far, for tests and benchmarks.
    """

    def __init__(
        self,
        order: Order,
        views: Sequence[View | None],
        layout: BatchLayout,
        dp_rank: int = 0,
        budget: Budget | None = None,
    ) -> None:
        self.order, self.views, self.layout, self.dp_rank = order, tuple(views), layout, dp_rank
        self.reads = self.read_bytes = 0
        self._tables = make_tables(self.views, layout)
        self._files = OpenFiles(self._tables, budget)
        self._pool = Pool()
        self._options = _options(layout)
        self._shapes: dict[int, _Shape] = {}
        self._idle: list[_Workspace] = []
        self._running: dict[int, _Workspace] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledReader, (self.order, self.views, self.layout, self.dp_rank)

    def read(self, samples: U64Array, allocate: Allocate | None = None) -> Batch:
        """See Reader; by default in memory that is used again once the batch is gone."""
        work = self._workspace(samples)
        if isinstance(self.order, Mixture) and self.order.shuffle:
            return self._run(work, self.order.skips.global_indices(work.samples), self.order.kernel_tables, allocate)
        work.members[:], _, work.windows[:] = self.order.sample_many(samples)
        return self._run(work, work.samples[:0], NO_ORDER, allocate)

    def read_windows(
        self, members: I64Array, windows: U64Array, samples: U64Array, allocate: Allocate | None = None
    ) -> Batch:
        """`read` for given windows of given members of the order."""
        work = self._workspace(samples)
        work.members[:] = members
        work.windows[:] = windows
        return self._run(work, work.samples[:0], NO_ORDER, allocate)

    def where(self, thread: int) -> str:
        """See Reader."""
        work = self._running.get(thread)
        return "nothing" if work is None else self._describe(work)

    def _run(self, work: "_Workspace", positions: U64Array, order: Any, allocate: Allocate | None) -> Batch:
        """Call the kernel until the batch is complete."""
        shape = self._shape(len(work.samples))
        block = (allocate or self._pool.allocate)(shape.carving.size)
        arrays = shape.carving.views(block)
        thread = get_ident()
        self._running[thread] = work
        try:
            work.place(shape, address_of(block))
            # Attempts are counted for each read: the handles of many shards may go stale at once.
            place = [streams.SAMPLE, streams.ROW, streams.COLUMN, streams.AT]
            retrying(partial(self._attempt, work, positions, order, arrays), lambda: work.state[place].tolist())
        finally:
            del self._running[thread]
            self._idle.append(work)
        self.reads += int(work.state[streams.READS])
        self.read_bytes += int(work.state[streams.READ_BYTES])
        batch: Batch = arrays
        if self.layout.outputs.cu_seqlens:
            batch["cu_seqlens"] = arrays["cu_seqlens"][: work.state[streams.SEQUENCES]]
            batch["max_seqlen"] = int(work.state[streams.LONGEST])
        for t, track in enumerate(self.layout.tracks):
            if track.ragged:
                batch[f"{track.name}_values"] = work.values[t][: arrays[f"{track.name}_offsets"][-1]].copy()
        return batch

    def _attempt(self, work: "_Workspace", positions: U64Array, order: Any, arrays: dict[str, Array]) -> None:
        """Go on with a batch until it is complete. After a ReadError the next attempt reads on from there."""
        tables, files, state = self._tables, self._files, work.state
        fill_samples: Any = fill.fill_samples
        pinned: list[int] = []
        pinned_for = -1
        try:
            while True:
                if not state[streams.SAMPLE] and not state[streams.POSITION]:
                    work.begin(self.layout, arrays)
                clock = files.budget.begin()
                try:
                    code = fill_samples(
                        work.samples, positions, *order, work.members, work.draws, work.windows, files.files,
                        files.used, clock, tables.shards, tables.tracks, tables.members, tables.quarantine,
                        work.table, self._options, work.slots, work.scratch, work.buffer, state,
                    )  # fmt: skip
                finally:
                    files.budget.end(clock)
                if code == streams.OK:
                    return
                sample, row = int(state[streams.SAMPLE]), int(state[streams.ROW])
                if code == streams.NOT_OPEN or code == streams.CLOSED:
                    if sample != pinned_for:  # what was opened for the samples before has been used
                        files.unpin(pinned)
                        pinned, pinned_for = [], sample
                    work.note_opening()
                    try:
                        files.open(row)
                    except (FormatError, ReadError) as cause:
                        message = f"sample {work.samples[sample]}, dp_rank {self.dp_rank}: {cause.args[-1]}"
                        raise type(cause)(*cause.args[:-1], message) from cause
                    pinned.append(row)
                    if code == streams.CLOSED:
                        work.restart_sample()
                elif code == streams.FULL:
                    work.grow(int(state[streams.COLUMN]), int(state[streams.NEEDED]))
                elif code == streams.FAILED:
                    error = int(state[streams.ERRNO])
                    message = f"cannot read {self._describe(work)}"
                    work.restart_sample()
                    files.close(row)
                    if error < 0:
                        ended = "the file ends there; it was truncated after it was opened: restore it"
                        raise ReadError(errno.ENODATA, f"{message}: {ended}")
                    raise ReadError(error, f"{message}: {os.strerror(error)}")
                else:
                    raise self._damage(work, sample)
        finally:
            files.unpin(pinned)

    def _damage(self, work: "_Workspace", sample: int) -> Exception:
        """What is wrong with a sample, in the words of the plain reader."""
        present(self.views, int(work.members[sample]))
        one = slice(sample, sample + 1)
        where = f"sample {work.samples[sample]}, dp_rank {self.dp_rank}"
        try:
            plain = ReferenceReader(self.order, self.views, self.layout)
            plain.read_windows(work.members[one], work.windows[one], work.samples[one])
        except (FormatError, ConfigError) as error:
            return type(error)(f"{where}: {error}")
        return FormatError(
            f"{where}: {self._describe(work)}: found bytes that are not what the format promises; run "
            "`conceptloader verify --full`, restore or rebuild the dataset"
        )

    def _describe(self, work: "_Workspace") -> str:
        """What a call is reading."""
        state = work.state.tolist()
        sample = min(state[streams.SAMPLE], len(work.samples) - 1)
        path = self._files.path(state[streams.ROW], state[streams.COLUMN])
        if state[streams.SIZE] > 0:
            what = f"{state[streams.SIZE]} bytes at offset {state[streams.AT]} of {path}"
        elif state[streams.SIZE] < 0:
            what = f"the opening of {path} and what belongs to it"
        else:
            what = "the first read, or for the compilation of what reads"
        return f"{what}, sample {work.samples[sample]}, dp_rank {self.dp_rank}"

    def _workspace(self, samples: U64Array) -> "_Workspace":
        try:
            work = self._idle.pop()
        except IndexError:
            work = _Workspace.make(self.layout, int(self._tables.shards[:, ITEM].max(initial=1)))
        if len(work.members) != len(samples):
            work.members = np.empty(len(samples), np.int64)
            work.samples, work.draws, work.windows = np.empty((3, len(samples)), np.uint64)
        work.samples[:] = samples  # a copy: an array of another layout would have the kernel compiled again
        work.state[:] = 0
        return work

    def _shape(self, samples: int) -> "_Shape":
        shape = self._shapes.get(samples)
        if shape is None:
            shape = self._shapes[samples] = _Shape.make(self.layout, samples)
        return shape


@dataclass
class _Workspace:
    """What one call needs for itself. members, windows: of the samples; values: i64 of each ragged track, empty for
    others; the rest belongs to the kernels."""

    samples: U64Array
    members: I64Array
    draws: U64Array
    windows: U64Array
    slots: I64Array
    scratch: npt.NDArray[np.uint8]
    buffer: npt.NDArray[np.uint8]
    values: list[I64Array]
    state: I64Array
    shape: "_Shape | None" = None
    table: I64Array = field(default_factory=lambda: np.empty((0, 0), np.int64))

    @classmethod
    def make(cls, layout: BatchLayout, item_bytes: int) -> "_Workspace":
        most_spans = max((track.max_spans for track in layout.tracks), default=1)
        return cls(
            samples=np.empty(0, np.uint64),
            members=np.empty(0, np.int64),
            draws=np.empty(0, np.uint64),
            windows=np.empty(0, np.uint64),
            slots=np.empty((spans.SLOT_ROWS, most_spans), np.int64),
            scratch=np.empty((layout.seq_len + _SLACK_ITEMS) * item_bytes, np.uint8),
            buffer=np.empty(BUFFER_BYTES, np.uint8),
            values=[np.empty(1024 if track.ragged else 0, np.int64) for track in layout.tracks],
            state=np.zeros(streams.STATE_SIZE + FOUND, np.int64),
        )

    def place(self, shape: "_Shape", address: int) -> None:
        """Let the kernels fill the arrays of a block at `address`."""
        if self.shape is not shape:
            self.shape, self.table = shape, shape.arrays.copy()
        np.multiply(shape.in_block, address, out=self.table)
        self.table += shape.arrays

    def begin(self, layout: BatchLayout, arrays: dict[str, Array]) -> None:
        """Nothing of the batch has been read."""
        for t, track in enumerate(layout.tracks):
            if track.ragged:
                self.table[t + 1, spans.VALUES] = address_of(self.values[t])
                self.table[t + 1, spans.CAPACITY] = len(self.values[t])
                arrays[f"{track.name}_offsets"][0] = 0
        if layout.outputs.cu_seqlens:
            arrays["cu_seqlens"][0] = 0
            self.state[streams.SEQUENCE_SPACE] = len(arrays["cu_seqlens"])
            self.state[streams.SEQUENCES] = 1

    def note_opening(self) -> None:
        """For `_describe`: no read is under way."""
        self.state[[streams.COLUMN, streams.AT, streams.SIZE]] = STREAM, 0, -1

    def restart_sample(self) -> None:
        """Let the next call begin with the first token of the sample at hand."""
        if self.state[streams.POSITION]:
            self.state[streams.POSITION] = 0
        self.state[streams.SEQUENCES] = self.state[streams.SEQUENCES_BEFORE]

    def grow(self, track: int, needed: int) -> None:
        """Room for more ragged values, and the batch from its beginning."""
        self.values[track] = np.empty(2 * needed, np.int64)
        self.state[[streams.SAMPLE, streams.POSITION]] = 0


@dataclass(frozen=True)
class _Shape:
    """For one batch size: how memory is laid out, the kernels' table of arrays for a block at address 0, and 1 for each
    entry that is an address in the block."""

    carving: Carving
    arrays: I64Array
    in_block: I64Array

    @classmethod
    def make(cls, layout: BatchLayout, samples: int) -> "_Shape":
        carving = layout.carve(samples)
        table = np.zeros((1 + len(layout.tracks), spans.ARRAY_COLUMNS), np.int64)
        in_block = np.zeros_like(table)

        def put(row: int, column: int, name: str, beyond: int = 0) -> None:
            if name in carving.offsets:
                table[row, column] = carving.offsets[name] + beyond
                in_block[row, column] = 1

        put(0, fill.INPUT_IDS, "tokens")
        put(0, fill.LABELS, "tokens", 8)
        for column, name in enumerate(fill.ARRAY_NAMES):
            put(0, column, name)
        for row, track in enumerate(layout.tracks, 1):
            for column, suffix in enumerate(spans.ARRAY_SUFFIXES):
                put(row, column, f"{track.name}_{suffix}")
            table[row, spans.MAX_SPANS] = track.max_spans
            table[row, spans.MAX_CONCEPTS] = track.max_concepts
            table[row, spans.CUT_SPANS] = track.cut_spans
            table[row, spans.CUT_CONCEPTS] = track.cut_concepts
            table[row, spans.RAGGED] = track.ragged
        return cls(carving, table, in_block)


def _options(layout: BatchLayout) -> I64Array:
    options = np.zeros(fill.OPTION_COUNT, np.int64)
    options[fill.SEQ_LEN] = layout.seq_len
    options[fill.ROW_LENGTH] = layout.seq_len + layout.outputs.shared_labels
    options[fill.DOCUMENT_POSITIONS] = layout.outputs.position_ids == "document"
    options[fill.NEEDS_DOCUMENTS] = layout.outputs.needs_documents
    options[fill.MASK_BORDERS] = layout.outputs.loss_mask_borders
    options[fill.EOS_LOSS] = layout.outputs.eos_loss
    return options
