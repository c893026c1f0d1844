"""What a batch must contain, worked out token by token from what was put into the datasets. Slow on purpose."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from conceptloader.batch.layout import BatchLayout, TrackLayout
from conceptloader.blend import View
from tests.corpora.known import EOS, Truth

Span = tuple[int, tuple[int, ...]]  # its identity, its concepts


@dataclass
class Run:
    """Neighbours in a row that are in one span: [first, end) of the row."""

    first: int
    end: int
    span: Span


def expected(layout: BatchLayout, views: list[View], truths: list[Truth], samples: list[int], picks: list[Any]) -> Any:
    """`picks`: (view, window) of each sample."""
    rows = [Row(layout, views[k], truths[k], window) for k, window in picks]
    columns = [{**row.arrays(), "sample_index": sample} for row, sample in zip(rows, samples, strict=True)]
    for track in layout.tracks:
        for row, values in zip(rows, columns, strict=True):
            values.update(track_arrays(track, row))
    result: dict[str, Any] = {
        name: np.array([values[name] for values in columns], spec.dtype).reshape(spec.shape)
        for name, spec in layout.arrays(len(samples)).items()
        if not name.endswith("_offsets")
    }
    for name in ("input_ids", "labels"):
        result[name] = np.array([values[name] for values in columns], np.int64).reshape(-1, layout.seq_len)
    for track in layout.tracks:
        if track.ragged:
            add_ragged(result, track, rows)
    if layout.outputs.cu_seqlens:
        borders = [0]
        for number, row in enumerate(rows):
            borders += [number * layout.seq_len + end for end in row.ends_of_sequences()]
        result["cu_seqlens"] = np.array(borders, np.int32)
        result["max_seqlen"] = max(np.diff(borders).tolist(), default=0)
    return result


class Row:
    """One sample: seq_len + 1 cells, each of them a token of the dataset, or padding (None)."""

    def __init__(self, layout: BatchLayout, view: View, truth: Truth, window: int) -> None:
        self.layout, self.view, self.truth = layout, view, truth
        size = layout.seq_len + 1
        if view.member.seq_len is None:
            document = view.start + window
            ends = [*truth.starts[1:], len(truth.tokens)]
            positions = list(range(truth.starts[document], ends[document]))[:size]
        else:
            start = view.start + window * layout.seq_len
            positions = list(range(start, start + size))
        if any(low <= position < high for position in positions for low, high in view.quarantine):
            positions = []
        self.cells: list[int | None] = [*positions, *[None] * (size - len(positions))]

    def token(self, j: int) -> int:
        position = self.cells[j]
        return EOS if position is None else self.truth.tokens[position]

    def document(self, j: int) -> int:
        position = self.cells[j]
        return -1 if position is None else self.truth.document[position]

    def begins_document(self, j: int) -> bool:
        """Whether another document than that of the cell before begins here."""
        return j > 0 and self.cells[j] is not None and self.document(j) != self.document(j - 1)

    def is_trained(self, j: int) -> bool:
        """Whether the prediction of cell j counts."""
        out, position = self.layout.outputs, self.cells[j]
        if position is None or not self.truth.loss[position]:
            return False
        if not out.eos_loss and self.token(j) == EOS:
            return False
        return not (out.loss_mask_borders and self.begins_document(j))

    def position_ids(self) -> list[int]:
        found = []
        for j in range(self.layout.seq_len):
            restarts = self.layout.outputs.position_ids == "document" and self.begins_document(j)
            found.append(0 if j == 0 or restarts else found[-1] + 1)
        return found

    def ends_of_sequences(self) -> list[int]:
        """Where attention stops: before each document that begins, and at the row's end."""
        size = self.layout.seq_len
        return [*(j for j in range(size) if self.begins_document(j)), size]

    def arrays(self) -> dict[str, Any]:
        size = self.layout.seq_len
        tokens = [self.token(j) for j in range(size + 1)]
        return {
            "tokens": tokens,
            "input_ids": tokens[:-1],
            "labels": tokens[1:],
            "loss_mask": [float(self.is_trained(j)) for j in range(1, size + 1)],
            "position_ids": self.position_ids(),
            "document_ids": [self.document(j) for j in range(size)],
            "dataset_id": self.view.dataset_id,
        }

    def span(self, track: str, position: int | None) -> Span | None:
        if position is None or track not in self.truth.spans or not 0 <= position < len(self.truth.tokens):
            return None
        return self.truth.spans[track][position]

    def joined(self, track: str, left: int, right: int) -> bool:
        """Whether two neighbours of the dataset are in one span: none goes on in another shard."""
        a, b = self.span(track, left), self.span(track, right)
        return a is not None and b is not None and a[0] == b[0] and right not in self.truth.shard_starts

    def runs(self, track: str) -> list[Run]:
        """The spans of the inputs, in order."""
        found: list[Run] = []
        for j, position in enumerate(self.cells[:-1]):
            span = self.span(track, position)
            if position is None or span is None:
                continue
            if found and found[-1].end == j and self.joined(track, position - 1, position):
                found[-1].end = j + 1
            else:
                found.append(Run(j, j + 1, span))
        return found

    def flags(self, track: str, run: Run) -> int:
        """1 if the span begins before the row's first input, 2 if it ends after the last."""
        first, last = self.cells[run.first], self.cells[run.end - 1]
        assert first is not None
        assert last is not None
        inputs = sum(position is not None for position in self.cells[:-1])
        begins_before = run.first == 0 and self.joined(track, first - 1, first)
        ends_after = run.end == inputs and self.joined(track, last, last + 1)
        return begins_before + 2 * ends_after


def kept_concepts(track: TrackLayout, row: Row) -> list[list[int]]:
    """Of each span that finds a place: the concepts that do."""
    return [list(run.span[1])[: track.max_concepts] for run in row.runs(track.name)[: track.max_spans]]


def track_arrays(track: TrackLayout, row: Row) -> dict[str, Any]:
    name, size = track.name, row.layout.seq_len
    runs, concepts = row.runs(track.name)[: track.max_spans], kept_concepts(track, row)
    index = [-1] * size
    for number, run in enumerate(runs):
        index[run.first : run.end] = [number] * (run.end - run.first)
    empty, none = track.max_spans - len(runs), [-1] * track.max_concepts
    return {
        f"{name}_span_index": index,
        f"{name}_num_spans": len(runs),
        f"{name}_spans": [[run.first, run.end] for run in runs] + [[0, 0]] * empty,
        f"{name}_flags": [row.flags(name, run) for run in runs] + [0] * empty,
        f"{name}_ids": [(ids + none)[: track.max_concepts] for ids in concepts] + [none] * empty,
        f"{name}_counts": [len(ids) for ids in concepts] + [0] * empty,
    }


def add_ragged(result: dict[str, Any], track: TrackLayout, rows: list[Row]) -> None:
    """All concepts of a batch in one array, and where those of each place for a span end in it."""
    values, offsets = list[int](), [0]
    for row in rows:
        concepts = kept_concepts(track, row)
        for ids in concepts + [[]] * (track.max_spans - len(concepts)):
            values += ids
            offsets.append(len(values))
    result[f"{track.name}_values"] = np.array(values, np.int64)
    result[f"{track.name}_offsets"] = np.array(offsets, np.int64)
