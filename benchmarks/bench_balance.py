"""`loader.balance` on packs: time of a step over that of equal micro batches, and processor time for it.

Documents of log-normal lengths, 700 tokens in the median, and 3 % of long ones of 20,000: token files of Megatron's
kind, read in place, whose tokens are never read here. The cost model is a dense one of 8 billion parameters: 4.8e10
operations a token, and 786,432 a token and token of context within its document. Pipelines run one forward, one
backward.
"""

import struct
import time
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt
import torch
from data import ROOT
from harness import Report

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.config import open_blend
from conceptloader.loader.batch.open import open_reader
from conceptloader.order.balance import deal

SEQ_LEN, STEPS = 131_072, 6
LINEAR, ATTENTION = 4.8e10, 786_432.0
SHAPES = {
    "dp 64, accumulation 8": (64, 8, 1),
    "dp 64, accumulation 8, pp 8": (64, 8, 8),
    "dp 16, accumulation 32, pp 8": (16, 32, 8),
}
Times = npt.NDArray[np.float64]


def write(tokens):
    """A dataset of so many tokens, which are a hole in a file."""
    ROOT.mkdir(parents=True, exist_ok=True)
    prefix, path = ROOT / "balance", ROOT / "balance-adopted"
    if path.exists():
        return str(path)
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(np.log(700), 1.3, tokens // 1000))
    long = rng.random(len(lengths)) < 0.03
    lengths[long] = np.exp(rng.normal(np.log(20_000), 1.2, long.sum()))
    lengths = np.maximum(lengths, 16).astype("<i4")
    lengths = lengths[: np.searchsorted(np.cumsum(lengths, dtype=np.int64), tokens)]
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    with prefix.with_suffix(".idx").open("wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1))
        for array in (lengths, 2 * starts[:-1], np.arange(len(lengths) + 1)):
            file.write(array.astype("<i4" if array is lengths else "<i8").tobytes())
    with prefix.with_suffix(".bin").open("wb") as file:
        file.truncate(2 * int(starts[-1]))
    tokenizer = ["--vocab-size", "50000"]
    assert main(["adopt", str(prefix.with_suffix(".bin")), "--out", str(path), *tokenizer]) == 0
    return str(path)


def step_time(costs, stages):
    """Of micro batches with costs [ranks, accumulation]: when the last rank ends. Forward takes a third of each."""
    ranks, number = costs.shape
    done = {}
    plans = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, number)
        plan = [("F", k) for k in range(ahead)]
        for k in range(number - ahead):
            plan += [("F", ahead + k), ("B", k)]
        plans.append(plan + [("B", k) for k in range(number - ahead, number)])
    clocks, at = [np.zeros(ranks) for _ in plans], [0] * stages
    while any(at[stage] < len(plan) for stage, plan in enumerate(plans)):
        for stage, plan in enumerate(plans):
            while at[stage] < len(plan):
                kind, k = plan[at[stage]]
                other = stage + (-1 if kind == "F" else 1)
                needed = done.get((kind, other, k)) if 0 <= other < stages else clocks[stage]
                if needed is None:
                    break
                share = (1 if kind == "F" else 2) / 3 / stages
                clocks[stage] = done[kind, stage, k] = np.maximum(clocks[stage], needed) + share * costs[:, k]
                at[stage] += 1
    return float(max(clock.max() for clock in clocks))


report = Report("balance")
config = {
    "seq_len": SEQ_LEN,
    "packing": {"bins": 64},
    "outputs": {"cu_seqlens": True},
    "datasets": {"web": {"path": write(STEPS * 512 * SEQ_LEN * 5 // 4)}},
}
blend = open_blend(config)
costs_of = open_reader(blend).costs(blend.order)
began = time.process_time()
squares = [costs_of(np.arange(k * 512, (k + 1) * 512, dtype=np.uint64)) for k in range(STEPS)]
report.fact("costs of a step of 512 packs", "CPU of a sample", 1e6 * (time.process_time() - began) / STEPS / 512, "us")
for name, (ranks, number, stages) in SHAPES.items():
    ratios = {"as it comes": [], "balanced": []}  # type: dict[str, list[float]]
    for found in squares:
        whole = LINEAR * SEQ_LEN + ATTENTION * found
        ideal = step_time(np.full((ranks, number), whole.mean()), stages)
        came = whole.reshape(number, ranks).T
        began = time.process_time()
        dealt = deal(found.tolist(), 1, ranks)
        spent = time.process_time() - began
        ratios["as it comes"].append(step_time(came, stages) / ideal)
        ratios["balanced"].append(step_time(whole[np.array(dealt)[:, :, 0]], stages) / ideal)
    for how, values in ratios.items():
        report.fact(name, how, float(np.mean(values)), "of a step with equal micro batches")


def attend(packs):
    """Seconds of a small layer over packs, each given by the ends of its documents: projections, and attention."""
    torch.set_num_threads(1)
    tokens, weights = torch.randn(1, SMALL, 64), torch.randn(64, 64)
    began = time.perf_counter()
    for ends in packs:
        rows = tokens
        for _ in range(24):
            rows = rows @ weights / 8
        for first, stop in pairwise(ends.tolist()):
            part = rows[:, first:stop]
            torch.nn.functional.scaled_dot_product_attention(part, part, part, is_causal=True)
    return time.perf_counter() - began


# Ranks one after the other in this process, so that they do not take cores from each other.
SMALL, RANKS, NUMBER = 8192, 4, 4
loader = cl.batches({**config, "seq_len": SMALL}, micro_batch_size=1)
worked = {"as it comes": [], "balanced": []}
for _, step in zip(range(4), iter(lambda: list(islice(loader, RANKS * NUMBER)), []), strict=False):
    ends = [batch["cu_seqlens"].astype(np.int64) for batch in step]
    cost = [int((np.diff(one) ** 2).sum()) for one in ends]
    came = [[[k] for k in range(rank, len(step), RANKS)] for rank in range(RANKS)]
    for how, ranks in (("as it comes", came), ("balanced", deal(cost, 1, RANKS))):
        seconds = [attend([ends[one[0]] for one in mine]) for mine in ranks]
        worked[how].append(max(seconds) / np.mean(seconds))
for how, values in worked.items():
    report.fact(
        "a small attention layer on a CPU, packs of 8,192, dp 4, accumulation 4",
        how,
        float(np.mean(values)),
        "slowest rank over mean",
    )
report.fact("dealing a step of 512", "CPU of a sample", 1e6 * spent / 512, "us")
report.finish()
