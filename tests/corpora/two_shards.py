"""The dataset that faults happen to."""

from pathlib import Path

from conceptloader.testing import random_documents, write_dataset


def write_corpus(path: Path, encoding: str = "spans") -> Path:
    write_dataset(path, random_documents(30, seed=1, mean_length=40), shards=2, encoding=encoding)
    return path
