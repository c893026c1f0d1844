"""ns per sample of a blend: our lookup, Megatron's index building, grain's mix."""

import grain
import numpy as np
from harness import US, Contender, Report
from megatron.core.datasets import helpers_cpp

import conceptloader as cl

BATCH = 200_000
BUILD = 2_000_000

report = Report("mixture")
rng = np.random.default_rng(0)


def megatron_index(weights, samples):
    dataset_index = np.zeros(samples, np.int16)
    sample_index = np.zeros(samples, np.int64)
    helpers_cpp.build_blending_indices(dataset_index, sample_index, weights, len(weights), samples, False)
    return dataset_index


for count in (4, 16, 64, 1024):
    weights = rng.integers(1, 1000, count) / 1.0
    shares = weights / weights.sum()
    strict = cl.Mixture([10**9] * count, weights=weights.tolist(), block=1)
    blocks = cl.Mixture([10**9] * count, weights=weights.tolist())
    random = rng.integers(0, 2**40, BATCH, dtype=np.uint64)
    sequence = np.arange(10**9, 10**9 + BATCH, dtype=np.uint64)
    mixed = grain.MapDataset.mix([grain.MapDataset.range(10**7) for _ in range(count)], weights=weights.tolist())
    few = [int(x) for x in rng.integers(0, len(mixed), 300)]
    report.race(
        f"{count} datasets",
        [
            Contender(US, lambda m=strict, x=random: m.locate_many(x), BATCH),
            Contender("conceptloader, with epoch and shuffle", lambda m=blocks, x=sequence: m.sample_many(x), BATCH),
            Contender("Megatron, building the index", lambda w=shares: megatron_index(w, BUILD), BUILD),
            Contender("grain mix, lookup", lambda m=mixed, x=few: [m[i] for i in x], len(few)),
        ],
        repeats=5,
    )
report.finish()
