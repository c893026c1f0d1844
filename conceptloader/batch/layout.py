"""Names, shapes and dtypes of a batch: the contract between reference, engine, collation and adapters."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.blend import ConceptOptions, Outputs, View
from conceptloader.blend.samples import by_document
from conceptloader.errors import ConfigError
from conceptloader.format.spec.layout import DENSE

Array = npt.NDArray[Any]
Batch = dict[str, Any]
"""Arrays by name; max_seqlen is an int."""

BEGINS_BEFORE, ENDS_AFTER = 1, 2  # bits of <track>_flags
MAX_SAMPLE_BYTES = 1 << 30
CLAIMED_BYTES = 1 << 20  # of a track in a sample: above, files have to prove that they are so large
ALIGNMENT = 64
LOSS_FIELD = "loss_mask"  # the token-aligned field that, where a dataset has it, switches the loss of its tokens off


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """shape with the samples first; `blank` is what the array holds where nothing was read."""

    shape: tuple[int, ...]
    dtype: str
    blank: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class TrackLayout:
    """The arrays of one track, with every limit decided."""

    name: str
    ragged: bool
    max_spans: int
    max_concepts: int
    cut_spans: bool = False  # what is beyond max_spans, or beyond max_concepts, is left out; else it is an error
    cut_concepts: bool = False

    def arrays(self, samples: int, seq_len: int) -> Iterator[tuple[str, ArraySpec]]:
        slots = (samples, self.max_spans)
        yield f"{self.name}_span_index", ArraySpec(shape=(samples, seq_len), dtype="i4", blank=-1)
        yield f"{self.name}_num_spans", ArraySpec(shape=(samples,), dtype="i4")
        yield f"{self.name}_spans", ArraySpec(shape=(*slots, 2), dtype="i4")
        yield f"{self.name}_flags", ArraySpec(shape=slots, dtype="u1")
        if self.ragged:
            yield f"{self.name}_offsets", ArraySpec(shape=(samples * self.max_spans + 1,), dtype="i8")
        else:
            yield f"{self.name}_ids", ArraySpec(shape=(*slots, self.max_concepts), dtype="i8", blank=-1)
            yield f"{self.name}_counts", ArraySpec(shape=slots, dtype="i4")


@dataclass(frozen=True, kw_only=True)
class BatchLayout:
    """B samples of S = seq_len tokens. Arrays, aligned with the S inputs of a sample:

    input_ids, labels   i64 [B, S]; label j is token j + 1
    loss_mask           f32 [B, S], 1 or 0
    position_ids        i64 [B, S]
    document_ids        i64 [B, S], -1 where the shard has no document table, and on padding
    cu_seqlens          i32 [n + 1], borders of the n sequences in the B * S inputs; max_seqlen, an int
    dataset_id, sample_index   i64 [B]
    T_span_index        i32 [B, S], which of the sample's spans of track T an input belongs to, -1 for none
    T_num_spans         i32 [B]
    T_spans             i32 [B, max_spans, 2], [start, end) clipped to the inputs; 0 beyond num_spans
    T_flags             u8 [B, max_spans]: 1 begins before the inputs, 2 ends after them
    T_ids, T_counts     i64 [B, max_spans, max_concepts], -1 beyond i32 [B, max_spans]  (padded)
    T_values, T_offsets i64 [m]; slot k of the B * max_spans has values[offsets[k]:offsets[k + 1]]  (ragged)

    With outputs.shared_labels there is tokens i64 [B, S + 1] as well, of which input_ids and labels are views.
    """

    seq_len: int
    outputs: Outputs
    tracks: tuple[TrackLayout, ...] = ()

    @classmethod
    def of(
        cls,
        views: Sequence[View | None],
        seq_len: int,
        outputs: Outputs | None = None,
        tracks: Mapping[str, ConceptOptions] | None = None,
    ) -> "BatchLayout":
        """Decide the limits of each track from the manifests.

        Raises ConfigError for a track that no dataset has or whose codec holds no concept ids, and for limits that a
        window of one of the datasets exceeds, unless the track says `overflow: truncate`.
        """
        outputs, tracks = outputs or Outputs(), tracks or {}
        present = [view for view in views if view is not None]
        for view in present:
            _check_view(view, outputs)
        chosen = [_track_layout(name, tracks[name], present, seq_len) for name in sorted(tracks)]
        names = [*cls(seq_len=seq_len, outputs=Outputs()).arrays(1)]
        names += [name for track in chosen for name, _ in track.arrays(1, seq_len)]
        for name, times in Counter(names).items():
            if times > 1:
                raise ConfigError(f"concepts: two arrays of a batch would be called {name}; rename a track")
        return cls(seq_len=seq_len, outputs=outputs, tracks=tuple(chosen))

    def arrays(self, samples: int) -> dict[str, ArraySpec]:
        """The arrays whose shapes do not depend on what is read: all but cu_seqlens and T_values."""
        shape, out = (samples, self.seq_len), self.outputs
        specs = {}
        if out.shared_labels:
            specs["tokens"] = ArraySpec(shape=(samples, self.seq_len + 1), dtype="i8")
        else:
            specs["input_ids"] = ArraySpec(shape=shape, dtype="i8")
            specs["labels"] = ArraySpec(shape=shape, dtype="i8")
        if out.loss_mask:
            specs["loss_mask"] = ArraySpec(shape=shape, dtype="f4")
        if out.position_ids != "off":
            specs["position_ids"] = ArraySpec(shape=shape, dtype="i8")
        if out.document_ids:
            specs["document_ids"] = ArraySpec(shape=shape, dtype="i8", blank=-1)
        if out.dataset_id:
            specs["dataset_id"] = ArraySpec(shape=(samples,), dtype="i8")
        if out.sample_index:
            specs["sample_index"] = ArraySpec(shape=(samples,), dtype="i8")
        for track in self.tracks:
            specs.update(track.arrays(samples, self.seq_len))
        return specs

    def carve(self, samples: int) -> "Carving":
        """`arrays`, and room for cu_seqlens, laid out in one block of memory."""
        specs = self.arrays(samples)
        if self.outputs.cu_seqlens:
            specs["cu_seqlens"] = ArraySpec(shape=(samples * self.seq_len + 1,), dtype="i4")
        offsets, size = {}, 0
        for name, spec in specs.items():
            offsets[name] = size
            size += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        return Carving(specs=specs, offsets=offsets, size=size)


@dataclass(frozen=True, kw_only=True)
class Carving:
    """Where in a block of `size` bytes each array begins."""

    specs: dict[str, ArraySpec]
    offsets: dict[str, int]
    size: int

    @cached_property
    def _makings(self) -> list[tuple[str, tuple[int, ...], np.dtype[Any], int]]:
        return [(name, spec.shape, np.dtype(spec.dtype), self.offsets[name]) for name, spec in self.specs.items()]

    def views(self, block: npt.NDArray[np.uint8]) -> dict[str, Array]:
        """The arrays over a block's memory; cu_seqlens with all its room."""
        return share({name: np.ndarray(shape, dtype, block, offset) for name, shape, dtype, offset in self._makings})


