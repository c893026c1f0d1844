"""What a batch must contain, worked out token by token from what was put into the datasets."""

from typing import Any

import numpy as np

from conceptloader.batch.layout import BatchLayout
from conceptloader.blend import View
from tests.batch.corpora import EOS, Truth


def expected(layout: BatchLayout, views: list[View], truths: list[Truth], samples: list[int], picks: list[Any]) -> Any:
    """`picks`: (view, window) of each sample. Slow on purpose."""
    size, out = layout.seq_len, layout.outputs
    batch: dict[str, list[Any]] = {name: [] for name in (*layout.arrays(0), "input_ids", "labels")}
    ragged: dict[str, list[int]] = {track.name: [] for track in layout.tracks if track.ragged}
    for name in ragged:
        batch[f"{name}_offsets"] = [0]
    cu = [0]
    for row, (sample, (k, window)) in enumerate(zip(samples, picks, strict=True)):
        view, truth = views[k], truths[k]
        if view.member.seq_len is None:
            document = view.start + window
            start = truth.starts[document]
            end = [*truth.starts, len(truth.tokens)][document + 1]
            positions: list[int | None] = list(range(start, min(end, start + size + 1)))
        else:
            document = None
            start = view.start + window * size
            positions = list(range(start, start + size + 1))
        bad = any(a <= p < b for p in positions for a, b in view.quarantine)
        if bad:
            positions = []
        length = len(positions)
        positions += [None] * (size + 1 - length)
        tokens = [EOS if p is None else truth.tokens[p] for p in positions]
        documents = [-1 if p is None else truth.document[p] for p in positions]
        new = [j > 0 and j < length and documents[j] != documents[j - 1] for j in range(size + 1)]
        mask = []
        for j in range(1, size + 1):
            p = positions[j]
            lost = p is None or not truth.loss[p] or (not out.eos_loss and tokens[j] == EOS)
            mask.append(0.0 if lost or (out.loss_mask_borders and new[j]) else 1.0)
        place, run = [], 0
        for j in range(size):
            run = 0 if out.position_ids == "document" and new[j] else run
            place.append(run)
            run += 1
        row_values = {
            "tokens": tokens, "input_ids": tokens[:-1], "labels": tokens[1:], "loss_mask": mask, "position_ids": place,
            "document_ids": documents[:size], "dataset_id": view.dataset_id, "sample_index": sample,
        }  # fmt: skip
        for name, value in row_values.items():
            if name in batch:
                batch[name].append(value)
        cu += [row * size + j for j in range(size) if new[j]] + [(row + 1) * size]
        for track in layout.tracks:
            found = truth.spans.get(track.name, [None] * len(truth.tokens))
            cells = [None if p is None else found[p] for p in positions[:size]]
            _add_track(batch, ragged, track, cells, positions, found, truth)
    result: dict[str, Any] = {
        name: np.array(batch[name], spec.dtype).reshape(layout.arrays(len(samples))[name].shape)
        for name, spec in layout.arrays(len(samples)).items()
    }
    for name in ("input_ids", "labels"):
        result[name] = np.array(batch[name], np.int64).reshape(-1, size)
    for name, values in ragged.items():
        result[f"{name}_values"] = np.array(values, np.int64)
    if out.cu_seqlens:
        result["cu_seqlens"] = np.array(cu, np.int32)
        result["max_seqlen"] = max(np.diff(cu).tolist(), default=0)
    return result


def _add_track(batch: Any, ragged: Any, track: Any, cells: Any, positions: Any, found: Any, truth: Truth) -> None:
    name, index, spans, flags, ids, counts = track.name, [], [], [], [], []
    number, before = -1, None
    kept = 0
    for j, cell in enumerate(cells):
        edge = positions[j] in truth.shard_starts
        if cell is not None and (before is None or cell[0] != before[0] or edge):
            number += 1
            if number < track.max_spans:
                kept += 1
                end = j
                while (
                    end < len(cells)
                    and cells[end] is not None
                    and cells[end][0] == cell[0]
                    and not (end > j and positions[end] in truth.shard_starts)
                ):
                    end += 1
                first = positions[j]
                begins = (
                    j == 0 and first > 0 and not edge
                    and found[first - 1] is not None and found[first - 1][0] == cell[0]
                )  # fmt: skip
                after = positions[end - 1] + 1
                ends = (
                    end == sum(p is not None for p in positions[: len(cells)])
                    and after < len(truth.tokens) and after not in truth.shard_starts
                    and found[after] is not None and found[after][0] == cell[0]
                )  # fmt: skip
                spans.append([j, end])
                flags.append(int(begins) + 2 * int(ends))
                concepts = list(cell[1])[: track.max_concepts]
                counts.append(len(concepts))
                ids.append(concepts)
        index.append(number if cell is not None and number < track.max_spans else -1)
        before = cell
    empty = track.max_spans - kept
    batch[f"{name}_span_index"].append(index)
    batch[f"{name}_num_spans"].append(kept)
    batch[f"{name}_spans"].append(spans + [[0, 0]] * empty)
    batch[f"{name}_flags"].append(flags + [0] * empty)
    if track.ragged:
        for concepts in ids:
            ragged[name] += concepts
            batch[f"{name}_offsets"].append(len(ragged[name]))
        batch[f"{name}_offsets"] += [len(ragged[name])] * empty
    else:
        padded = [c + [-1] * (track.max_concepts - len(c)) for c in ids]
        batch[f"{name}_ids"].append(padded + [[-1] * track.max_concepts] * empty)
        batch[f"{name}_counts"].append(counts + [0] * empty)
