"""Losses and parameters that a trainer has to reach: a loop written by hand over single samples, with no adapter."""

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import conceptloader as cl
from tests.corpora.for_megatron import write_config, write_datasets

RATE = 0.5
HELD_OUT = 9  # samples of a validation: of 2 ranks with batches of 4, one has none in the last
Loss = Callable[[Any, dict[str, Any]], torch.Tensor]


def configs(folder):
    """Kind of samples -> configurations of training and validation. Windows have weights and tokens without loss."""
    folder.mkdir()
    write_datasets(folder)
    windows = {
        "position_ids": "document",
        "mask_document_boundaries": True,
        "loss_on_eos": False,
        "loss_weight": "weight",
    }
    kinds = {
        "windows": {"outputs": windows, "exclude": [{"dataset": "code", "tokens": [100, 200]}]},
        "packs": {"packing": {"bins": 8}},
    }
    for kind, options in kinds.items():
        write_config(folder / f"{kind}.yaml", seq_len=48, **options)
        write_config(
            folder / f"{kind}-valid.yaml",
            seq_len=48,
            order="sequential",
            datasets={"code": {"path": "code"}},
            **options,
        )
    return {kind: (str(folder / f"{kind}.yaml"), str(folder / f"{kind}-valid.yaml")) for kind in kinds}


class Tiny(nn.Module):
    """Logits [B, S, 256] of each token, its position, and the tokens before it in its document."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.head = nn.Embedding(256, 8), nn.Embedding(48, 8), nn.Linear(8, 256)
        self.attend = nn.Linear(8, 24, bias=False)
        nn.init.normal_(self.attend.weight, std=0.5)  # by default all tokens would get nearly the same attention

    @staticmethod
    def documents(position_ids):
        """[B, S]: number of each token's document in its row."""
        return (position_ids == 0).cumsum(1)

    def forward(self, input_ids, position_ids):
        documents = self.documents(position_ids)
        mask = (documents[:, :, None] == documents[:, None, :]).tril()
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        return self.head(hidden + scaled_dot_product_attention(*self.attend(hidden).chunk(3, -1), mask))


def apart(forward, batch):
    """Logits [B, S, V] where `forward(input_ids, position_ids)` gets each document by itself: none can see another.

    A document begins where the batch's position_ids are 0.
    """
    rows = []
    for ids, places in zip(batch["input_ids"], batch["position_ids"], strict=True):
        edges = [*(places == 0).nonzero().flatten().tolist(), len(ids)]
        parts = [forward(ids[None, first:end], places[None, first:end])[0] for first, end in pairwise(edges)]
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def eval_batch(launch):
    """Rows of a rank in a batch of a validation; with 1, some batches have no label that counts."""
    return 4 if launch.ranks > 1 else 1


def weighted(logits, batch):
    """Loss of each token [B, S], times its weight."""
    losses = cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    return losses * (batch["loss_weight"] if "loss_weight" in batch else torch.ones_like(losses))


def mean(logits, batch):
    """By hand, the mean of the weighted losses of all tokens that count; 0 if there are none."""
    total, count = (weighted(logits, batch) * batch["loss_mask"]).sum(), batch["loss_mask"].sum()
    return total / count if count else total


def mean_apart(model, batch):
    return mean(apart(model, batch), batch)


def by_hand(model, launch, loss, alike):
    """Trains `model`; the loss of each step, and of the validation after it: the mean over all its tokens.

    alike: of a step, the mean of the means of its micro batches; else that over all its tokens.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    data, held_out = cl.SampleDataset(launch.config), cl.SampleDataset(launch.valid)
    trained, validated = [], []
    for step in range(launch.steps):
        samples = torch.arange(step * launch.batch, (step + 1) * launch.batch)
        micro, ranks = (launch.micro, launch.ranks) if step >= launch.first else launch.options["before"]
        parts = samples.view(-1, micro, ranks).mT.reshape(-1, micro) if alike else samples[None]
        values = [loss(model, cl.collate_fn([data[int(i)] for i in part])) for part in parts]
        value = torch.stack(values).mean()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        trained.append(value.item())
        with torch.no_grad():
            validated.append(float(loss(model, cl.collate_fn([held_out[i] for i in range(HELD_OUT)]))))
    return trained, validated


def compare(launch, model, fresh, loss, trained, validated, alike):
    """What a launch has found, against the loop by hand with a `fresh` model, in values.NUMBER for the test.

    trained, validated: of each step that this launch has made.
    """
    before = copy.deepcopy(fresh)
    expected, expected_valid = by_hand(fresh, launch, loss, alike)
    begun, ours, theirs = ([p.detach() for p in one.parameters()] for one in (before, model, fresh))
    values = {
        "losses": [trained, expected[launch.first :]],
        "validation losses": [validated, expected_valid[launch.first :]],
        "changes of parameters": [
            [float((after - old).norm()) for after, old in zip(found, begun, strict=True)] for found in (ours, theirs)
        ],
        "differences of parameters": [
            [float((one - other).norm()) for one, other in zip(ours, theirs, strict=True)],
            [0.0] * len(theirs),
        ],
    }
    (launch.path / f"values.{launch.number}").write_text(json.dumps(values))
