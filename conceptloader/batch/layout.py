"""Names, shapes, types and memory of a batch: the contract between the reader, collation and adapters."""

import math
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from conceptloader.blend import Outputs
from conceptloader.kernels.kernel import Array as Array
from conceptloader.kernels.records import TRUNCATED as TRUNCATED

Batch = dict[str, Any]
"""Arrays by name; max_seqlen is an int."""
AnyBatch = TypeVar("AnyBatch", bound=Batch)
Block = npt.NDArray[np.uint8]
Allocate = Callable[[int], Block]
"""Bytes -> a block of memory, not initialized, in which the arrays of a batch are laid out."""

BEGINS_BEFORE, ENDS_AFTER = 1, 2  # bits of <track>_flags
ALIGNMENT = 64
LOSS_FIELD = "loss_mask"  # the token-aligned field that, where a dataset has it, switches the loss of its tokens off
LOSS_WEIGHT = "loss_weight"
I8, I4, F4, U1 = map(np.dtype, ("i8", "i4", "f4", "u1"))

_LARGE = 1 << 22  # bytes of a block from which on numpy, too, asks for huge pages


class ArraySpec(NamedTuple):
    """shape with the samples first; `blank` is what the array holds where nothing was read.

    along: whether the second dimension runs over the tokens of a sample.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blank: int = 0
    along: bool = False


@dataclass(frozen=True, kw_only=True)
class FieldLayout:
    """A token-aligned field in a batch.

    field: its name in datasets. labels: it stands where its token is a label. Of weights, in datasets that have no such
    field, `outside` if they have a track of that name, and `missing` if not.
    """

    name: str
    field: str
    dtype: np.dtype[Any]
    labels: bool
    missing: float = 1.0
    outside: float = 1.0


class ConceptWeights(NamedTuple):
    """Weights of losses by concept: of_id of those that have one, ascending; inside of spans without such a concept."""

    of_id: tuple[tuple[int, float], ...]
    inside: float


@dataclass(frozen=True, kw_only=True)
class TrackLayout:
    """The arrays of one track, with every limit decided.

    scored: its records have scores. mark: tokens of spans beyond max_spans have TRUNCATED for an index. numbers: the
    type of a track of numbers, of which each span has one. decoded: its records are yielded as its codec decodes them;
    they are read as ragged bytes. item: the type of what a record has many of. source: its name in datasets, if that is
    another. labels: it stands at the labels. weights: what its concepts weigh, if the weights of losses are by concept.
    """

    name: str
    ragged: bool
    max_spans: int
    max_concepts: int
    cut_spans: bool = False  # what is beyond max_spans, or beyond max_concepts, is dropped; else it is an error
    cut_concepts: bool = False
    scored: bool = False
    mark: bool = False
    numbers: np.dtype[Any] | None = None
    decoded: bool = False
    item: np.dtype[Any] = I8
    source: str = ""
    labels: bool = False
    weights: ConceptWeights | None = None

    @cached_property
    def track(self) -> str:
        """Its name in datasets."""
        return self.source or self.name

    @property
    def holds_concepts(self) -> bool:
        """Whether its arrays are ids, and scores if there are any."""
        return not self.decoded and self.numbers is None

    def arrays(self, samples: int, seq_len: int) -> Iterator[tuple[str, ArraySpec]]:
        slots = (samples, self.max_spans)
        yield f"{self.name}_span_index", ArraySpec((samples, seq_len), I4, blank=-1, along=True)
        yield f"{self.name}_num_spans", ArraySpec((samples,), I4)
        yield f"{self.name}_spans", ArraySpec((*slots, 2), I4)
        yield f"{self.name}_flags", ArraySpec(slots, U1)
        if self.ragged:
            yield f"{self.name}_offsets", ArraySpec((samples * self.max_spans + 1,), I8)
        elif self.numbers is not None:
            yield f"{self.name}_values", ArraySpec(slots, self.numbers)
        else:
            yield f"{self.name}_ids", ArraySpec((*slots, self.max_concepts), I8, blank=-1)
            yield f"{self.name}_counts", ArraySpec(slots, I4)
            if self.scored:
                yield f"{self.name}_scores", ArraySpec((*slots, self.max_concepts), F4)


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """B samples of S = seq_len tokens.

    Arrays, aligned with the S inputs of a sample:

    input_ids, labels   i64 [B, S]; label j is token j + 1, or outputs.ignore_index where loss_mask is 0
    loss_mask           f32 [B, S], 1 or 0
    position_ids        i64 [B, S]
    document_ids        i64 [B, S], -1 where the shard has no document table, and on padding
    cu_seqlens          i32 [n + 1], boundaries of the n sequences in the B * S inputs; max_seqlen, an int
    dataset_id, sample_index   i64 [B]
    sample_seed         i64 [B], at least 0, see `order.reference.sample_random`
    loss_weight         f32 [B, S], of the label's token; 0 where nothing was read
    FIELD               [B, S], in the type that it has in the dataset, of the input's token or the label's; 0 likewise
    T_span_index        i32 [B, S], which of the sample's spans of track T an input belongs to, -1 for none, TRUNCATED
    T_num_spans         i32 [B]
    T_spans             i32 [B, max_spans, 2], [start, end) clipped to the inputs; 0 beyond num_spans
    T_flags             u8 [B, max_spans]: 1 begins before the inputs, 2 ends after them
    T_ids, T_counts     i64 [B, max_spans, max_concepts], -1 beyond i32 [B, max_spans]  (padded)
    T_values, T_offsets i64 [m]; slot k of the B * max_spans has values[offsets[k]:offsets[k + 1]]  (ragged)
    T_scores            f32, of a track with scores, in the shape of T_ids, 0 where these are -1, or of T_values
    T_values            [B, max_spans], of a track of numbers, in its type; 0 beyond num_spans
    T_records           of a track with layout records: for each sample a list with an object for each span

    With outputs.shared_labels there is tokens i64 [B, S + 1] as well, of which input_ids and labels are views.
    """

    seq_len: int
    outputs: Outputs
    tracks: tuple[TrackLayout, ...] = ()
    random_key: int = 0
    fields: tuple[FieldLayout, ...] = ()
    weights: TrackLayout | None = None

    @cached_property
    def read_tracks(self) -> tuple[TrackLayout, ...]:
        """What is read: `tracks`, and that of the loss weights, whose arrays are not left in the batch."""
        return self.tracks if self.weights is None else (*self.tracks, self.weights)

    def arrays(self, samples: int) -> dict[str, ArraySpec]:
        """The arrays whose shapes do not depend on what is read: all but cu_seqlens, T_values, ragged T_scores."""
        row, out = (samples, self.seq_len), self.outputs
        specs = {
            "tokens": ArraySpec((samples, self.seq_len + 1), I8),
            "input_ids": ArraySpec(row, I8, along=True),
            "labels": ArraySpec(row, I8, along=True),
            "loss_mask": ArraySpec(row, F4, along=True),
            "position_ids": ArraySpec(row, I8, along=True),
            "document_ids": ArraySpec(row, I8, blank=-1, along=True),
            "dataset_id": ArraySpec((samples,), I8),
            "sample_index": ArraySpec((samples,), I8),
            "sample_seed": ArraySpec((samples,), I8),
        }
        left_out = {"input_ids", "labels"} if out.shared_labels else {"tokens"}
        left_out |= {name for name in specs.keys() & vars(out).keys() if getattr(out, name) in (False, "off")}
        specs = {name: spec for name, spec in specs.items() if name not in left_out}
        specs |= {field.name: ArraySpec(row, field.dtype, along=True) for field in self.fields}
        for track in self.tracks:
            specs.update(track.arrays(samples, self.seq_len))
        return specs

    def sample(self, batch: Mapping[str, Any], k: int) -> dict[str, Any]:
        """Sample `k` of a batch of arrays or tensors: the row of each.

        A ragged track gives the sample's own values and offsets, one with layout records its own list. cu_seqlens and
        max_seqlen, which describe a batch, are omitted.
        """
        left_out, sample = {"cu_seqlens", "max_seqlen"}, dict[str, Any]()
        for track in self.tracks:
            if track.ragged and not track.decoded:
                offsets = batch[f"{track.name}_offsets"][k * track.max_spans : (k + 1) * track.max_spans + 1]
                sample[f"{track.name}_offsets"] = offsets - offsets[0]
                for values in {f"{track.name}_values", f"{track.name}_scores"} & batch.keys():
                    sample[values] = batch[values][offsets[0] : offsets[-1]]
                left_out |= sample.keys()
        return sample | {name: value[k] for name, value in batch.items() if name not in left_out}

    def names(self) -> set[str]:
        """Of all that a batch holds."""
        names = {
            "input_ids",
            "labels",
            *self.arrays(1),
            *(("cu_seqlens", "max_seqlen") if self.outputs.cu_seqlens else ()),
        }
        for track in self.tracks:
            if track.decoded:
                names = names - {f"{track.name}_offsets"} | {f"{track.name}_records"}
            elif track.ragged:
                names |= {f"{track.name}_{part}" for part in ("values", "scores")[: 1 + track.scored]}
        return names

    def carve(self, samples: int) -> "Carving":
        """`arrays`, and room for cu_seqlens and for what loss weights come from, laid out in one block of memory."""
        specs = self.arrays(samples)
        if self.weights is not None:
            specs.update(self.weights.arrays(samples, self.seq_len))
        if self.outputs.cu_seqlens:
            specs["cu_seqlens"] = ArraySpec((samples * self.seq_len + 1,), I4)
        offsets, size = {}, 0
        for name, spec in specs.items():
            offsets[name] = size
            size += -(-math.prod(spec.shape) * spec.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return Carving(specs, offsets, size)


class Carving(NamedTuple):
    """Where in a block of `size` bytes each array begins."""

    specs: dict[str, ArraySpec]
    offsets: dict[str, int]
    size: int

    def views(self, block: Block) -> Batch:
        """The arrays over a block's memory; cu_seqlens with all its room."""
        offsets = self.offsets
        arrays = {name: np.ndarray(spec.shape, spec.dtype, block, offsets[name]) for name, spec in self.specs.items()}
        return share(arrays) if "tokens" in arrays else arrays


