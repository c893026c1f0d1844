"""Losses of training in plain PyTorch, equal to those of a loop written by hand; documents that are apart."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import conceptloader as cl
from tests.corpora.for_megatron import write_datasets
from tests.trainers import values
from tests.trainers.values import KINDS, config_of, rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_datasets(tmp_path_factory.mktemp("values"))


def with_weights(model, batch):
    """Losses [B, S], as docs/annotations.md says."""
    logits = model(batch["input_ids"], batch["position_ids"])
    return cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none") * batch["loss_weight"]


@pytest.mark.parametrize("kind", KINDS)
def test_training_with_masks_weights_and_accumulation(folder, kind):
    """Steps of three micro batches, on two ranks whose gradients are averaged: with `total`, each token weighs 1."""
    config = config_of(folder, KINDS[kind], loss_weight="weight")
    batches = [
        iter(cl.make_dataloader(config, dp_rank=rank, dp_size=2, micro_batch_size=2, global_batch_size=12))
        for rank in (0, 1)
    ]
    models = values.Tiny(), values.Tiny()
    optimizers = [torch.optim.SGD(model.parameters(), values.RATE) for model in models]
    for step in range(4):
        of_step = [next(rank) for _ in range(3) for rank in batches]
        total = torch.stack([batch["loss_mask"].sum() for batch in of_step]).sum()
        loss = torch.stack([cl.token_mean(with_weights(models[0], b), b, total / 2) / 2 for b in of_step]).sum()
        batch = rows(config, range(12 * step, 12 * step + 12))
        wanted = (with_weights(models[1], batch) * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
        for value, optimizer in zip((loss, wanted), optimizers, strict=True):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
