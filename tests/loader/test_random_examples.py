"""The examples of `outputs.sample_seed`: diffusion noise, metadata dropout; alike on any ranks and after a resume."""

import importlib.util
import itertools

import pytest
import torch

import conceptloader as cl

MASK, BLOCK, SIZE = 5000, 5, 16


def example(checkout, name):
    spec = importlib.util.spec_from_file_location(name, checkout / f"examples/pytorch/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_sample(config, make, ranks, stop=0):
    """What `make` makes of each of 24 samples; with `stop`, resumed after so many batches on one rank."""
    found = {}

    def note(batch):
        made = make(batch)
        for row, sample in enumerate(batch["sample_index"].tolist()):
            found[sample] = [value[row].tolist() for value in made.values()]

    loaders = [
        cl.make_dataloader(config, dp_rank=rank, dp_size=ranks, micro_batch_size=2, num_samples=24)
        for rank in range(ranks)
    ]
    for loader in loaders:
        for batch in itertools.islice(loader, stop or None):
            note(batch)
    if stop:
        resumed = cl.make_dataloader(config, micro_batch_size=6, num_samples=24)
        resumed.load_state_dict(loaders[0].state_dict())
        for batch in resumed:
            note(batch)
    return found


def test_diffusion(checkout, config):
    config["outputs"]["sample_seed"] = True
    diffusion = example(checkout, "diffusion")
    make = lambda batch: diffusion.noise(batch, MASK, BLOCK)._asdict()  # noqa: E731
    found = by_sample(config, make, 1)
    assert sorted(found) == list(range(24))
    assert by_sample(config, make, 2) == by_sample(config, make, 3, stop=2) == found
    assert len({str(one) for one in found.values()}) == 24
    assert by_sample({**config, "seed": 6}, make, 1) != found
    batch = next(iter(cl.make_dataloader(config, micro_batch_size=400)))
    noised = diffusion.noise(batch, MASK, BLOCK)
    masked = noised.inputs == MASK
    assert torch.equal(noised.inputs[~masked], batch["input_ids"][~masked])
    assert torch.equal(noised.weights > 0, masked)
    rates = noised.rates.repeat_interleave(BLOCK, 1)[:, :SIZE]
    assert torch.allclose(noised.weights[masked], 1 / rates[masked])
    assert abs(float(masked.float().mean()) - float(rates.mean())) < 0.02
    assert abs(float(rates.mean()) - 0.525) < 0.02
    assert float(noised.weights.mean()) == pytest.approx(1, abs=0.1)  # so that the loss is one of each token
    logits = torch.zeros(*batch["input_ids"].shape, 1000, requires_grad=True)
    diffusion.loss(logits, batch, noised).backward()
    assert torch.equal((logits.grad != 0).any(-1), masked)


def test_dropout(checkout, config):
    config["outputs"]["sample_seed"] = True
    dropout = example(checkout, "metadata_dropout")
    names = ("concepts_ids", "concepts_counts", "concepts_span_index")

    def make(batch):
        dropped = dropout.drop_concepts(batch, "concepts", samples=0.3, spans=0.4)
        return {name: dropped[name] for name in names}

    found = by_sample(config, make, 1)
    assert by_sample(config, make, 2) == by_sample(config, make, 3, stop=2) == found
    batch = next(iter(cl.make_dataloader(config, micro_batch_size=400)))
    before = {name: batch[name].clone() for name in names}
    dropped = dropout.drop_concepts(batch, "concepts", samples=0.3, spans=0.4)
    assert all(torch.equal(batch[name], before[name]) for name in names)
    had, has = before["concepts_counts"] > 0, dropped["concepts_counts"] > 0
    assert not (has & ~had).any()
    assert abs(float(has.sum() / had.sum()) - 0.7 * 0.6) < 0.05
    samples = had.any(1)
    assert abs(float((has.any(1) & samples).sum() / samples.sum())) < 0.71
    assert torch.equal(dropped["concepts_ids"][has], batch["concepts_ids"][has])
    known, was = cl.concepts.annotation_status(dropped, "concepts"), cl.concepts.annotation_status(batch, "concepts")
    assert set(torch.unique(known[known != was]).tolist()) == {0}
