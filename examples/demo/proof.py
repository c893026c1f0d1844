"""What the ranks recorded against the plan, and against a reference that is computed here without any processes."""

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

import conceptloader as cl

STEPS, GLOBAL_BATCH = 240, 12
TRAINED = {"input_ids": "<i8", "labels": "<i8", "loss_mask": "<f4"}


@dataclass(frozen=True)
class Launch:
    """A start of the run, with what its ranks recorded, a line for each step of each. stop: where a later one began."""

    ranks: int
    first: int
    stop: float
    lines: list[dict[str, Any]]


def read_record(run):
    """All launches of a run. A line that a kill cut off does not count."""
    starts = cl.adapters.RunLog(run).starts
    launches = []
    for number, start in enumerate(starts, 1):
        texts = [path.read_text() for path in run.glob(f"record.{number}.*.jsonl")]
        lines = sorted((json.loads(line) for text in texts for line in text.split("\n")[:-1]), key=lambda x: x["step"])
        stop = min((later.step for later in starts[number:]), default=math.inf)
        launches.append(Launch(start.dp_size, start.step, stop, lines))
    return launches


def checksum(arrays, spans):
    """Of a sample: its arrays of TRAINED, and of each span of its inputs start, end and concepts."""
    kinds = zip(arrays, TRAINED.values(), strict=True)
    data = b"".join(np.asarray(array).astype(kind).tobytes() for array, kind in kinds)
    return xxhash.xxh3_64_hexdigest(data + json.dumps(spans).encode())


def checksums(batch):
    """Of all samples of a batch."""
    found = []
    for row, number in enumerate(batch["concepts_num_spans"].tolist()):
        counts = batch["concepts_counts"][row, :number].tolist()
        lists = (batch[name][row, :number].tolist() for name in ("concepts_spans", "concepts_ids"))
        spans = [[*ends, *ids[:count]] for ends, ids, count in zip(*lists, counts, strict=True)]
        for k, (start, end, *_) in enumerate(spans):
            require(
                bool((batch["concepts_span_index"][row, start:end] == k).all()), f"row {row}: span {k} is misaligned"
            )
        found.append(checksum([batch[name][row] for name in TRAINED], spans))
    return found


def make_reference(config):
    """(dataset, window, checksum) of each sample as it should be: reads every window of the run, one after the other,
    straight from its dataset."""
    blend = cl.open_blend(cl.load_config(config))
    seq_len, names = blend.config.seq_len or 0, blend.order.names
    windows = {name: dataset.windows(seq_len) for name, dataset in blend.datasets.items()}
    planned = []
    for sample in range(STEPS * GLOBAL_BATCH):
        index, _, window = blend.order.sample(sample)
        data = windows[names[index]][window]
        tokens, found = data["tokens"], data["concepts"]
        ends = np.minimum(found.end, seq_len).tolist()  # the last token is no input
        spans = zip(found.start.tolist(), ends, found.decode(), strict=True)
        listed = [[start, end, *ids.tolist()] for start, end, ids in spans if start < seq_len]
        planned.append((names[index], window, checksum([tokens[:-1], tokens[1:], np.ones(seq_len)], listed)))
    return planned


def check_record(launches, planned, names, batch):
    """Every planned sample was trained once, in its step, with its tokens. Returns how many were trained again.

    Those that were trained between the last checkpoint and the kill were trained again afterwards; both times they must
    be the same.
    """
    trained, again = Counter(), Counter()
    for launch in launches:
        for line in launch.lines:
            lists = (line[name] for name in ("samples", "datasets", "windows", "checksums"))
            for sample, dataset, window, digest in zip(*lists, strict=True):
                (trained if line["step"] < launch.stop else again)[line["step"], sample] += 1
                found = names[dataset], window, digest
                require(found == planned[sample], f"sample {sample}: found {found}, planned {planned[sample]}")
    once = Counter((sample // batch, sample) for sample in range(len(planned)))
    require(trained == once, f"not as planned: {sorted((trained - once) | (once - trained))[:5]}")
    require(again <= once, "samples were trained in other steps before the kill")
    return len(again)


def mean_loss(launches, kind, first, last):
    """Of steps [first, last), in which no later launch made them again."""
    lines = (line for launch in launches for line in launch.lines if line["step"] < launch.stop)
    return np.mean([line[kind] for line in lines if first <= line["step"] < last])


def require(condition, message):
    """The demo fails, loudly, where something is not as it says."""
    if not condition:
        raise SystemExit(f"the proof fails: {message}")
