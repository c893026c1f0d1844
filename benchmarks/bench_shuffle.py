"""ns per index: our permutation, grain's index_shuffle, numpy's materialized permutation."""

import numpy as np
from grain.experimental import index_shuffle
from harness import US, Contender, Report

import conceptloader as cl

report = Report("shuffle")
rng = np.random.default_rng(0)
BATCH = 200_000

for n in (1_000, 10**6, 10**8, 10**9, 10**12):
    p = cl.adapters.Permutation(n, key=1)
    positions = rng.integers(0, n, BATCH, dtype=np.uint64)
    few = positions[:2_000].tolist()
    contenders = [
        Contender(US, lambda p=p, x=positions: p.forward_many(x), BATCH),
    ]
    if n < 2**32:  # grain's limit
        contenders.append(
            Contender(
                "grain index_shuffle",
                lambda n=n, x=few: [index_shuffle(i, max_index=n - 1, seed=1, rounds=4) for i in x],
                len(few),
            )
        )
    if n <= 10**6:
        contenders.append(Contender("numpy permutation of all n", lambda n=n: rng.permutation(n), n))
    report.race(f"N = {n:.0e}", contenders)
report.finish()
