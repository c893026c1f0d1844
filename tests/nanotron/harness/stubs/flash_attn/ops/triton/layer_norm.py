"""Layer norm and RMS norm, with an optional residual added first."""

import torch


def layer_norm_fn(
    x,
    weight,
    bias,
    residual=None,
    eps=1e-6,
    dropout_p=0.0,
    prenorm=False,
    residual_in_fp32=False,
    is_rms_norm=False,
    return_dropout_mask=False,
    **unused,
):
    total = x.float() if residual is None else x.float() + residual.float()
    centred = total if is_rms_norm else total - total.mean(-1, keepdim=True)
    out = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    if bias is not None:
        out = out + bias.float()
    out = out.to(x.dtype)
    if not prenorm:
        return out
    return out, total if residual_in_fp32 else total.to(x.dtype)
