"""A tiny model that really trains on three datasets of unlike difficulty."""

import json

import torch
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.testing import random_documents, write_dataset

SIZES = {"easy": 3, "hard": 1000, "middle": 50}  # words that each draws from
BATCH = 12


def configuration(folder, mixing, **more):
    datasets = {
        name: {
            "path": write_dataset(folder / name, random_documents(150, seed=k, prefix=name, vocab_size=size))
            if not (folder / name).exists()
            else str(folder / name),
            "weight": 1,
        }
        for k, (name, size) in enumerate(SIZES.items())
    }
    return {"seq_len": 32, "datasets": datasets, "mixing": mixing, "loader": {"prefetch_batches": 3}, **more}


class Run:
    """A training in this process; `steps` takes some, `saved` is all that a checkpoint has of it."""

    def __init__(self, config, saved=None, micro=BATCH, **load):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Embedding(1000, 8), torch.nn.Linear(8, 1000))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.micro = micro
        self.loader = self.make(config)
        if saved is not None:
            model, state = saved
            self.model.load_state_dict(model)
            self.loader.load_state_dict(json.loads(state), **load)
        self.samples = []  # with their dataset

    def make(self, config):
        return cl.make_dataloader(config, micro_batch_size=self.micro, global_batch_size=BATCH)

    def steps(self, number, observe=True):
        batches = iter(self.loader)
        for _ in range(number):
            for _ in range(BATCH // self.micro):
                batch = next(batches)
                logits = self.model(batch["input_ids"]).transpose(1, 2)
                losses = cross_entropy(logits, batch["labels"], reduction="none")
                self.loader.losses.add(losses, batch)
                (losses * batch["loss_mask"]).mean().backward()
                self.samples += zip(batch["sample_index"].tolist(), batch["dataset_id"].tolist(), strict=True)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if observe:
                self.loader.observe_step()
        return self

    @property
    def saved(self):
        model = {name: value.clone() for name, value in self.model.state_dict().items()}
        return model, json.dumps(self.loader.state_dict())

    @property
    def mixing(self):
        """What the state has of the controller."""
        fields = json.loads(self.loader.state_dict()["conceptloader"])
        return dict(fields["mixing"])