def share(batch: AnyBatch) -> AnyBatch:
    """A batch with `tokens`, with input_ids and labels as views of these. Arrays or tensors."""
    batch["input_ids"], batch["labels"] = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    return batch


class _Lease(weakref.ref[Block]):
    """Of an array over `memory`; None, and not among all leases, if an interrupt came while it was made."""

    memory: mmap.mmap | None = None


class BatchMemory:
    """Blocks for one reader, used again once nobody can see them. Safe for many threads.

    A fresh block of a few MB costs a page fault every 4 KiB, more than the reads that fill it. So a block is an mmap,
    and what `allocate` returns is an array made over it for one batch: its lease. Every view, of numpy or torch, keeps
    the lease alive, and when it ends, the block is free. The lease must lie over the mmap itself: over another array
    numpy would make *that* the base of every view, and the lease would end while views live.

    keep: how many free blocks `allocate` leaves, of all sizes; those that were free for longest go first.
    """

    def __init__(self, keep: int = 64) -> None:
        self.keep = keep
        self.free: deque[_Lease] = deque()  # that have ended
        self._leases: dict[int, _Lease] = {}  # all

    def allocate(self, size: int) -> Block:
        """A block of `size` bytes, not initialized, aligned to a page. Raises MemoryError."""
        free, memory = self.free, None
        for _ in range(len(free)):
            try:
                found = free.pop()  # nobody else can find it now
            except IndexError:  # another thread took the last one
                break
            if found.memory is not None and len(found.memory) == size:
                memory = self._leases.pop(id(found), found).memory
                break
            free.appendleft(found)
        # If all are of other sizes, one goes too, so that those of sizes that are not in use any more do.
        for _ in range(max(len(free) - self.keep, 0) + (memory is None)):
            with suppress(IndexError):
                self._leases.pop(id(free.popleft()), None)
        if memory is None:
            try:  # private: what a forked process writes into its copy of a block is not seen here
                memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE)
            except (OSError, OverflowError) as error:
                raise MemoryError(f"found no memory for a batch of {size:,} bytes; lower micro_batch_size") from error
            if size >= _LARGE:
                with suppress(OSError):  # advice, which not every kernel takes
                    memory.madvise(mmap.MADV_HUGEPAGE)
        lease = np.frombuffer(memory, np.uint8, size)
        # `append` runs in whatever thread lets go of the last view, and takes no lock. It is no Python function:
        # Python swallows an interrupt that comes while a callback of the garbage collector runs one.
        ended = _Lease(lease, free.append)
        ended.memory = memory
        self._leases[id(ended)] = ended
        return lease
