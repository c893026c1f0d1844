"""What the ranks recorded against the plan, and against a reference that is computed here without any processes."""

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

import conceptloader as cl

TRAINED = {"input_ids": "<i8", "labels": "<i8", "loss_mask": "<f4"}


@dataclass(frozen=True)
class Launch:
    """A start of the run, with what its ranks recorded, a line for each micro batch. stop: where a later one began."""

    number: int
    ranks: int
    first: int
    stop: float
    lines: list[dict[str, Any]]

    def counting(self) -> list[dict[str, Any]]:
        """The lines of steps that no later launch made again."""
        return [line for line in self.lines if line["step"] < self.stop]


def read_record(run: Path) -> list[Launch]:
    """All launches of a run. A line that a kill cut off does not count."""
    starts = cl.adapters.RunLog(run).starts
    launches = []
    for number, start in enumerate(starts, 1):
        texts = [path.read_text() for path in sorted(run.glob(f"record.{number}.*.jsonl"))]
        lines = [json.loads(line) for text in texts for line in text.split("\n")[:-1]]
        stop = min((later.step for later in starts[number:]), default=math.inf)
        launches.append(Launch(number, start.dp_size, start.step, stop, sorted(lines, key=lambda line: line["step"])))
    return launches


def checksums(batch: Mapping[str, Any]) -> list[str]:
    """Of the tokens, labels and loss mask of each sample."""
    arrays = [np.asarray(batch[name]).astype(kind) for name, kind in TRAINED.items()]
    return [xxhash.xxh3_64_hexdigest(b"".join(row.tobytes() for row in rows)) for rows in zip(*arrays, strict=True)]


@dataclass(frozen=True)
class Reference:
    """The run as it should be, sample by sample. concept_tokens: how many inputs carry each concept."""

    datasets: list[str]
    windows: list[int]
    checksums: list[str]
    concept_tokens: np.ndarray[Any, np.dtype[np.int64]]  # [samples, concepts]
    seq_len: int


def make_reference(config: Path, num_samples: int) -> Reference:
    """Reads every window of the run, one after the other, straight from its dataset."""
    blend = cl.open_blend(cl.load_config(config))
    seq_len = blend.config.seq_len or 0
    names = blend.order.names
    windows = {name: dataset.windows(seq_len) for name, dataset in blend.datasets.items()}
    vocabulary = blend.datasets[names[0]].vocabulary("concepts") or []
    reference = Reference([], [], [], np.zeros((num_samples, len(vocabulary)), np.int64), seq_len)
    for sample in range(num_samples):
        index, _, window = blend.order.sample(sample)
        data = windows[names[index]][window]
        tokens, spans = data["tokens"], data["concepts"]
        reference.datasets.append(names[index])
        reference.windows.append(window)
        trained = {"input_ids": tokens[None, :-1], "labels": tokens[None, 1:], "loss_mask": np.ones((1, seq_len))}
        reference.checksums.extend(checksums(trained))
        for start, end, concepts in zip(spans.start, np.minimum(spans.end, seq_len), spans.decode(), strict=True):
            reference.concept_tokens[sample, concepts] += max(0, end - start)  # the last token is no input
    return reference


def check_record(launches: Sequence[Launch], reference: Reference, names: list[str], steps: int, batch: int) -> int:
    """Every planned sample was trained once, in its step, with its tokens. Returns how many were trained again.

    Those that were trained between the last checkpoint and the kill were trained again afterwards; both times they must
    be the same.
    """
    trained: Counter[tuple[int, int]] = Counter()
    again: Counter[tuple[int, int]] = Counter()
    for launch in launches:
        for line in launch.lines:
            lists = (line[name] for name in ("samples", "datasets", "windows", "checksums"))
            for sample, dataset, window, checksum in zip(*lists, strict=True):
                (trained if line["step"] < launch.stop else again)[line["step"], sample] += 1
                found = names[dataset], window, checksum
                expected = reference.datasets[sample], reference.windows[sample], reference.checksums[sample]
                require(found == expected, f"sample {sample}: found {found}, planned {expected}")
    planned = {(step, sample): 1 for step in range(steps) for sample in range(step * batch, (step + 1) * batch)}
    require(
        trained == planned, f"not as planned: {sorted((trained - Counter(planned)) | (Counter(planned) - trained))[:5]}"
    )
    require(
        set(again) <= set(planned) and set(again.values()) <= {1}, "samples were trained in other steps before the kill"
    )
    return len(again)


def base_rate_loss(reference: Reference, first: int, last: int) -> float:
    """Nats per token of the best constant prediction for samples [first, last): each concept at its own frequency."""
    tokens = reference.seq_len * (last - first)
    p = np.clip(reference.concept_tokens[first:last].sum(axis=0) / tokens, 1e-12, 1 - 1e-12)
    return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).sum())


def mean_loss(launches: Sequence[Launch], kind: str, first: int, last: int) -> float:
    """Of steps [first, last), as the ranks recorded it."""
    lines = [line for launch in launches for line in launch.counting()]
    found = [line[kind] for line in lines if first <= line["step"] < last]
    return sum(found) / len(found)


def check_tensors(folder: Path, config: Path, log: Path, step: int) -> int:
    """The concept tensors of a step equal what `conceptloader trace` prints for it. Returns the number of spans."""
    traced = {
        sample["sample"]: sample for sample in command("trace", config, "--run-log", log, "--step", step)["samples"]
    }
    spans = 0
    for path in sorted(folder.glob(f"{step}.*.pt")):
        batch = torch.load(path)
        for row, sample in enumerate(batch["sample_index"].tolist()):
            expected = traced.pop(sample)["spans"]["concepts"]
            for span in expected:
                del span["names"], span["scores"]
            found = span_list(batch, row)
            require(found == expected, f"step {step}, sample {sample}: the batch has {found}, trace prints {expected}")
            spans += len(expected)
    require(not traced, f"step {step}: samples {sorted(traced)} are traced, but no rank had them")
    return spans


def span_list(batch: dict[str, torch.Tensor], row: int) -> list[dict[str, Any]]:
    """The spans of a sample, from its tensors, as `trace` lists them."""
    result = []
    for k in range(int(batch["concepts_num_spans"][row])):
        start, end = batch["concepts_spans"][row, k].tolist()
        count, flags = int(batch["concepts_counts"][row, k]), int(batch["concepts_flags"][row, k])
        require(bool((batch["concepts_span_index"][row, start:end] == k).all()), f"row {row}: span {k} is misaligned")
        concepts = batch["concepts_ids"][row, k, :count].tolist()
        result.append(
            {
                "start": start,
                "end": end,
                "begins_before": bool(flags & 1),
                "ends_after": bool(flags & 2),
                "record": concepts,
            }
        )
    return result


def command(*args: object) -> Any:
    """What a conceptloader command prints with --json."""
    words = [str(Path(sys.executable).parent / "conceptloader"), *map(str, args), "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    require(done.returncode == 0, f"{' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout)


def require(condition: bool, message: str) -> None:
    """The demo fails, loudly, where something is not as it says."""
    if not condition:
        raise SystemExit(f"the proof fails: {message}")
