"""Losses and parameters that a trainer has to reach: a loop written by hand over single samples, with no adapter.

What the samples are, tests/oracle shows.
"""

import copy
import json
from itertools import pairwise

import torch
import yaml
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import conceptloader as cl
from tests.corpora.for_megatron import write_datasets

VOCABULARY, SEQ_LEN, RATE = 256, 16, 0.5
HELD_OUT = 9  # samples of a validation: of 2 ranks with batches of 4, one has none in the last
WINDOWS = {"outputs": {"position_ids": "document", "mask_document_boundaries": True, "loss_on_eos": False}}
PACKS = {"packing": {"bins": 4}}
KINDS = {"windows": WINDOWS, "packs": PACKS}


def config_of(folder, kind, **outputs):
    """Of `code` and `web` in `folder`, of whose tokens a fifth is not trained on."""
    datasets = {name: {"path": str(folder / name), "weight": 1 + (name == "code")} for name in ("code", "web")}
    exclude = [{"dataset": name, "tokens": [at, at + 40]} for name in datasets for at in range(100, 3000, 200)]
    outputs = {**kind.get("outputs", {}), **outputs}
    return {"seq_len": SEQ_LEN, "datasets": datasets, "exclude": exclude, **kind, "outputs": outputs}


def held_out(config):
    """For an evaluation: samples of `code` alone, each once."""
    code = {"path": config["datasets"]["code"]["path"], "split": [0, 0.28]}
    exclude = [one for one in config["exclude"] if one["dataset"] == "code"]
    return {**config, "datasets": {"code": code}, "exclude": exclude, "order": "sequential"}


def configs(folder, **windows):
    """Kind of samples -> paths of its configurations for training and for evaluation. windows: outputs of theirs."""
    write_datasets(folder)
    found = {}
    for name, kind in KINDS.items():
        train = config_of(folder, kind, **(windows if kind is WINDOWS else {}))
        paths = folder / f"{name}.yaml", folder / f"{name}-valid.yaml"
        for path, config in zip(paths, (train, held_out(train)), strict=True):
            path.write_text(yaml.safe_dump(config))
        found[name] = str(paths[0]), str(paths[1])
    return found


def rows(source, samples=None):
    """A batch of these samples of a configuration, or of all, by their index."""
    data = source if isinstance(source, cl.SampleDataset) else cl.SampleDataset(source)
    return dict(cl.collate_fn(data.__getitems__([*(range(len(data)) if samples is None else samples)])))


def sgd(model, losses, rate=RATE):
    """Trains on losses, each of which is made when the step before has ended; gives their values."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for loss in losses:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


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


def mean_apart(forward, batch):
    return mean(apart(forward, batch), batch)


def by_hand(model, launch, loss, alike):
    """Trains `model`; the loss of each step, and of the validation after it: the mean over all its tokens.

    alike: of a step, the mean of the means of its micro batches; else that over all its tokens.
    """
    data, valid = cl.SampleDataset(launch.config), rows(launch.valid, range(HELD_OUT))

    def of_step(step):
        samples = torch.arange(step * launch.batch, (step + 1) * launch.batch)
        micro, ranks = (launch.micro, launch.ranks) if step >= launch.first else launch.options["before"]
        parts = samples.view(-1, micro, ranks).mT.reshape(-1, micro) if alike else samples[None]
        return torch.stack([loss(model, rows(data, part.tolist())) for part in parts]).mean()

    trained, validated = [], []
    for value in sgd(model, map(of_step, range(launch.steps))):
        trained.append(value)
        with torch.no_grad():
            validated.append(float(loss(model, valid)))
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
