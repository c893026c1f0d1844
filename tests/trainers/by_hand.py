"""Training and evaluation written by hand, in numpy, to compare a trainer's losses with: no engine and no loader.

`documents` makes a corpus as plain lists, `write` makes a dataset of it. `windows` and `packed` cut it into samples as
docs/pytorch.md and docs/packing.md say. `ByHand` is a model of two tables that computes its losses, gradients and SGD
steps itself; `Tables` is the same model for torch. Which sample comes when is not decided here: see `in_order`.

Everything is float64, so that a trainer's losses are equal up to rounding (rtol 1e-9), or nearly so in float32 (1e-5).
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import conceptloader as cl

VOCABULARY, EOS = 24, 0
Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Document(NamedTuple):
    """For each token: its id, whether it is trained on (the field loss_mask), the weight of its loss (field weight)."""

    tokens: list[int]
    mask: list[int]
    weights: list[float]


class Sample(NamedTuple):
    """Arrays [S]. mask and weights belong to the labels; mask is 1 or 0."""

    inputs: Ints
    labels: Ints
    mask: Floats
    weights: Floats
    positions: Ints


def documents(count: int = 60, *, seed: int = 0, longest: int = 40) -> list[Document]:
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


def write(
    path: Path,
    corpus: Sequence[Document],
    *,
    mode: str = "token-stream",
    fields: Sequence[str] = ("loss_mask", "weight"),
) -> str:
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


def windows(
    corpus: Sequence[Document],
    seq_len: int,
    *,
    restart: bool = False,
    mask_boundaries: bool = False,
    loss_on_eos: bool = True,
) -> list[Sample]:
    """All windows of the stream of documents, in its order: window k begins at token k * seq_len.

    restart: positions begin at 0 with each document, else with the window. mask_boundaries: no loss on the first token
    of a document after another one (`outputs.mask_document_boundaries`). loss_on_eos: False for no loss on EOS.
    """
    tokens, mask, weights, places = [], [], [], []
    for document in corpus:
        for place, (token, trained, weight) in enumerate(zip(*document, strict=True)):
            tokens.append(token)
            mask.append(float(trained and not (mask_boundaries and place == 0) and (loss_on_eos or token != EOS)))
            weights.append(weight)
            places.append(place)
    found = []
    for start in range(0, len(tokens) - seq_len, seq_len):
        inputs, labels = slice(start, start + seq_len), slice(start + 1, start + seq_len + 1)
        positions = [min(places[start + k], k) if restart else k for k in range(seq_len)]
        found.append(
            Sample(
                np.array(tokens[inputs]), np.array(tokens[labels]), np.array(mask[labels]), np.array(weights[labels]),
                np.array(positions),
            )
        )  # fmt: skip
    return found


def packed(corpus: Sequence[Document], parts: Sequence[tuple[int, int, int]], seq_len: int) -> Sample:
    """A sample that is put together of parts of documents, and padded with EOS that is not trained on.

    parts: (document, first token in it, tokens that are inputs), in their sequence. The label of a part's last token is
    the token after it in the document, if there is one; it has no loss otherwise. A sample of mode `document` is one
    part, of a document's first seq_len tokens.
    """
    inputs, labels, positions = (np.full(seq_len, EOS), np.full(seq_len, EOS), np.zeros(seq_len, np.int64))
    mask, weights = np.zeros(seq_len), np.zeros(seq_len)
    at = 0
    for number, first, count in parts:
        document = corpus[number]
        for k in range(count):
            inputs[at + k], positions[at + k] = document.tokens[first + k], k
            if first + k + 1 < len(document.tokens):
                labels[at + k] = document.tokens[first + k + 1]
                mask[at + k] = document.mask[first + k + 1]
                weights[at + k] = document.weights[first + k + 1]
        at += count
    positions[at:] = np.arange(seq_len - at)
    return Sample(inputs, labels, mask, weights, positions)


def in_order(source: Any, samples: dict[str, Sequence[Sample]], start: int, stop: int) -> list[Sample]:
    """The trainer's samples [start, stop). source: what has a `blend`; samples: of each dataset, by its name."""
    order, names = source.blend.order, source.blend.config.names
    picked = [order.sample(number) for number in range(start, stop)]
    return [samples[names[member]][window] for member, _, window in picked]


