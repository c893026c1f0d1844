"""Batches assembled in plain numpy, sample by sample: the definition that the compiled reader is tested against.

Nothing of the compiled reader is used here, so that both are wrong in the same way only if the format's reader or the
parts of samples are.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from conceptloader.batch.layout import (
    BEGINS_BEFORE,
    ENDS_AFTER,
    LOSS_FIELD,
    TRUNCATED,
    Allocate,
    Array,
    Batch,
    BatchLayout,
    FieldLayout,
    TrackLayout,
)
from conceptloader.blend import View, present
from conceptloader.blend.mask import NEVER, Mask
from conceptloader.errors import FormatError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.values import Spans
from conceptloader.format.spec.layout import DAMAGED
from conceptloader.kernels.arrays import LOSS_WEIGHT
from conceptloader.order.reference import epoch_key

_Values = tuple[list[Array], list[Array]]  # of the spans of a track: ids, numbers or bytes; and scores if it has any


Bools = npt.NDArray[np.bool_]


class Order(Protocol):
    """Mixture, Sequential."""

    def sample(self, position: int) -> tuple[int, int, int]: ...


class Part(NamedTuple):
    """Tokens [start, stop) of the dataset, in a sample's inputs from `place` on.

    The first `inputs` of them are inputs, and all but the first are labels, from `place` on too. document: its number,
    -1 where a part is a window of many. since: the sample of the run from which on it must not be read and gives no
    loss, as in Mask.
    """

    start: int
    stop: int
    inputs: int
    place: int = 0
    document: int = -1
    since: int = NEVER


def parts_of(view: View, number: int, seq_len: int) -> list[Part]:
    """What sample `number` is made of.

    It is a window of seq_len + 1 tokens, at most as many of a document, or a pack's parts. None for a document in a
    shard that is never read, its document table included.
    """
    if view.packs is not None:
        parts = view.packs.parts(number)
        found = [Part(p.start, min(p.start + p.tokens + 1, p.end), p.tokens, p.place, p.document) for p in parts]
    elif not view.by_document:
        start = view.start + number * seq_len
        found = [Part(start, start + seq_len + 1, seq_len)]
    elif len(view.mask.at) and view.closed(number):
        found = []
    else:
        start, stop = view.dataset.document_range(view.start + number)
        stop = min(stop, start + seq_len + 1)
        found = [Part(start, stop, min(stop - start, seq_len), 0, view.start + number)]
    if not len(view.mask.at):
        return found
    return [p._replace(since=view.mask.since(p.start, p.stop)) for p in found]


class PlainReader:
    """The batches of an order's samples; views[k] is its dataset k."""

    def __init__(self, order: Order | None, views: Sequence[View | None], layout: BatchLayout) -> None:
        self.order, self.views, self.layout = order, tuple(views), layout

    def read(
        self,
        samples: npt.NDArray[np.uint64],
        allocate: Allocate | None = None,
        picked: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    ) -> Batch:
        """The batch of sample indices uint64 [B], in memory from `allocate`.

        Args:
            samples: uint64 [B], sample indices; or [2, B], with the positions at which they are trained.
            allocate: Called with shape and dtype for each array.
            picked: [B] members of the order and [B] windows of these, instead of what the order says.

        Raises:
            FormatError: For corrupt data.
            ReadError: A file cannot be read.
            ConfigError: For a member that has left the configuration.
        """
        samples, positions = samples if samples.ndim == 2 else (samples, samples)
        numbers, now = samples.tolist(), positions.tolist()
        if picked is None:
            assert self.order is not None
            picks = [self.order.sample(number)[::2] for number in numbers]
        else:
            picks = [(int(member), int(window)) for member, window in zip(*map(np.asarray, picked), strict=True)]
        carving = self.layout.carve(len(samples))
        arrays = carving.views(np.empty(carving.size, np.uint8) if allocate is None else allocate(carving.size))
        for name, spec in carving.specs.items():
            arrays[name].fill(spec.blank or 0)
        values: dict[str, _Values] = {track.name: ([], []) for track in self.layout.read_tracks}
        sequences = [0]
        for row, (member, window) in enumerate(picks):
            borders = self._fill(arrays, values, row, present(self.views, member), now[row], window)
            sequences += [row * self.layout.seq_len + border for border in (*borders, self.layout.seq_len)]
        if "sample_index" in arrays:
            arrays["sample_index"][:] = samples
        if "sample_seed" in arrays:
            arrays["sample_seed"][:] = [epoch_key(self.layout.random_key, number) >> 1 for number in numbers]
        batch: Batch = dict(arrays)
        for track in self.layout.tracks:
            if track.ragged:
                np.cumsum(arrays[f"{track.name}_offsets"], out=arrays[f"{track.name}_offsets"])
                ids, scores = values[track.name]
                batch[f"{track.name}_values"] = np.concatenate([np.zeros(0, track.item), *ids])
                if track.scored:
                    batch[f"{track.name}_scores"] = np.concatenate([np.zeros(0, np.float32), *scores])
            if track.decoded:
                self._decode(batch, track, [member for member, _ in picks])
        if self.layout.outputs.cu_seqlens:
            batch["cu_seqlens"] = arrays["cu_seqlens"][: len(sequences)]
            batch["cu_seqlens"][:] = sequences
            batch["max_seqlen"] = int(np.diff(sequences).max(initial=0))
        for track in self.layout.weights:
            self._weigh(batch, track)
        for name in self.layout.factors[1:]:
            batch[LOSS_WEIGHT] *= batch.pop(name)
        for row, (member, _) in enumerate(picks if self.layout.factors else ()):
            batch[LOSS_WEIGHT][row] *= np.float32(present(self.views, member).loss_weight)
        return batch

    def _decode(self, batch: Batch, track: TrackLayout, members: Sequence[int]) -> None:
        """What the codec makes of each record, in place of the bytes."""
        data, borders = batch.pop(f"{track.name}_values").tobytes(), batch.pop(f"{track.name}_offsets").tolist()
        found: list[list[Any]] = []
        for row, member in enumerate(members):
            dataset, first = present(self.views, member).dataset, row * track.max_spans
            count = int(batch[f"{track.name}_num_spans"][row])
            records = [memoryview(data)[a:b] for a, b in pairwise(borders[first : first + count + 1])]
            try:
                found.append([dataset.codec(track.name).decode(record) for record in records])
            except (ValueError, RecursionError) as error:
                where, what = f"{dataset.path}: track {track.name}", f"a record that its codec cannot decode ({error})"
                raise FormatError(where, what, "a record of its codec", DAMAGED) from error
        batch[f"{track.name}_records"] = found

    def _weigh(self, batch: Batch, track: TrackLayout) -> None:
        """The number of each span of a track of loss weights, at its labels."""
        weights, name = batch[track.factor], track.name
        index = batch[f"{name}_span_index"]
        for row, place in np.argwhere(index >= 0).tolist():
            span = index[row, place]
            if track.weights is None:
                weights[row, place] = batch[f"{name}_values"][row, span]
            else:
                ids = batch[f"{name}_ids"][row, span, : batch[f"{name}_counts"][row, span]].tolist()
                known = dict(track.weights.of_id)
                weights[row, place] = min((known[k] for k in ids if k in known), default=track.weights.inside)
            if not np.isfinite(weights[row, place]):
                raise FormatError(
                    f"track {track.track}",
                    str(weights[row, place]),
                    "a finite weight",
                    DAMAGED,
                )
        for of_track in track.arrays(*weights.shape):
            del batch[of_track]

    def _fill(
        self, arrays: dict[str, Array], values: dict[str, _Values], row: int, view: View, now: int, number: int
    ) -> list[int]:
        """Fill one row with window, or document, `number` of a view, which is trained at position `now` of the run.

        Returns: the document boundaries within the inputs.
        """
        layout, dataset, size = self.layout, view.dataset, self.layout.seq_len
        eos = dataset.tokenizer.eos_id if dataset.tokenizer else None
        if "dataset_id" in arrays:
            arrays["dataset_id"][row] = view.dataset_id
        for name in ("input_ids", "labels"):
            arrays[name][row] = eos or 0  # what padding and excluded samples hold
        parts = parts_of(view, number, size)
        borders: list[int] = []
        for part in parts:
            if part.place:
                borders.append(part.place)
            if part.since <= now:
                continue
            own = _taken(view.holes.own, part, now)
            self._fill_tokens(arrays, row, part, view, eos)
            if part.document >= 0:
                if "document_ids" in arrays:
                    arrays["document_ids"][row, part.place : part.place + part.inputs] = part.document
            elif layout.outputs.needs_documents:
                borders = self._fill_documents(arrays, row, dataset, part.start)
            self._take_out(arrays, row, part, own, _taken(view.holes.labels, part, now), eos)
            for track in layout.read_tracks:
                if track.track in view.tracks:
                    named = part._replace(start=part.start + 1, inputs=part.stop - part.start - 1)
                    for stretch in _stretches(named if track.labels else part, own, part.start):
                        found = self._fill_track(arrays, row, view, track, stretch)
                        for known, more in zip(values[track.name], found, strict=True):
                            known += more
        packed = view.kind == "pack"
        used = parts[-1].place + parts[-1].inputs if packed and parts else 0
        if 0 < used < size:  # padding is a sequence of its own
            borders.append(used)
        if "position_ids" in arrays:
            starts = np.zeros(size, np.int64)
            if packed or layout.outputs.position_ids == "document":
                starts[borders] = borders
            arrays["position_ids"][row] = np.arange(size) - np.maximum.accumulate(starts)
        if layout.outputs.ignore_index is not None:
            arrays["labels"][row, arrays["loss_mask"][row] == 0] = layout.outputs.ignore_index
        return borders

    def _fill_tokens(self, arrays: dict[str, Array], row: int, part: Part, view: View, eos: int | None) -> None:
        sample = view.dataset.read(part.start, part.stop)
        tokens = sample["tokens"]
        labels = slice(part.place, part.place + max(len(tokens) - 1, 0))
        arrays["input_ids"][row, part.place : part.place + part.inputs] = tokens[: part.inputs]
        arrays["labels"][row, labels] = tokens[1:]
        for field in self.layout.fields:
            where = labels if field.labels else slice(part.place, part.place + part.inputs)
            if field.shape is not None:
                if field.field in view.dataset.columns:
                    items, known = self._items(view, field, part)
                    chosen = slice(1, None) if field.labels else slice(part.inputs)
                    arrays[field.name][row, where][known[chosen]] = items[chosen][known[chosen]]
                continue
            blank = field.outside if field.field in view.tracks else field.missing
            values = sample[field.field] if field.field in sample else np.full(len(tokens), blank, field.dtype)
            if field.weight and not np.isfinite(values[1:]).all():
                raise FormatError(
                    f"field {field.field}",
                    str(values[1:]),
                    "finite weights",
                    DAMAGED,
                )
            arrays[field.name][row, where] = values[1:] if field.labels else values[: part.inputs]
        if "loss_mask" not in arrays:
            return
        mask = arrays["loss_mask"][row, labels]
        mask[:] = sample[LOSS_FIELD][1:] != 0 if LOSS_FIELD in sample else 1
        if not self.layout.outputs.loss_on_eos:
            mask[arrays["labels"][row, labels] == eos] = 0

    def _items(self, view: View, field: FieldLayout, part: Part) -> tuple[Array, Bools]:
        """Those of a column, of the type that a batch has, and which tokens have one."""
        items, known = view.dataset.column_values(field.field, part.start, part.stop)
        if field.stored == "bf16" and field.dtype == np.float32:
            items = (items.astype(np.uint32) << 16).view(np.float32)
        return items.astype(field.dtype), known

    def _take_out(
        self, arrays: dict[str, Array], row: int, part: Part, own: Bools, labels: Bools, eos: int | None
    ) -> None:
        """Make own tokens of a part padding, and mask the labels that they are, or that are predicted from them."""
        inputs = part.place + np.flatnonzero(own[: part.inputs])
        named = part.place + np.flatnonzero(own[1:])
        arrays["input_ids"][row, inputs] = arrays["labels"][row, named] = eos or 0
        for field in self.layout.fields:
            arrays[field.name][row, named if field.labels else inputs] = field.blank
        if "document_ids" in arrays:
            arrays["document_ids"][row, inputs] = -1
        if "loss_mask" in arrays:
            arrays["loss_mask"][row, part.place + np.flatnonzero(own[1:] | own[:-1] | labels[1:])] = 0

    def _fill_documents(self, arrays: dict[str, Array], row: int, dataset: Dataset, start: int) -> list[int]:
        size, out = self.layout.seq_len, self.layout.outputs
        documents = dataset.documents_in(start, start + size + 1)
        positions = np.arange(start, start + size)
        if out.document_ids:
            arrays["document_ids"][row] = documents.ids[np.searchsorted(documents.first, positions, side="right") - 1]
        borders = documents.first[documents.first > start] - start
        if out.mask_document_boundaries:
            arrays["loss_mask"][row, borders - 1] = 0
        inside: list[int] = borders[borders < size].tolist()
        return inside

    def _fill_track(self, arrays: dict[str, Array], row: int, view: View, track: TrackLayout, part: Part) -> _Values:
        """Fill one track of a part of a row. Returns what its spans have, and their scores, if it has any."""
        name, source, start, stop = track.name, track.track, part.start, part.start + max(part.inputs, 0)
        before = int(arrays[f"{name}_num_spans"][row])  # of the parts before
        spans = view.dataset.spans(source, start, stop)
        item = track.item.itemsize
        if track.holds_concepts:
            item = view.dataset.files.concepts(source).item
        sizes = np.array([len(record) for record in spans.records], np.int64)
        single = track.single
        if (sizes % item).any() or (single and (sizes != item).any()):
            expected = "a single number" if single else "lists of items"
            raise FormatError(
                f"{view.dataset.path}: track {source}",
                f"records of {sizes} bytes",
                f"{expected} of {item} bytes",
                DAMAGED,
            )
        counts = sizes // item
        most = int(counts.max(initial=0))
        if (before + len(spans) > track.max_spans and not track.cut_spans) or (
            most > track.max_concepts and not track.cut_concepts
        ):
            raise FormatError(
                f"{view.dataset.path}: track {source}",
                f"{before + len(spans)} spans and up to {most} concepts in one",
                f"at most {track.max_spans} and {track.max_concepts}",
                DAMAGED,
            )
        used = min(len(spans), track.max_spans - before)
        counts = np.minimum(counts[:used], track.max_concepts)
        slots = slice(before, before + used)
        arrays[f"{name}_num_spans"][row] = before + used
        arrays[f"{name}_spans"][row, slots, 0] = part.place + spans.start[:used]
        arrays[f"{name}_spans"][row, slots, 1] = part.place + spans.end[:used]
        arrays[f"{name}_flags"][row, slots] = (
            BEGINS_BEFORE * spans.begins_before[:used] + ENDS_AFTER * spans.ends_after[:used]
        )
        for k in range(used):
            arrays[f"{name}_span_index"][row, part.place + spans.start[k] : part.place + spans.end[k]] = before + k
        if track.mark:
            for k in range(used, len(spans)):
                arrays[f"{name}_span_index"][row, part.place + spans.start[k] : part.place + spans.end[k]] = TRUNCATED
        values, scores = self._values(view, track, spans, counts.tolist())
        if track.ragged:
            first = row * track.max_spans + before + 1  # lengths for now; summed up at the end
            arrays[f"{name}_offsets"][first : first + used] = counts
        elif single:
            arrays[f"{name}_values"][row, slots] = np.concatenate([np.zeros(0, track.item), *values])
        else:
            arrays[f"{name}_counts"][row, slots] = counts
            for k, ids in enumerate(values, before):
                arrays[f"{name}_{'values' if track.vectors else 'ids'}"][row, k, : len(ids)] = ids
            for k, found in enumerate(scores, before):
                arrays[f"{name}_scores"][row, k, : len(found)] = found
        return values, scores

    def _values(self, view: View, track: TrackLayout, spans: Spans, counts: list[int]) -> _Values:
        """What the first `counts` of the items of each record are: ids, numbers or bytes; and their scores, if any."""
        name, kept = track.track, list(zip(spans.records, counts, strict=False))
        if not track.holds_concepts:
            return [np.frombuffer(record, track.item, n) for record, n in kept], []
        entry = view.dataset.tracks[name]
        codec, limit = view.dataset.files.concepts(name), entry.num_ids
        try:
            values = [codec.ids_of(record)[:n] for record, n in kept]
            scores = [codec.scores_of(record)[:n] for record, n in kept] if track.scored else []
        except ValueError as error:
            raise FormatError.saying(f"{view.dataset.path}: track {name}", f"{error}; {DAMAGED}") from error
        for ids in values:
            if ids.max(initial=0) >= limit and len(ids):
                raise FormatError(
                    f"track {name}",
                    f"concept id {ids.max()}",
                    f"ids below {limit}",
                    DAMAGED,
                )
        return [ids.astype(np.int64) for ids in values], scores


def _taken(mask: Mask, part: Part, now: int) -> Bools:
    """Which tokens of a part a mask has at position `now`."""
    taken = np.zeros(part.stop - part.start, np.bool_)
    for start, stop, at in zip(*mask, strict=True):
        if at <= now:
            taken[max(start - part.start, 0) : max(stop - part.start, 0)] = True
    return taken


def _stretches(part: Part, own: Bools, first: int) -> list[Part]:
    """A part in pieces without own tokens; own[k] is of token first + k."""
    inside = np.flatnonzero(~own[part.start - first :][: max(part.inputs, 0)])
    pieces = np.split(inside, np.flatnonzero(np.diff(inside) > 1) + 1) if len(inside) else []
    return [part._replace(start=part.start + int(p[0]), inputs=len(p), place=part.place + int(p[0])) for p in pieces]