def share(batch: Batch) -> Batch:
    """The same batch, with input_ids and labels as views of `tokens` if it has that. Arrays or tensors."""
    if "tokens" in batch:
        batch["input_ids"], batch["labels"] = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    return batch


def _check_view(view: View, outputs: Outputs) -> None:
    tokenizer = view.dataset.tokenizer
    if not outputs.eos_loss and (tokenizer is None or tokenizer.eos_id is None):
        raise ConfigError(f"outputs.eos_loss: found false, but dataset {view.name} names no eos token; set it to true")
    types = {dict(layout.fields).get(LOSS_FIELD) for layout in view.dataset.manifest.layouts}
    if not types <= {None, "u1"}:
        raise ConfigError(
            f"dataset {view.name}: found a field {LOSS_FIELD} of type {', '.join(map(str, types))}, expected u1; "
            "build it with that type, or under another name"
        )
    masked = {"quarantined ranges": view.quarantine, f"a field {LOSS_FIELD}": types != {None}}
    masked["documents, which are padded"] = by_document(view)
    for reason, found in masked.items():
        if found and not outputs.loss_mask:
            raise ConfigError(f"outputs.loss_mask: found false, but dataset {view.name} has {reason}; set it to true")


def _track_layout(name: str, options: ConceptOptions, views: Sequence[View], seq_len: int) -> TrackLayout:
    where = f"concepts.{name}"
    having = [view for view in views if name in view.tracks]
    if not having:
        known = sorted({track for view in views for track in view.tracks})
        raise ConfigError(f"{where}: this track is read of no dataset, expected one of {known}; correct or remove it")
    most = {"max_spans": 1, "max_concepts": 1}
    for view in having:
        track = view.dataset.tracks[name]
        if track.codec != "concepts":
            raise ConfigError(
                f"{where}: dataset {view.name} has codec {track.codec}, a batch holds tracks of codec concepts only; "
                "remove it here and read its records with Dataset.spans"
            )
        for key, number in _claims(view, name, seq_len).items():
            limit = getattr(options, key)
            if limit is not None and number > limit and options.overflow == "error":
                raise ConfigError(
                    f"{where}.{key}: found {limit}, but dataset {view.name} may need {number} at seq_len {seq_len}; "
                    "raise it, or set overflow: truncate"
                )
            most[key] = max(most[key], number)
    layout = TrackLayout(
        name=name,
        ragged=options.layout == "ragged",
        max_spans=options.max_spans or most["max_spans"],
        max_concepts=options.max_concepts or most["max_concepts"],
        # A limit that nobody asked for cuts nothing off: data beyond it show that a manifest says too little.
        cut_spans=options.overflow == "truncate" and options.max_spans is not None,
        cut_concepts=options.overflow == "truncate" and options.max_concepts is not None,
    )
    size = 8 * layout.max_spans * (1 if layout.ragged else layout.max_concepts)
    if size > MAX_SAMPLE_BYTES:
        raise ConfigError(
            f"{where}: {layout.max_spans} spans of {layout.max_concepts} concepts take {size} bytes a sample, above "
            f"{MAX_SAMPLE_BYTES}; set max_spans and max_concepts, with overflow: truncate, or layout: ragged"
        )
    if size > CLAIMED_BYTES:
        for view in having:
            _prove_sizes(view, name)
    return layout


def _claims(view: View, name: str, seq_len: int) -> dict[str, int]:
    """What a window's spans need as the manifest says, but no more than its files, by their sizes, can hold."""
    track, table = view.dataset.tracks[name], view.dataset.manifest.shards
    dense = np.array([encoding == DENSE for encoding in table.tracks[name].encoding], bool)
    runs = sum(np.where(dense, table.tokens, table.tracks[name].entries).tolist())
    concepts = int(table.files[f"{name}.data"].size.max(initial=0)) // 4
    return {
        "max_spans": min(track.spans_in(seq_len), seq_len, runs),
        "max_concepts": max(0, min(track.max_items or 0, concepts)),
    }


def _prove_sizes(view: View, name: str) -> None:
    """Before much memory is taken because of what files hold: the largest ones are as large as the manifest says.

    Raises: FormatError, ReadError.
    """
    for kind in (f"{name}.data", f"{name}.spans"):
        sizes = view.dataset.manifest.shards.files[kind].size
        shard = int(np.argmax(sizes))
        if sizes[shard] > 0:
            view.dataset.files.read(kind, shard, int(sizes[shard]) - 1, 1)