def batched(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Batches of `size` samples; the last one may have fewer."""
    edges = [*range(0, len(samples), size), len(samples)]
    return [list(samples[a:b]) for a, b in pairwise(edges)]


def first_tables(seq_len: int) -> tuple[Floats, Floats]:
    """Logits [VOCABULARY, VOCABULARY] by input token, and [seq_len, VOCABULARY] by position, to be added."""
    rng = np.random.default_rng(17)
    return rng.normal(size=(VOCABULARY, VOCABULARY)), rng.normal(size=(seq_len, VOCABULARY))


class Tables(nn.Module):
    """The model for torch: logits [B, S, VOCABULARY] of inputs and positions [B, S], from `first_tables`."""

    def __init__(self, seq_len: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        tokens, places = first_tables(seq_len)
        self.tokens = nn.Embedding.from_pretrained(torch.tensor(tokens, dtype=dtype), freeze=False)
        self.places = nn.Embedding.from_pretrained(torch.tensor(places, dtype=dtype), freeze=False)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.tokens(input_ids) + self.places(position_ids)
        return logits


class ByHand:
    """The model in numpy. weighted: losses are multiplied by the weights; what they are divided by is the number of
    labels that are trained on, whatever their weights."""

    def __init__(self, seq_len: int, *, weighted: bool = False) -> None:
        self.tokens, self.places = first_tables(seq_len)
        self.weighted = weighted

    def loss(self, samples: Sequence[Sample]) -> tuple[float, int]:
        """(sum of the losses, labels that are trained on)."""
        total, count = 0.0, 0
        for sample in samples:
            for _, _, label, factor, logits in self._rows(sample):
                total += factor * (np.log(np.exp(logits).sum()) - logits[label])
                count += 1
        return total, count

    def evaluate(self, batches: Sequence[Sequence[Sample]], *, mean: str = "tokens") -> float:
        """The mean loss: of all labels that are trained on ("tokens"), or of the mean losses of the batches
        ("batches")."""
        found = [self.loss(batch) for batch in batches]
        if mean == "batches":
            return float(np.mean([total / count for total, count in found]))
        return sum(total for total, _ in found) / sum(count for _, count in found)

    def step(self, batches: Sequence[Sequence[Sample]], rate: float, *, mean: str = "tokens") -> float:
        """One step of SGD over micro batches, those of all ranks among them. Returns the loss before it, as `evaluate`
        does; `mean` decides what the gradient is of, too."""
        loss = self.evaluate(batches, mean=mean)
        counts = [self.loss(batch)[1] for batch in batches]
        tokens, places = np.zeros_like(self.tokens), np.zeros_like(self.places)
        for batch, count in zip(batches, counts, strict=True):
            divisor = count * len(batches) if mean == "batches" else sum(counts)
            for sample in batch:
                for token, position, label, factor, logits in self._rows(sample):
                    gradient = np.exp(logits) / np.exp(logits).sum()
                    gradient[label] -= 1
                    tokens[token] += gradient * factor / divisor
                    places[position] += gradient * factor / divisor
        self.tokens -= rate * tokens
        self.places -= rate * places
        return loss

    def _rows(self, sample: Sample) -> Any:
        """Of each label that is trained on: input token, position, label, weight, logits."""
        for token, label, trained, weight, position in zip(*sample, strict=True):
            if trained:
                yield (
                    token,
                    position,
                    label,
                    weight if self.weighted else 1.0,
                    self.tokens[token] + self.places[position],
                )
