"""A digest of orders and their inverses, datasets of many kinds, and their batches. Equal on all levels of kernels."""

import hashlib
import tempfile
from pathlib import Path

import numpy as np

import conceptloader as cl
from conceptloader.loader.batch.open import open_reader
from tests.batch.cases import configs


def everything():
    digest = hashlib.blake2b(digest_size=16)

    def add(values):
        digest.update(np.ascontiguousarray(values).tobytes())

    def add_batch(batch):
        for name in sorted(batch):
            digest.update(name.encode())
            add(batch[name])

    for n in (1000, 1025, 10**6, 3 * 2**40 + 7, 2**63):
        positions = np.arange(1000, dtype=np.uint64) * np.uint64(n // 1000) % np.uint64(n)
        add(cl.Mixture([n], seed=n).sample_many(positions)[2])
        add(cl.Mixture([n], seed=n).indices_of_windows(0, 0, positions))
    for block in (1, 64):
        mixture = cl.Mixture([500, 3000, 10**9], weights=[0.2, 0.3, 0.5], block=block, seed=3)
        for column in mixture.sample_many(np.arange(5000)):
            add(column)
        add(mixture.indices_of_windows(2, 0, np.arange(500)))
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(4):
            (Path(folder) / str(seed)).mkdir()
            for config in configs(Path(folder) / str(seed), seed):
                add_batch(open_reader(cl.open_blend(config)).read(np.arange(64, dtype=np.uint64)))
        for file in sorted(Path(folder).rglob("0*.*")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
