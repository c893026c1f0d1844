"""Rotary position embeddings."""

from functools import partial

import torch


def apply_rotary_emb(x, cos, sin, interleaved=False, **unused):
    """x [batch, length, heads, size]; cos and sin [positions, size / 2]."""
    cos, sin = (one[: x.shape[1], None] for one in (cos, sin))
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = a * cos - b * sin, b * cos + a * sin
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


class RotaryEmbedding(torch.nn.Module):
    """Has the attributes that nanotron's own class, which is derived from it, reads and sets."""

    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, pos_idx_in_fp32=True, device=None):
        super().__init__()
        self.interleaved, self.pos_idx_in_fp32, self.scale = interleaved, pos_idx_in_fp32, None
        self.register_buffer("inv_freq", float(base) ** -(torch.arange(0, dim, 2) / dim), persistent=False)
        self._seq_len_cached, self._cos_cached = 0, None

    def _update_cos_sin_cache(self, seqlen, device=None, dtype=None):
        angles = torch.outer(torch.arange(seqlen).float(), self.inv_freq)
        self._cos_cached, self._sin_cached = angles.cos(), angles.sin()

    def forward(self, qkv, kv=None, max_seqlen=None, **unused):
        self._update_cos_sin_cache(max_seqlen or qkv.shape[1], qkv.device, qkv.dtype)
        turn = partial(apply_rotary_emb, cos=self._cos_cached, sin=self._sin_cached, interleaved=self.interleaved)
        return turn(qkv) if kv is None else (turn(qkv), torch.stack((turn(kv[:, :, 0]), kv[:, :, 1]), 2))
