"""RMS norm, as nanotron's models for tests ask for it."""

import torch


def layer_norm_fn(x, weight, bias, residual=None, eps=1e-6, prenorm=False, is_rms_norm=False, **unused):
    assert (bias, residual, prenorm, is_rms_norm) == (None, None, False, True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
