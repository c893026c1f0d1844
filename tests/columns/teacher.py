"""A corpus whose tokens are all different, and a teacher whose value of a token is a hash of its document, place and k.

So what a batch must hold follows from its own tokens, whatever the order, the packing and the files are.

As a program it is one rank that writes the values, and may be killed: JSON of `write`.
"""

import json
import os
import signal
import sys

import numpy as np

import conceptloader as cl
from conceptloader.testing import RawDocument, write_dataset

VOCABULARY = 1 << 31  # token 0 ends no document: it is padding


class Corpus:
    """Documents of `lengths` tokens, numbered from `first` on."""

    def __init__(self, lengths, first=1):
        self.lengths, self.first = lengths, first
        self.starts = first + np.concatenate([[0], np.cumsum(lengths)])

    @classmethod
    def random(cls, documents, seed, mean=60, first=1):
        return cls((np.random.default_rng(seed).geometric(1 / mean, documents)).tolist(), first)

    def documents(self):
        return [list(range(a, b)) for a, b in zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)]

    def write(self, path, shards=3, mode=None):
        rows = [RawDocument(id=f"doc-{n}", tokens=tokens) for n, tokens in enumerate(self.documents())]
        return write_dataset(path, rows, shards=shards, mode=mode, vocab_size=VOCABULARY)

    def values(self, tokens, k):
        """[..., k] below 2**31; what stands for tokens of others means nothing."""
        document = np.searchsorted(self.starts, tokens, side="right") - 1
        place = tokens - self.starts[np.clip(document, 0, len(self.starts) - 1)]
        mixed = (document * 1_000_003 + place * 8_191)[..., None] + np.arange(k) * 7_919
        return (mixed * 2_654_435_761 >> 7) & 0x7FFFFFFF

    def holds(self, tokens):
        return (tokens >= self.first) & (tokens < self.starts[-1])


def computed(corpus, tokens, k, rng):
    """What a teacher gives for a batch: also something for what is no token of the corpus."""
    noise = rng.integers(0, 1 << 31, (*tokens.shape, k))
    return np.where(corpus.holds(tokens)[..., None], corpus.values(tokens, k), noise)


def write(
    path, name, config, rank, ranks, k, corpus, batches,
    kill = None, size = 4,
):  # fmt: skip
    """One rank's part of the first `batches` micro batches of all; killed after `kill` of its own."""
    source, rng, done = Corpus(*corpus), np.random.default_rng(), 0
    loader = cl.batches(config, micro_batch_size=size, dp_rank=rank, dp_size=ranks, num_samples=batches * size * ranks)
    with cl.column_writer(path, name, "u4", k, loader=loader) as writer:
        for batch in loader:
            if writer.has(batch):
                continue
            writer.write(batch, computed(source, batch["labels"], k, rng))
            done += 1
            if done == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            if done % 5 == 0:
                writer.flush()


if __name__ == "__main__":
    write(**json.loads(sys.argv[1]))
