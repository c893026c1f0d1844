"""Where the arrays of a batch lie in its memory, as the rows of kernels/arrays.py and the configuration say."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from conceptloader.config import Outputs
from conceptloader.kernels.arrays import BATCH, TRACK, Row
from conceptloader.kernels.kernel import Array as Array

Batch = dict[str, Any]
"""Arrays by name; max_seqlen is an int."""
AnyBatch = TypeVar("AnyBatch", bound=Batch)
Block = npt.NDArray[np.uint8]
Allocate = Callable[[int], Block]
"""Bytes -> a block of memory, not initialized, in which the arrays of a batch are laid out."""

ALIGNMENT = 64
LOSS_FIELD = "loss_mask"  # the token-aligned field that, where a dataset has it, switches the loss of its tokens off
I8, F4, U1 = map(np.dtype, ("i8", "f4", "u1"))
BF16 = np.dtype("u2", metadata={"torch": "bfloat16"})  # its bits, since numpy has no such type


class ArraySpec(NamedTuple):
    """shape with the samples first; `blank` as in Row, 0 for fields, what is `missing` for columns.

    along: whether the second dimension runs over the tokens of a sample. labels: it stands at these. gaps: it is blank
    in between, too, not only after the tokens that are read.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blank: float | None = 0
    along: bool = False
    labels: bool = False
    gaps: bool = False


Specs = dict[str, ArraySpec]


def specs_of(rows: Iterable[Row], sizes: Mapping[str, int], *, prefix: str = "", dtype: Any = None) -> Specs:
    """The arrays of these rows whose shapes are known, with the `sizes`. dtype: of those that name none."""
    return {
        prefix + row.name: ArraySpec(
            tuple(sizes[size] for size in row.shape),
            np.dtype(row.dtype or dtype),
            row.blank,
            row.shape == ("B", "S"),
            row.labels,
            bool(prefix),
        )
        for row in rows
        if row.shape and sizes.keys() >= {*row.shape}
    }


@dataclass(frozen=True, kw_only=True)
class FieldLayout:
    """A token-aligned field in a batch, or a column.

    field: its name in datasets. labels: it stands where its token is a label. weight: it is a factor of loss weights,
    whose values in datasets that have no such field are `outside` if they have a track of that name, and `missing` if
    not. The first factor is called as their product; the others are not left in the batch. shape: of a column, that of
    an item; None for fields. stored: of a column, its type in datasets. blank: of a column, what stands where there is
    no value.
    """

    name: str
    field: str
    dtype: np.dtype[Any]
    labels: bool
    weight: bool = False
    missing: float = 1.0
    outside: float = 1.0
    shape: tuple[int, ...] | None = None
    stored: str = ""
    blank: float = 0


