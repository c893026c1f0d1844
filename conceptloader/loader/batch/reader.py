"""The reader: a batch is one call of a kernel that holds no GIL, from sample indices to filled arrays."""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from conceptloader.config import View, present
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.kernels import system
from conceptloader.kernels.fill import fill_samples
from conceptloader.kernels.kernel import Array, I64Array, U64Array
from conceptloader.kernels.order import NO_TABLES
from conceptloader.loader.batch.after import WithoutLoss, steps_after
from conceptloader.loader.batch.layout import LOSS_FIELD, Allocate, Batch, BatchLayout, Boundaries
from conceptloader.loader.batch.messages import explain
from conceptloader.loader.batch.open_files import OpenFiles
from conceptloader.loader.batch.tables import make_tables
from conceptloader.loader.batch.workspace import Shape, Workspace
from conceptloader.order.balance import Costs
from conceptloader.order.mixture import Mixture
from conceptloader.storage.handles import HANDLES, Handles
from conceptloader.storage.reads import retrying

LATE_NS = 200_000  # a sample: many times what takes longest from memory, less than a network takes
_LATE_BATCHES = 32
_KEPT_BYTES = (32 << 20) - (8 << 10)  # with what malloc adds, the largest block that it learns from
_FEW = 4  # threads; more of them have enough reads under way without announcing any
# Over one sample, without an error. A pack out of a store takes seven: tables of documents in two, the stream and
# tables of spans, their entries, index, data, and the last one. The rest is for files that other threads close
# meanwhile, because a read of theirs failed: each time costs a pass.
MOST_PASSES = 100
_TRIES = 10  # passes over one sample, before its thread keeps the others from opening and closing files

Picked = tuple[I64Array, U64Array]
"""[B] members of the order, and [B] windows of these."""


class Order(Protocol):
    """Mixture, or anything that says which window of which member a sample is.

    With the `kernel_tables` of a Mixture, kernels find windows by themselves.
    """

    def sample_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array, U64Array]: ...


