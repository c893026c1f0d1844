"""Dropout of metadata: a model that is conditioned on concepts learns to do without, sample by sample and span by span.

What is dropped is drawn from a number per sample, `outputs.sample_seed: true`, so that a resumed run, and one on
another number of ranks, drops the same. A use that needs other draws beside these takes another `salt`.
"""

import torch


def kept(batch, rate, shape=(), salt=0):
    """bool [B, *shape]: False with probability `rate`, for each sample anew."""
    draws = []
    for number in batch["sample_seed"].tolist():
        generator = torch.Generator().manual_seed((number + salt * 0x9E3779B97F4A7C15) % 2**63)
        draws.append(torch.rand(shape, generator=generator))
    return (torch.stack(draws) >= rate).to(batch["sample_seed"].device)


def drop_concepts(batch, track, *, samples, spans):
    """The batch without the concepts of some samples, and of some spans of the others; layout padded. Spans that have
    lost their concepts look like tokens that nobody annotated: their loss is none, see `cl.annotation`."""
    index = batch[f"{track}_span_index"]
    slots = batch[f"{track}_spans"].shape[1]
    stays = kept(batch, spans, (slots,), salt=1) & kept(batch, samples, salt=2)[:, None]
    seen = stays.gather(1, index.clamp(min=0).long()) | (index < 0)
    return {
        **batch,
        f"{track}_ids": batch[f"{track}_ids"].masked_fill(~stays[..., None], -1),
        f"{track}_counts": batch[f"{track}_counts"].masked_fill(~stays, 0),
        f"{track}_span_index": index.masked_fill(~seen, -1),
    }