@dataclass(frozen=True, kw_only=True)
class TrackLayout:
    """The arrays of one track, with every limit decided.

    scored: its records have scores. mark: tokens of spans beyond max_spans have TRUNCATED for an index. numbers: the
    type of a track of numbers, of which each span has one, or with `vectors` several. decoded: its records are yielded
    as its codec decodes them; they are read as ragged bytes. item: the type of what a record has many of. source: its
    name in datasets, if that is another. labels: it stands at the labels. factor: the field that it gives the values of
    its spans, if it is one of loss weights.
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
    vectors: bool = False
    decoded: bool = False
    item: np.dtype[Any] = I8
    source: str = ""
    labels: bool = False
    factor: str = ""

    @cached_property
    def track(self) -> str:
        """Its name in datasets."""
        return self.source or self.name

    @property
    def holds_concepts(self) -> bool:
        """Whether its arrays are ids, and scores if there are any."""
        return not self.decoded and self.numbers is None

    @property
    def single(self) -> bool:
        """Whether each span has one number."""
        return self.numbers is not None and not self.vectors

    def rows(self, *, read: bool = False) -> list[Row]:
        """What a batch has of it; or what is read, of which records are made."""
        kind = "ragged" if self.ragged else "padded" if self.numbers is None else "numbers"
        kind = "vectors" if self.vectors else kind
        kind = "records" if self.decoded and not read else kind
        return [row for row in TRACK if row.switch in ("", kind) and (row.name != "scores" or self.scored)]

    def arrays(self, samples: int, seq_len: int) -> Specs:
        """What is read of it, but for values and scores that are ragged."""
        most, concepts = self.max_spans, self.max_concepts
        sizes = {"B": samples, "S": seq_len, "M": most, "K": concepts, "2": 2, "B * M + 1": samples * most + 1}
        return specs_of(self.rows(read=True), sizes, prefix=f"{self.name}_", dtype=self.numbers)


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """B samples of S = seq_len tokens, and what of the arrays in kernels/arrays.py a batch has."""

    seq_len: int
    outputs: Outputs
    tracks: tuple[TrackLayout, ...] = ()
    random_key: int = 0
    fields: tuple[FieldLayout, ...] = ()
    weights: tuple[TrackLayout, ...] = ()

    @cached_property
    def read_tracks(self) -> tuple[TrackLayout, ...]:
        """What is read: `tracks`, and those of the loss weights, whose arrays are not left in the batch."""
        return (*self.tracks, *self.weights)

    @cached_property
    def factors(self) -> list[str]:
        """The fields of which `loss_weight` is the product; all but itself are not left in the batch."""
        return [field.name for field in self.fields if field.weight]

    @cached_property
    def blanked(self) -> list[str]:
        """What kernels make blank: the fields, and then the others."""
        fields = [field.name for field in self.fields]
        specs = self.carve(1).specs.items()
        return fields + [name for name, spec in specs if spec.blank is not None and name not in fields]

    def arrays(self, samples: int) -> Specs:
        """The arrays whose shapes do not depend on what is read: all but cu_seqlens, T_values, ragged T_scores."""
        views = ("input_ids", "labels") if self.outputs.shared_labels else ()
        sizes = {"B": samples, "S": self.seq_len, "S + 1": self.seq_len + 1}
        specs = specs_of((row for row in self.outputs.rows if row.name not in views), sizes)
        specs |= self._fields(samples, (field for field in self.fields if field.name not in self.factors[1:]))
        for track in self.tracks:
            specs |= track.arrays(samples, self.seq_len)
        return specs

    def _fields(self, samples: int, fields: Iterable[FieldLayout]) -> Specs:
        shape = samples, self.seq_len
        return {
            f.name: ArraySpec((*shape, *(f.shape or ())), f.dtype, f.blank, along=True, labels=f.labels) for f in fields
        }

    def sample(self, batch: Mapping[str, Any], k: int) -> dict[str, Any]:
        """Sample `k` of a batch of arrays or tensors: the row of each.

        A ragged track gives the sample's own values and offsets, one with layout records its own list.
        """
        left_out, sample = set[str](), dict[str, Any]()
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
        own = {row.name for row in self.outputs.rows} | {field.name for field in self.fields} - {*self.factors[1:]}
        return own | {f"{track.name}_{row.name}" for track in self.tracks for row in track.rows()}

    def carve(self, samples: int) -> "Carving":
        """`arrays`, and room for cu_seqlens and for what loss weights come from, laid out in one block of memory."""
        specs = self.arrays(samples)
        specs |= self._fields(samples, (field for field in self.fields if field.name in self.factors[1:]))
        for track in self.weights:
            specs |= track.arrays(samples, self.seq_len)
        specs |= specs_of(self.outputs.rows, {"n + 1": samples * self.seq_len + 1})
        offsets, size = {}, 0
        for name, spec in specs.items():
            offsets[name] = size
            size += -(-math.prod(spec.shape) * spec.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        return Carving(specs, offsets, size)


class Boundaries(Outputs):
    """Nothing but where documents begin in samples: kernels read no tokens for it."""

    @property
    def rows(self) -> list[Row]:
        return [row for row in BATCH if row.name == "cu_seqlens"]


class Carving(NamedTuple):
    """Where in a block of `size` bytes each array begins."""

    specs: Specs
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
