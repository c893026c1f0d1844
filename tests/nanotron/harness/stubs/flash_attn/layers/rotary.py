"""Rotary position embeddings."""

import torch


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None):
    """x [batch, length, heads, size]; cos and sin [positions, rotated size / 2]."""
    length, rotated = x.shape[1], 2 * cos.shape[-1]
    window = slice(seqlen_offsets, seqlen_offsets + length)
    cos, sin = cos[window][None, :, None, :], sin[window][None, :, None, :]
    turned, rest = x[..., :rotated], x[..., rotated:]
    if interleaved:
        a, b = turned[..., ::2], turned[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((out, rest), -1).to(x.dtype).contiguous()


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, pos_idx_in_fp32=True, device=None):
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        self.pos_idx_in_fp32, self.scale_base, self.scale = pos_idx_in_fp32, scale_base, None
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self._seq_len_cached, self._cos_cached, self._sin_cached = 0, None, None

    def _compute_inv_freq(self, device=None):
        exponents = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim
        return self.base**-exponents

    def _update_cos_sin_cache(self, seqlen, device=None, dtype=None):
        if self._cos_cached is None or seqlen > self._seq_len_cached or self._cos_cached.dtype != dtype:
            positions = torch.arange(seqlen, device=device, dtype=torch.float32)
            angles = torch.outer(positions, self._compute_inv_freq(device))
            self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)
            self._seq_len_cached = seqlen

    def forward(self, qkv, kv=None, seqlen_offset=0, max_seqlen=None, num_heads_q=None):
        self._update_cos_sin_cache(max_seqlen or qkv.shape[1] + seqlen_offset, qkv.device, qkv.dtype)

        def turn(x):
            return apply_rotary_emb(
                x, self._cos_cached, self._sin_cached, self.interleaved, seqlen_offsets=seqlen_offset
            )

        q = turn(qkv)
        return q if kv is None else (q, torch.stack((turn(kv[:, :, 0]), kv[:, :, 1]), 2))
