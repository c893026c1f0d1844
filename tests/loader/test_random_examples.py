"""The examples of `outputs.sample_seed`: diffusion noise, metadata dropout; each sample's own, whatever it is with."""

import importlib.util

import torch

import conceptloader as cl

MASK, BLOCK, SIZE = 5000, 5, 16


def example(checkout, name):
    spec = importlib.util.spec_from_file_location(name, checkout / f"examples/pytorch/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_of(make, config):
    """A batch, and what `make` makes of it: the same of each sample in another place of another batch."""
    config["outputs"] = {"sample_seed": True}
    batch = next(iter(cl.make_dataloader(config, micro_batch_size=400)))
    made, others = make(batch), make({name: value[300:].flip(0) for name, value in batch.items()})
    assert all(value[300:].flip(0).equal(other) for value, other in zip(made, others, strict=True))
    return batch, made


def test_diffusion(checkout, config):
    diffusion = example(checkout, "diffusion")
    batch, noised = made_of(lambda batch: diffusion.noise(batch, MASK, BLOCK), config)
    masked = noised.inputs == MASK
    assert torch.equal(noised.inputs[~masked], batch["input_ids"][~masked])
    assert torch.equal(noised.weights > 0, masked)
    rates = noised.rates.repeat_interleave(BLOCK, 1)[:, :SIZE]
    assert torch.allclose(noised.weights[masked], 1 / rates[masked])
    assert abs(float(masked.float().mean()) - float(rates.mean())) < 0.02
    logits = torch.zeros(*batch["input_ids"].shape, 1000, requires_grad=True)
    diffusion.loss(logits, batch, noised).backward()
    assert torch.equal((logits.grad != 0).any(-1), masked)


def test_dropout(checkout, config):
    dropout = example(checkout, "metadata_dropout")

    def make(batch):
        dropped = dropout.drop_concepts(batch, "concepts", samples=0.3, spans=0.4)
        return [dropped[f"concepts_{name}"] for name in ("ids", "counts", "span_index")]

    batch, (ids, counts, index) = made_of(make, config)
    had, has = batch["concepts_counts"] > 0, counts > 0
    assert not (has & ~had).any()
    assert abs(float(has.sum() / had.sum()) - 0.7 * 0.6) < 0.05
    assert torch.equal(ids[has], batch["concepts_ids"][has])
    dropped = {**batch, "concepts_ids": ids, "concepts_counts": counts, "concepts_span_index": index}
    known, was = (cl.concepts.annotation_status(one, "concepts") for one in (dropped, batch))
    assert set(torch.unique(known[known != was]).tolist()) == {0}
