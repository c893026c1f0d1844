"""A corpus with masks and weights, and losses of its samples by hand: each document is forwarded by itself.

What the samples are, tests/oracle shows.
"""

from typing import NamedTuple

import numpy as np
from torch.nn.functional import cross_entropy

import conceptloader as cl
from tests.trainers.values import apart

VOCABULARY, EOS, SEQ_LEN = 24, 0, 16
WINDOWS = {"outputs": {"position_ids": "document", "mask_document_boundaries": True, "loss_on_eos": False}}
PACKS = {"packing": {"bins": 4}}


class Document(NamedTuple):
    """For each token: its id, whether it is trained on (the field loss_mask), the weight of its loss (field weight)."""

    tokens: list[int]
    mask: list[int]
    weights: list[float]


def documents(count=60, *, seed=0, longest=40):
    """Documents of 2 to `longest` tokens that end in EOS; 30 % of the tokens are masked, some have weight 0."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(rng.integers(2, longest + 1))
        tokens = [*rng.integers(1, VOCABULARY, size - 1).tolist(), EOS]
        found.append(
            Document(tokens, (rng.random(size) < 0.7).astype(int).tolist(), (rng.integers(0, 9, size) / 4).tolist())
        )
    return found


def write(path, corpus, *, mode="token-stream", fields=("loss_mask", "weight")):
    """A dataset of two shards of these documents, with these of the two fields. Returns its path."""
    types = {"loss_mask": "u1", "weight": "f4"}
    options = cl.writing.BuildOptions(
        mode=mode,
        tokenizer=cl.writing.Tokenizer(name="by-hand", vocab_size=VOCABULARY, eos_id=EOS),
        fields={name: types[name] for name in fields},
    )
    half = len(corpus) // 2
    build = cl.writing.create_writer(path, options, plan=[0, 1])
    for number, part in enumerate((corpus[:half], corpus[half:])):
        with build.shard(number) as shard:
            for document in part:
                values = {"loss_mask": document.mask, "weight": document.weights}
                shard.add_document(document.tokens, fields={name: values[name] for name in fields})
    cl.writing.finalize(path)
    return str(path)


def write_datasets(folder):
    """Two datasets, of which one has neither masks nor weights."""
    write(folder / "masked", documents(seed=1))
    write(folder / "plain", documents(30, seed=2), fields=())
    return folder


def config_of(folder, kind, **outputs):
    datasets = {name: {"path": str(folder / name), "weight": 1 + (name == "masked")} for name in ("masked", "plain")}
    return {"seq_len": SEQ_LEN, "datasets": datasets, **kind, "outputs": {**kind.get("outputs", {}), **outputs}}


def rows(source, samples=None):
    """A batch of these samples of a configuration, or of all, by their index."""
    data = source if isinstance(source, cl.SampleDataset) else cl.SampleDataset(source)
    return dict(cl.collate_fn(data.__getitems__([*(range(len(data)) if samples is None else samples)])))


def mean_loss(forward, batch, loss=cross_entropy):
    """Of the labels that are trained on, where each document is forwarded by itself."""
    logits, trained = apart(forward, batch), batch["loss_mask"] == 1
    return loss(logits[trained], batch["labels"][trained])
