"""What every rank must be given, worked out from the core alone: the oracle for recorded runs."""

import numpy as np

import conceptloader as cl
from conceptloader.format.read.dataset import open_dataset


class Oracle:
    """Windows by global sample, of a mixture over datasets at one sequence length."""

    def __init__(self, data, mixture, seq_len, seed=42, roots=None, **kwargs):
        self.names = sorted(data)
        self.windows = {name: open_dataset(data[name], roots=roots).windows(seq_len, tracks=[]) for name in self.names}
        sizes = [len(self.windows[name]) for name in self.names]
        weights = [mixture[name] for name in self.names] if mixture else None
        self.mixture = cl.Mixture(sizes=sizes, weights=weights, names=self.names, seed=42, **kwargs)

    def samples(self, indices):
        """(dataset, epoch, window) of each trainer sample."""
        d, e, w = self.mixture.sample_many(np.array(indices, np.uint64))
        return [(self.names[a], int(b), int(c)) for a, b, c in zip(d, e, w, strict=True)]

    def tokens(self, indices):
        """int64 [samples, seq_len + 1]."""
        return np.stack([self.windows[name][window]["tokens"] for name, _, window in self.samples(indices)])


def assert_seen(result, oracle, steps, *, start=None, last_may_lack=False):
    """Every rank was given exactly its part of the samples from `start` on, by default those of a run whose batches
    were always of this size: inputs on the first pipeline stage, labels on the last one, and pointers to those
    elsewhere. last_may_lack: a rank may have died before its last line.
    """
    layout = result.layout
    start = (steps[0] - 1) * layout.micro_batches * layout.group if start is None else start
    for rank, recorded in enumerate(result.steps):
        assert list(recorded) in ([list(steps), list(steps)[:-1]] if last_may_lack else [list(steps)]), f"rank {rank}"
        pp, dp, cp = layout.coordinates(rank)
        for n, step in enumerate(recorded):
            batches = recorded[step]["batches"]
            assert len(batches) == layout.micro_batches
            for m, batch in enumerate(batches):
                first = start + (n * layout.micro_batches + m) * layout.group + dp * layout.micro_batch
                tokens = oracle.tokens(range(first, first + layout.micro_batch))
                part = (tokens.shape[1] - 1) // layout.cp
                for key, owner, wanted in (
                    ("input_ids", 0, tokens[:, :-1]),
                    ("label_ids", layout.pp - 1, tokens[:, 1:]),
                ):
                    if pp == owner:
                        assert batch[key] == wanted[:, cp * part : (cp + 1) * part].tolist(), (rank, step, m, key)
                    else:
                        assert batch[key] == {"owner": owner}, (rank, step, m, key)
                assert all(isinstance(value, dict) for value in batch.values()) or pp in (0, layout.pp - 1)
