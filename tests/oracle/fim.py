"""What docs/packing.md says of fill-in-the-middle, for one sample, one document after the other."""

from typing import Any

import numpy as np

import conceptloader as cl
from conceptloader.base.hashing import derive_key

ALL = 2**64


def fill_in_middle(
    fim: cl.FillInMiddle, index: int, arrays: dict[str, Any], begins: list[int]
) -> tuple[dict[str, Any], list[int]]:
    """(arrays, where sequences begin) of sample `index` afterwards. begins: where they did before."""
    size, names = len(arrays["labels"]), ("input_ids", "labels", "loss_mask", "document_ids")
    tokens, labels, loss, numbers = (arrays[n].tolist() if n in arrays else [0] * size for n in names)
    made: list[tuple[list[int], list[Any], list[float], Any, bool]] = []
    for number, (a, b) in enumerate(zip(begins, [*begins[1:], size], strict=True)):
        end = b - 1 if tokens[b - 1] == fim.eos else b
        goes_on = b < size and labels[b - 1] == tokens[b]  # the last label is the first token of the next one
        content, rest = tokens[a:end], tokens[end:b]
        new = None
        if len(content) > 1 and all(loss[a : end - 1]):
            chosen, way, *cuts = (derive_key(fim.seed, "fim", index, number, k) for k in range(4))
            if chosen / ALL < fim.rate:
                i, j = sorted(x * (len(content) + 1) // ALL for x in cuts)
                before, middle, after = content[:i], content[i:j], content[j:]
                new = [fim.prefix, *before, fim.suffix, *after, fim.middle, *middle]
                if way / ALL < fim.spm_rate:
                    new = [fim.prefix, fim.suffix, *after, fim.middle, *before, *middle]
        if new is None:
            made.append((tokens[a:b], labels[a:b], loss[a:b], numbers[a], goes_on))
            continue
        trained = [1.0] * (len(new) - 1) + ([loss[end - 1]] if rest else []) + [loss[b - 1] if goes_on else 0.0]
        made.append((new + rest, [*(new + rest)[1:], labels[b - 1]], trained, numbers[a], goes_on))
    for k, (_, its_labels, _, _, goes_on) in enumerate(made):
        if goes_on:
            its_labels[-1] = made[k + 1][0][0]
    found: dict[str, list[Any]] = {name: [] for name in (*names, "position_ids", "sequences")}
    for its_tokens, its_labels, trained, its_number, _ in made:
        place = len(found["input_ids"])
        if place < size:
            found["sequences"].append(place)
        found["input_ids"] += its_tokens
        found["labels"] += its_labels
        found["loss_mask"] += trained
        found["document_ids"] += [its_number] * len(its_tokens)
        found["position_ids"] += range(len(its_tokens))
    fill = max(0, size - len(found["input_ids"]))
    for name, value in (("input_ids", fim.pad), ("labels", fim.pad), ("loss_mask", 0), ("document_ids", made[-1][3])):
        found[name] += [value] * fill
    found["position_ids"] += range(found["position_ids"][-1] + 1, found["position_ids"][-1] + 1 + fill)
    if "position_ids" in arrays and any(arrays["position_ids"][begins]):
        found["position_ids"] = arrays["position_ids"].tolist()
    there = [name for name in (*names, "position_ids") if name in arrays]
    result = {name: np.array(found[name][:size], arrays[name].dtype) for name in there}
    if fim.ignore_index is not None:
        result["labels"][result["loss_mask"] == 0] = fim.ignore_index
    return {**arrays, **result}, found["sequences"]
