"""Attention of packed sequences, one sequence at a time."""

import torch


def _visible(queries, keys, causal, window, device):
    """bool [queries, keys]; the last query and the last key are aligned."""
    i = torch.arange(queries, device=device)[:, None] + (keys - queries)
    j = torch.arange(keys, device=device)[None, :]
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal:
        visible &= j <= i
    if window[0] >= 0:
        visible &= j >= i - window[0]
    if window[1] >= 0:
        visible &= j <= i + window[1]
    return visible


def _attend(q, k, v, causal, scale, window):
    """q [queries, heads, size], k and v [keys, kv heads, size]: output like q, log-sum-exp [heads, queries]."""
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    scores = scores.masked_fill(~_visible(q.shape[0], k.shape[0], causal, window, q.device), float("-inf"))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(torch.isinf(lse), 0.0)[..., None])
    return torch.einsum("hqk,khd->qhd", weights, v.float()).to(q.dtype), lse


def _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale, window):
    cq, ck = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    parts = [
        _attend(q[a:b], k[c:d], v[c:d], causal, scale, window)
        for a, b, c, d in zip(cq[:-1], cq[1:], ck[:-1], ck[1:], strict=True)
    ]
    return torch.cat([out for out, _ in parts], 0), torch.cat([lse for _, lse in parts], 1)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    return_attn_probs=False,
    **unused,
):
    out, lse = _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale, window_size)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(q, kv, *args, **kwargs):
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *args, **kwargs)


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), return_attn_probs=False, **unused
):
    out = torch.stack([_attend(*qkv, causal, softmax_scale, window_size)[0] for qkv in zip(q, k, v, strict=True)])
    return (out, None, None) if return_attn_probs else out


def _flash_attn_varlen_forward(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=1.0,
    causal=False,
    window_size_left=-1,
    window_size_right=-1,
    **unused,
):
    with torch.no_grad():
        window = (window_size_left, window_size_right)
        out, lse = _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale, window)
    return out, lse, None, None


def _flash_attn_varlen_backward(
    dout,
    q,
    k,
    v,
    out,
    softmax_lse,
    dq,
    dk,
    dv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=1.0,
    causal=False,
    window_size_left=-1,
    window_size_right=-1,
    **unused,
):
    with torch.enable_grad():
        leaves = tuple(x.detach().clone().requires_grad_(True) for x in (q, k, v))
        window = (window_size_left, window_size_right)
        again, _ = _varlen(*leaves, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale, window)
        for grad, target in zip(torch.autograd.grad(again, leaves, dout), (dq, dk, dv), strict=True):
            target.copy_(grad)


def flash_attn_with_kvcache(*args, **kwargs):
    raise NotImplementedError("this stand-in for flash_attn trains only")
