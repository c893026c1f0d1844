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
Planned = tuple[str, int, str]  # dataset, window, checksum


@dataclass(frozen=True)
class Launch:
    """A start of the run, with what its ranks recorded, a line for each micro batch. stop: where a later one began."""

    number: int
    ranks: int
    first: int
    stop: float
    lines: list[dict[str, Any]]


def read_record(run: Path) -> list[Launch]:
    """All launches of a run. A line that a kill cut off does not count."""
    starts = cl.adapters.RunLog(run).starts
    launches = []
    for number, start in enumerate(starts, 1):
        texts = [path.read_text() for path in run.glob(f"record.{number}.*.jsonl")]
        lines = sorted((json.loads(line) for text in texts for line in text.split("\n")[:-1]), key=lambda x: x["step"])
        stop = min((later.step for later in starts[number:]), default=math.inf)
        launches.append(Launch(number, start.dp_size, start.step, stop, lines))
    return launches


def counting(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """The lines of steps that no later launch made again."""
    return [line for launch in launches for line in launch.lines if line["step"] < launch.stop]


def checksums(batch: Mapping[str, Any]) -> list[str]:
    """Of the tokens, labels and loss mask of each sample."""
    arrays = [np.asarray(batch[name]).astype(kind) for name, kind in TRAINED.items()]
    return [xxhash.xxh3_64_hexdigest(b"".join(row.tobytes() for row in rows)) for rows in zip(*arrays, strict=True)]


def make_reference(config: Path, num_samples: int) -> tuple[list[Planned], Any]:
    """Reads every window of the run, one after the other, straight from its dataset. Returns what each sample should
    be, and which share [samples, concepts] of its inputs carries each concept."""
    blend = cl.open_blend(cl.load_config(config))
    seq_len, names = blend.config.seq_len or 0, blend.order.names
    windows = {name: dataset.windows(seq_len) for name, dataset in blend.datasets.items()}
    planned: list[Planned] = []
    shares = np.zeros((num_samples, len(blend.datasets[names[0]].vocabulary("concepts") or [])))
    for sample in range(num_samples):
        index, _, window = blend.order.sample(sample)
        data = windows[names[index]][window]
        tokens, spans = data["tokens"], data["concepts"]
        trained = {"input_ids": tokens[None, :-1], "labels": tokens[None, 1:], "loss_mask": np.ones((1, seq_len))}
        planned.append((names[index], window, *checksums(trained)))
        for start, end, concepts in zip(spans.start, np.minimum(spans.end, seq_len), spans.decode(), strict=True):
            shares[sample, concepts] += max(0, end - start) / seq_len  # the last token is no input
    return planned, shares


def check_record(launches: Sequence[Launch], planned: Sequence[Planned], names: Sequence[str], batch: int) -> int:
    """Every planned sample was trained once, in its step, with its tokens. Returns how many were trained again.

    Those that were trained between the last checkpoint and the kill were trained again afterwards; both times they must
    be the same.
    """
    trained, again = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for launch in launches:
        for line in launch.lines:
            lists = (line[name] for name in ("samples", "datasets", "windows", "checksums"))
            for sample, dataset, window, checksum in zip(*lists, strict=True):
                (trained if line["step"] < launch.stop else again)[line["step"], sample] += 1
                found = names[dataset], window, checksum
                require(found == planned[sample], f"sample {sample}: found {found}, planned {planned[sample]}")
    once = Counter((sample // batch, sample) for sample in range(len(planned)))
    require(trained == once, f"not as planned: {sorted((trained - once) | (once - trained))[:5]}")
    require(again <= once, "samples were trained in other steps before the kill")
    return len(again)


def base_rate_loss(shares: Any) -> float:
    """Nats per token of the best constant prediction for some samples: each concept at its own frequency."""
    p = np.clip(shares.mean(axis=0), 1e-12, 1 - 1e-12)
    return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).sum())


def mean_loss(launches: Sequence[Launch], kind: str, first: int, last: int) -> float:
    """Of steps [first, last), as the ranks recorded it."""
    return float(np.mean([line[kind] for line in counting(launches) if first <= line["step"] < last]))


def check_tensors(folder: Path, config: Path, log: Path, step: int) -> int:
    """The concept tensors of a step equal what `conceptloader trace` prints for it. Returns the number of spans."""
    samples = command("trace", config, "--run-log", log, "--step", step)["samples"]
    traced, spans = {sample["sample"]: sample["spans"]["concepts"] for sample in samples}, 0
    for path in folder.glob(f"{step}.*.pt"):
        batch = torch.load(path)
        for row, sample in enumerate(batch["sample_index"].tolist()):
            names = ("start", "end", "begins_before", "ends_after", "record")
            expected = [{name: span[name] for name in names} for span in traced.pop(sample)]
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
        found = {"start": start, "end": end, "begins_before": bool(flags & 1), "ends_after": bool(flags & 2)}
        result.append({**found, "record": batch["concepts_ids"][row, k, :count].tolist()})
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
