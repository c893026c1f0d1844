"""`loader.balance` on packs: time of a step over that of equal micro batches, and processor time for it.

Documents of log-normal lengths, 700 tokens in the median, and 3 % of long ones of 20,000: token files of Megatron's
kind, read in place, whose tokens are never read here. The cost model is a dense one of 8 billion parameters: 4.8e10
operations a token, and 786,432 a token and token of context within its document. Pipelines run one forward, one
backward.
"""

import time
from itertools import islice, pairwise

import numpy as np
import torch
from data import ROOT, megatron_files
from harness import US, Report

import conceptloader as cl
from conceptloader.config import open_blend
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.loader.batch.open import open_reader
from conceptloader.order.balance import deal

SEQ_LEN, STEPS, STEP = 131_072, 6, 512
SMALL, RANKS = 8192, 4
LINEAR, ATTENTION = 4.8e10, 786_432.0
SHAPES = {  # ranks, micro batches, stages of a pipeline
    "dp 64, accumulation 8": (64, 8, 1), "dp 64, accumulation 8, pp 8": (64, 8, 8),
    "dp 16, accumulation 32, pp 8": (16, 32, 8),
}  # fmt: skip


def written(tokens):
    """Path of a dataset of so many tokens, which are a hole in a file."""
    path, prefix = ROOT / "balance", ROOT / "balance-files"
    if not path.exists():
        rng = np.random.default_rng(0)
        long = rng.random(tokens // 1000) < 0.03
        medians = np.where(long, 20_000, 700)
        lengths = np.exp(rng.normal(np.log(medians), np.where(long, 1.2, 1.3))).clip(16).astype(np.int64)
        megatron_files(prefix, lengths[: np.searchsorted(np.cumsum(lengths), tokens)])
        adopt([prefix], path)
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


def attend(packs):
    """Seconds of a small layer over packs, each given by where its documents begin and end. Ranks come one after the
    other in this process, so that they do not take cores from each other."""
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


report = Report("balance")
path = written(STEPS * STEP * SEQ_LEN * 5 // 4)
config = {"packing": {"bins": 64}, "outputs": {"cu_seqlens": True}, "datasets": {"web": {"path": path}}}
blend = open_blend({**config, "seq_len": SEQ_LEN})
costs_of = open_reader(blend).costs(blend.order)
steps, spent = [], []
for k in range(STEPS):
    began = time.process_time()
    steps.append(costs_of(np.arange(k * STEP, (k + 1) * STEP, dtype=np.uint64)))
    spent.append(1e6 * (time.process_time() - began) / STEP)
report.add("costs of a step of 512 packs, CPU of a sample", "us", {US: spent})
for name, (ranks, number, stages) in SHAPES.items():
    ratios = {US: [], "as it comes": []}
    for costs in steps:
        whole = LINEAR * SEQ_LEN + ATTENTION * costs
        ideal = step_time(np.full((ranks, number), whole.mean()), stages)
        dealt = np.array(deal(costs.tolist(), 1, ranks))[:, :, 0]
        ratios[US].append(step_time(whole[dealt], stages) / ideal)
        ratios["as it comes"].append(step_time(whole.reshape(number, ranks).T, stages) / ideal)
    report.add(f"{name}: a step beside one of equal micro batches", "x", ratios)

torch.set_num_threads(1)
loader, slowest = iter(cl.batches({**config, "seq_len": SMALL}, micro_batch_size=1)), {US: [], "as it comes": []}
for _ in range(4):
    ends = [batch["cu_seqlens"].astype(np.int64) for batch in islice(loader, 4 * RANKS)]
    costs = [int((np.diff(one) ** 2).sum()) for one in ends]
    dealt, came = np.array(deal(costs, 1, RANKS))[:, :, 0], np.arange(len(ends)).reshape(-1, RANKS).T
    for name, share in ((US, dealt), ("as it comes", came)):
        seconds = [attend([ends[k] for k in mine]) for mine in share]
        slowest[name].append(max(seconds) / np.mean(seconds))
report.add("a small attention layer on a CPU, packs of 8,192, dp 4: slowest rank over mean", "x", slowest)
report.finish()
