"""Attention of packed sequences in float32, one sequence at a time."""

from itertools import pairwise

import torch


def _attend(q, k, v, causal, scale):
    """q [queries, heads, size], k and v [keys, kv heads, size]: output like q, log-sum-exp [heads, queries]."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if causal:  # the last query and the last key are aligned
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(k) - len(q))
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1)


def _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, scale):
    edges = zip(*(pairwise(edges.tolist()) for edges in (cu_seqlens_q, cu_seqlens_k)), strict=True)
    parts = [_attend(q[a:b], k[c:d], v[c:d], causal, scale) for (a, b), (c, d) in edges]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], 1)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, *sizes, softmax_scale=None, causal=False, return_attn_probs=False, **unused
):
    out, lse = _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(q, kv, *args, **kwargs):
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *args, **kwargs)


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale=None, causal=False, **unused):
    with torch.no_grad():
        return (*_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale), None, None)


def _flash_attn_varlen_backward(
    dout, q, k, v, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, softmax_scale=None, causal=False, **unused
):
    with torch.enable_grad():
        leaves = tuple(x.detach().clone().requires_grad_(True) for x in (q, k, v))
        again, _ = _varlen(*leaves, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale)
        for grad, target in zip(torch.autograd.grad(again, leaves, dout), (dq, dk, dv), strict=True):
            target.copy_(grad)


def not_here(*args, **kwargs):
    raise NotImplementedError("this stand-in for flash_attn trains only")


flash_attn_func = flash_attn_with_kvcache = not_here