class BatchReader:
    """Reads batches of the samples of an order; views[k] is its member k.

    Safe to use from many threads, after a fork, and to pickle. dp_rank: named in errors, with the sample; None to
    inspect samples of no run. handles: of files.

    Attributes:
        dealt: Says which samples are read for those that are asked for, if not these themselves; see TrainingRun.deal.
    """

    def __init__(
        self,
        order: Order,
        views: Sequence[View | None],
        layout: BatchLayout,
        dp_rank: int | None = None,
        handles: Handles = HANDLES,
    ) -> None:
        self.views, self.layout, self.dp_rank = tuple(views), layout, dp_rank
        here = [view for view in views if view is not None]
        kinds = {view.kind for view in here}
        masked = kinds - {"window"} or any(LOSS_FIELD in view.dataset.field_names for view in here)
        self._packed = "pack" in kinds
        self.without_loss = WithoutLoss(dp_rank)  # samples that were read so far, by who trains
        self._after = steps_after(self.views, layout)
        if masked and layout.outputs.loss_mask and dp_rank is not None:
            self._after.append(self.without_loss.add)
        self.follow(order)
        self.dealt: Callable[[U64Array], U64Array] | None = None
        self._tables = make_tables(self.views, layout)
        self._files = OpenFiles(self._tables, handles)
        self._shapes: dict[int, Shape] = {}
        self._idle: list[Workspace] = []
        self._running: dict[int, Workspace] = {}
        self._late = 0  # batches for which the storage counts as slow
        # Freed at once, untouched: from then on malloc of glibc keeps what is freed of up to that size. It would give
        # the memory of batches back to the system, and page faults of the next ones take longer than reading them.
        np.empty(_KEPT_BYTES, np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.order, self.views, self.layout, self.dp_rank), {"dealt": self.dealt}

    def follow(self, order: Order) -> None:
        """Read on in another order of the same members, which agrees with this one on what is being read."""
        self.order = order

    def costs(self, order: Order) -> Costs:
        """The work of attention in samples of an order: the sums of squared lengths of their sequences.

        Sequences are what attention keeps apart: documents or their pieces, and padding. Only the tables of documents
        are read. What is returned raises as `read`.
        """
        size = self.layout.seq_len
        return partial(_costs, BatchReader(order, self.views, boundaries(size), self.dp_rank), size)

    def packs(self, member: int, block: int) -> Array:
        """What kernels put into the packs of a block of a member, PIECE [n]. For one thread. Raises: as `read`."""
        packing = present(self.views, member).member.packing
        assert packing is not None
        first = np.array([block * packing.bins], np.uint64)
        self.read(np.zeros(1, np.uint64), picked=(np.array([member]), first))
        work = self._idle[-1]
        found: Array = work.call.room.packed[: work.state["packed"]].copy()
        return found

    def on(self, order: Order) -> "BatchReader":
        """A reader of the same members in another order, in place of this one."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), order=order)
        return other

    def read(
        self,
        samples: U64Array,
        allocate: Allocate | None = None,
        picked: Picked | None = None,
        ranges: Sequence[Sequence[range]] | None = None,
    ) -> Batch:
        """The batch of trainer sample indices uint64 [B], as the layout says, in memory from `allocate`.

        Where samples are repeated, [2, B]: with the positions at which they are trained, which decide what `exclude`
        takes out.

        picked: the windows to read for them; by default those that the order says. ranges: for each sample, in place of
        the window that is picked, seq_len + 1 tokens of its member's dataset, or more, that are read end to end. A
        document begins with each range, and where the dataset has one.

        Raises: FormatError for corrupt data, ReadError if the operating system fails; ConfigError for a sample of a
        member that has left the configuration.
        """
        if self.dealt is not None and samples.ndim == 1:  # else they fill a last batch, which stays as it is
            samples = self.dealt(samples)
        samples, positions = samples if samples.ndim == 2 else (samples, samples)
        shape = self._shape(len(samples))
        size = shape.carving.size
        block = np.empty(size, np.uint8) if allocate is None else allocate(size)
        batch: Batch = shape.carving.views(block)
        work, thread = self._workspace(), get_ident()
        self._running[thread] = work
        try:
            order = self.order.kernel_tables(samples) if picked is None and isinstance(self.order, Mixture) else None
            work.start(shape, block, NO_TABLES if order is None else order, samples, positions)
            if order is None:
                work.members[:], work.windows[:] = picked or self.order.sample_many(samples)[::2]
            if ranges is not None:
                self._check_ranges(work, ranges)
                work.give(ranges)
            self._fill(work)
            work.finish(batch, self.layout)
            for step in self._after:
                step(batch, samples, work.members)
        finally:
            if work.held.touched:
                work.held.drop()
                work.use_held()
            del self._running[thread]
            self._idle.append(work)  # from here on it is another thread's
        return batch

    def _shape(self, samples: int) -> Shape:
        shape = self._shapes.get(samples)
        if shape is None:
            shape = self._shapes[samples] = Shape.make(self.layout, self._tables, samples)
        return shape

    def _workspace(self) -> Workspace:
        try:
            return self._idle.pop()
        except IndexError:
            return Workspace(self.layout, self._tables, self._files)

    def _fill(self, work: Workspace) -> None:
        """Passes of the kernel until all samples are complete; and how slow the storage is."""
        # Packing takes time too, which says nothing of the storage.
        work.state["announcing"] = self._late and not self._packed and len(self._running) <= _FEW
        if self._pass(work) != system.OK:
            # Attempts are counted for each read: the handles of many shards may go stale at once.
            retrying(partial(self._complete, work), work.place)
            self._files.handles.shrink()
        if work.spent_ns > LATE_NS * len(work.samples):
            self._late = _LATE_BATCHES
        elif self._late:
            self._late -= 1

    def where(self, thread: int) -> str:
        """What the thread of this identifier is reading at this moment, for a log: sample, file, offset."""
        work = self._running.get(thread)
        return "nothing" if work is None else self._describe(work)

    def _pass(self, work: Workspace) -> int:
        """Let the kernel go over the samples that are not complete."""
        handles = self._files.handles
        clock, began = handles.begin(), perf_counter_ns()
        work.state["clock"] = clock
        try:
            if work.run():
                raise fill_samples.stopped()
            work.code = work.run.block[0]
        finally:
            work.spent_ns += perf_counter_ns() - began
            handles.end(clock)
        return work.code

    def _complete(self, work: Workspace) -> None:
        """Repeat passes until nothing lacks. After a ReadError the next attempt resumes from there."""
        lock = self._files.handles.lock
        while work.code != system.OK:
            # Threads may close each other's files before these are read, if few may be open: then they take turns.
            with lock if work.passes > _TRIES else nullcontext():
                self._provide(work)
                self._pass(work)

    def _provide(self, work: Workspace) -> None:
        """What the last pass lacked. Raises: FormatError, ReadError, ConfigError if there is no such thing."""
        state = work.state
        if work.code == system.WANTS:
            self._get(work)
        elif work.code == system.GROW:
            work.grow()
        elif work.code == system.FAILED:
            error, message = int(state["value"]), f"cannot read {self._describe(work)}"
            self._files.close(int(state["row"]))
            work.code, work.passes, state["wants"] = int(system.WANTS), 0, 0
            if error < 0:
                fix = "it was truncated after it was opened: restore it, then run `conceptloader verify DATASET`"
                raise ReadError(message, "the file ends there", fix=fix, errno=errno.ENODATA)
            raise ReadError(message, os.strerror(error), errno=error)
        else:
            sample = int(state["sample"])
            view, who = self.views[work.members[sample]], self._who(work, sample)
            raise explain(state, self._files, self.layout, view, who)

    def _get(self, work: Workspace) -> None:
        """What a pass lacked: files and ranges of objects.

        Files, as many as the limit on descriptors allows, but all of the first sample that lacks any.
        """
        files, state, first = self._files, work.state, int(work.state["complete"])
        if first != work.passed:  # the samples before are complete
            work.passed, work.passes = first, 0
            files.handles.shrink()
        work.passes += 1
        most = files.handles.capacity // (4 * files.files.shape[1] * len(self._running))
        opened: set[int] = set()
        for sample, row, column, start, stop in work.call.wants[: state["wants"]].tolist():
            who = self._who(work, sample)
            if work.passes > MOST_PASSES:
                raise ReadError(
                    f"{who}: {files.path(row, column)}",
                    f"bytes [{start}, {stop}) are still not at hand after {MOST_PASSES} passes",
                    fix="if the limit on open files is low, raise it (ulimit -n)",
                    errno=errno.EBUSY,
                )
            if files.files[row, column] == system.OBJECT:
                work.held.want(row, column, start, stop - start, who)
            elif row not in opened and (sample == first or len(opened) < most):
                state["sample"], state["row"], state["column"] = sample, row, system.STREAM
                state["at"], state["size"] = 0, -1  # no read is under way
                try:
                    files.open(row)
                except (FormatError, ReadError) as error:
                    raise error.within(who) from error
                opened.add(row)
        if work.held:
            work.held.fetch()
            work.use_held()

    def _who(self, work: Workspace, sample: int) -> str:
        return f"sample {work.samples[sample]}" + ("" if self.dp_rank is None else f", dp_rank {self.dp_rank}")

    def _check_ranges(self, work: Workspace, ranges: Sequence[Sequence[range]]) -> None:
        """Raises: ConfigError for what kernels must not be given."""
        wanted = self.layout.seq_len + 1
        for sample, (member, parts) in enumerate(zip(work.members.tolist(), ranges, strict=True)):
            tokens, given = present(self.views, member).dataset.num_tokens, sum(map(len, parts))
            outside = [part for part in parts if not 0 <= part.start <= part.stop <= tokens]
            if outside or given < wanted:
                raise ConfigError(
                    self._who(work, sample),
                    f"{given} tokens in {len(parts)} ranges, {len(outside)} of them outside of the "
                    f"dataset: {outside[:1]}",
                    f"{wanted} of its {tokens} tokens",
                    "correct the token ranges of the order; if it is conceptloader's own, report this as a bug",
                )

    def _describe(self, work: Workspace) -> str:
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


def boundaries(seq_len: int) -> BatchLayout:
    """Of batches that have the boundaries of documents alone, for which the tables of documents are read."""
    return BatchLayout(seq_len=seq_len, outputs=Boundaries(cu_seqlens=True, loss_mask=False))


def _costs(reader: BatchReader, size: int, samples: U64Array) -> I64Array:
    """See BatchReader.costs. size: inputs of a sample."""
    ends = reader.read(samples)["cu_seqlens"].astype(np.int64)
    costs = np.zeros(len(samples), np.int64)
    np.add.at(costs, ends[:-1] // size, np.diff(ends) ** 2)
    return costs
