"""Writes small datasets to a folder unless they are there, and prints digests of their files and of many batches.

python -m tests.arm.batches FOLDER
"""

import hashlib
import logging
import sys
from pathlib import Path

import numpy as np

import conceptloader as cl
from conceptloader.testing import random_documents, write_dataset


def main():
    logging.getLogger("conceptloader").setLevel(logging.ERROR)  # samples of one token have no loss
    folder, files, batches = Path(sys.argv[1]), hashlib.sha256(), hashlib.sha256()
    if not folder.exists():
        folder.mkdir()
        for seed, name in enumerate("ab"):
            write_dataset(str(folder / name), random_documents(300, seed=seed))
    for path in sorted(folder.glob("*/0*")):
        files.update(path.name.encode() + path.read_bytes())
    packings = [{}, {"packing": {"bins": 8}}]
    for packing in packings:
        datasets = {name: {"path": str(folder / name), "weight": weight} for name, weight in (("a", 0.7), ("b", 0.3))}
        config = {"seq_len": 96, "datasets": datasets, "tracks": {"concepts": {}}, **packing}
        config |= {"outputs": {"cu_seqlens": True}, "loader": {"num_threads": 4}}
        with cl.batches(config, micro_batch_size=8, num_samples=256) as loader:
            for batch in loader:
                for name in sorted(batch):
                    batches.update(name.encode() + np.ascontiguousarray(batch[name]).tobytes())
    print(f"files {files.hexdigest()[:16]}, batches {batches.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
