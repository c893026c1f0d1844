"""Batches assembled in plain numpy, sample by sample: the definition that the compiled engine is tested against."""

from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from conceptloader.batch.layout import (
    BEGINS_BEFORE,
    CUT_OFF,
    ENDS_AFTER,
    LOSS_FIELD,
    LOSS_WEIGHT,
    Allocate,
    Array,
    Batch,
    BatchLayout,
    TrackLayout,
)
from conceptloader.batch.reader import (
    I64Array,
    Order,
    Picked,
    U64Array,
    decode_records,
    in_sample,
    sample_randoms,
    weigh,
)
from conceptloader.blend import View
from conceptloader.blend.samples import Part, kind_of, parts_of, present
from conceptloader.errors import FormatError, ReadError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.ranges import reading_ahead
from conceptloader.format.read.values import Spans
from conceptloader.storage.reads import waits_for

_Values = tuple[list[Array], list[Array]]  # of the spans of a track: ids, numbers or bytes; and scores if it has any


class ReferenceReader:
    """Reads the samples of an order; views[k] is its dataset k. Safe to use from many threads.

    dp_rank: named in errors, with the sample, if it is given.
    """

    def __init__(
        self, order: Order, views: Sequence[View | None], layout: BatchLayout, dp_rank: int | None = None
    ) -> None:
        self.order = order
        self.dp_rank = dp_rank
        self.views = tuple(views)
        self.layout = layout
        self._in_progress: dict[int, str] = {}
        # Rows are filled one by one, or all at once where reading means waiting for an object store.
        waiting = [view.dataset.files.waiting for view in self.views if view is not None]
        self._map: Callable[..., Iterator[Any]] = next((source.map for source in waiting if source is not None), map)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReferenceReader, (self.order, self.views, self.layout, self.dp_rank)

    def follow(self, order: Order) -> None:
        """See BatchReader."""
        self.order = order

    def where(self, thread: int) -> str:
        """See BatchReader; of a dataset in an object store the file is not known."""
        sample = self._in_progress.get(thread, "nothing")
        read = waits_for(thread)
        return f"{read}, {sample}" if read else sample

    def read(self, samples: U64Array, allocate: Allocate | None = None, picked: Picked | None = None) -> Batch:
        """See BatchReader."""
        members, windows = picked or self.order.sample_many(samples)[::2]
        carving = self.layout.carve(len(samples))
        arrays = carving.views(np.empty(carving.size, np.uint8) if allocate is None else allocate(carving.size))
        for name, spec in carving.specs.items():
            arrays[name].fill(spec.blank)
        values: dict[str, _Values] = {track.name: ([], []) for track in self.layout.read_tracks}
        sequences = [0]
        thread = get_ident()

        def fill(row: int) -> tuple[list[int], dict[str, _Values]]:
            view, window = present(self.views, int(members[row])), int(windows[row])
            self._in_progress[thread] = f"sample {samples[row]}, {kind_of(view)} {window} of dataset {view.name}"
            found: dict[str, _Values] = {name: ([], []) for name in values}
            try:
                return self._fill(arrays, found, row, view, int(samples[row]), window), found
            except (FormatError, ReadError) as error:
                if self.dp_rank is None:
                    raise
                raise in_sample(error, f"sample {samples[row]}, dp_rank {self.dp_rank}") from error

        with reading_ahead(self._ahead(members, windows)):
            for row, (borders, found) in enumerate(self._map(fill, range(len(samples)))):
                sequences += [row * self.layout.seq_len + border for border in (*borders, self.layout.seq_len)]
                for name, lists in found.items():
                    for all_of_them, some in zip(values[name], lists, strict=True):
                        all_of_them += some
        self._in_progress.pop(thread, None)
        if "sample_index" in arrays:
            arrays["sample_index"][:] = samples
        if "random" in arrays:
            arrays["random"][:] = sample_randoms(self.layout.random_key, samples)
        batch: Batch = dict(arrays)
        for track in self.layout.tracks:
            if track.ragged:
                np.cumsum(arrays[f"{track.name}_offsets"], out=arrays[f"{track.name}_offsets"])
                ids, scores = values[track.name]
                batch[f"{track.name}_values"] = np.concatenate([np.zeros(0, track.item), *ids])
                if track.scored:
                    batch[f"{track.name}_scores"] = np.concatenate([np.zeros(0, np.float32), *scores])
        if self.layout.outputs.cu_seqlens:
            batch["cu_seqlens"] = arrays["cu_seqlens"][: len(sequences)]
            batch["cu_seqlens"][:] = sequences
            batch["max_seqlen"] = int(np.diff(sequences).max(initial=0))
        if self.layout.weights is not None:
            weigh(batch, self.layout.weights, samples)
        decode_records(batch, self.layout, self.views, members)
        return batch

    def _ahead(self, members: I64Array, windows: U64Array) -> Iterator[tuple[Dataset, int, int]]:
        """Token ranges of the windows in object stores."""
        for member, window in zip(members.tolist(), windows.tolist(), strict=True):
            view = self.views[member]
            if view is not None and view.dataset.files.waiting is not None and kind_of(view) == "window":
                for part in parts_of(view, window, self.layout.seq_len):
                    yield from view.dataset.ahead(part.start, part.stop)

    def _fill(
        self, arrays: dict[str, Array], values: dict[str, _Values], row: int, view: View, index: int, number: int
    ) -> list[int]:
        """Fill one row with window, or document, `number` of a view, which is sample `index` of the run.

        Returns: the document borders within the inputs.
        """
        layout, dataset, size = self.layout, view.dataset, self.layout.seq_len
        eos = dataset.tokenizer.eos_id if dataset.tokenizer else None
        if "dataset_id" in arrays:
            arrays["dataset_id"][row] = view.dataset_id
        for name in ("input_ids", "labels"):
            arrays[name][row] = eos or 0  # what padding and quarantined samples hold
        parts = parts_of(view, number, size)
        borders: list[int] = []
        for part in parts:
            if part.place:
                borders.append(part.place)
            if part.since <= index:
                continue
            self._fill_tokens(arrays, row, part, view, eos)
            if part.document >= 0:
                if "document_ids" in arrays:
                    arrays["document_ids"][row, part.place : part.place + part.inputs] = part.document
            elif layout.outputs.needs_documents:
                borders = self._fill_documents(arrays, row, dataset, part.start)
            for track in layout.read_tracks:
                if track.track in view.tracks:
                    named = part._replace(start=part.start + 1, inputs=part.stop - part.start - 1)
                    found = self._fill_track(arrays, row, view, track, named if track.labels else part)
                    for known, more in zip(values[track.name], found, strict=True):
                        known += more
        packed = kind_of(view) == "pack"
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
            blank = field.outside if field.field in view.tracks else field.missing
            values = sample[field.field] if field.field in sample else np.full(len(tokens), blank, field.dtype)
            if field.name == LOSS_WEIGHT and not np.isfinite(values[1:]).all():
                raise FormatError(
                    f"field {field.field}: found a weight that is no finite number in tokens {part.start} to "
                    f"{part.stop} of the dataset, expected finite ones; build it again, or quarantine these tokens"
                )
            arrays[field.name][row, where] = values[1:] if field.labels else values[: part.inputs]
        if "loss_mask" not in arrays:
            return
        mask = arrays["loss_mask"][row, labels]
        mask[:] = sample[LOSS_FIELD][1:] != 0 if LOSS_FIELD in sample else 1
        if not self.layout.outputs.eos_loss:
            mask[arrays["labels"][row, labels] == eos] = 0

    def _fill_documents(self, arrays: dict[str, Array], row: int, dataset: Dataset, start: int) -> list[int]:
        size, out = self.layout.seq_len, self.layout.outputs
        documents = dataset.documents_in(start, start + size + 1)
        positions = np.arange(start, start + size)
        if out.document_ids:
            arrays["document_ids"][row] = documents.ids[np.searchsorted(documents.first, positions, side="right") - 1]
        borders = documents.first[documents.first > start] - start
        if out.loss_mask_borders:
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
            item = view.dataset.tracks[source].concepts.item
        sizes = np.array([len(record) for record in spans.records], np.int64)
        single = track.numbers is not None
        if (sizes % item).any() or (single and (sizes != item).any()):
            expected = "single number" if single else "list of concept ids"
            raise FormatError(
                f"dataset {view.name}, tokens {start} to {stop}: found a record of track {source} that is no "
                f"{expected} of {item} bytes; run `conceptloader verify --full`, restore or rebuild the dataset"
                + ", or set layout: records"
                * single
            )
        counts = sizes // item
        most = int(counts.max(initial=0))
        if (before + len(spans) > track.max_spans and not track.cut_spans) or (
            most > track.max_concepts and not track.cut_concepts
        ):
            raise FormatError(
                f"dataset {view.name}, tokens {start} to {stop}: found {len(spans)} spans of track {source} and up to "
                f"{most} concepts in one, expected at most {track.max_spans} and {track.max_concepts} as the manifest "
                "says; the dataset is damaged: run `conceptloader verify --full`, restore or rebuild it"
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
                arrays[f"{name}_span_index"][row, part.place + spans.start[k] : part.place + spans.end[k]] = CUT_OFF
        values, scores = self._values(view, track, spans, counts.tolist(), start)
        if track.ragged:
            first = row * track.max_spans + before + 1  # lengths for now; summed up at the end
            arrays[f"{name}_offsets"][first : first + used] = counts
        elif track.numbers is not None:
            arrays[f"{name}_values"][row, slots] = np.concatenate([np.zeros(0, track.item), *values])
        else:
            arrays[f"{name}_counts"][row, slots] = counts
            for k, ids in enumerate(values, before):
                arrays[f"{name}_ids"][row, k, : len(ids)] = ids
            for k, found in enumerate(scores, before):
                arrays[f"{name}_scores"][row, k, : len(found)] = found
        return values, scores

    def _values(self, view: View, track: TrackLayout, spans: Spans, counts: list[int], start: int) -> _Values:
        """What the first `counts` of the items of each record are: ids, numbers or bytes; and their scores, if any."""
        name, kept = track.track, list(zip(spans.records, counts, strict=False))
        if not track.holds_concepts:
            return [np.frombuffer(record, track.item, n) for record, n in kept], []
        entry = view.dataset.tracks[name]
        codec, limit = entry.concepts, entry.num_ids
        try:
            values = [codec.ids_of(record)[:n] for record, n in kept]
            scores = [codec.scores_of(record)[:n] for record, n in kept] if track.scored else []
        except ValueError as error:
            where = f"dataset {view.name}, tokens from {start} on: track {name}"
            raise FormatError(f"{where}: {error}; run `conceptloader verify --full`, restore or rebuild it") from error
        for k, ids in enumerate(values):
            if ids.max(initial=0) >= limit and len(ids):
                token = start + int(spans.start[k])
                raise FormatError(
                    f"{view.dataset.file_of(f'{name}.data', token)}: found concept id {ids.max()} in the span of track "
                    f"{name} at token {token} of the dataset, expected ids below {limit}, the size of the vocabulary; "
                    "the file is damaged: run `conceptloader verify --full`, restore or rebuild it"
                )
        return [ids.astype(np.int64) for ids in values], scores
