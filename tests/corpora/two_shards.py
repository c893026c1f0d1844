"""The dataset that faults happen to."""

from conceptloader.testing import random_documents, write_dataset


def write_corpus(path, encoding="spans"):
    write_dataset(path, random_documents(30, seed=1, mean_length=40), shards=2, encoding=encoding)
    return path
