"""nanotron's training in plain torch: the model of its Llama and Qwen2, their loss, and a loop over a plain loader.

Nothing of nanotron and of the adapter is used but the weights of a checkpoint.
"""

import torch
from safetensors.torch import load_file
from torch.nn import functional

import conceptloader as cl

HEADS, EPS, BASE = 4, 1e-5, 10_000.0


def read_weights(checkpoint):
    """Parameters by the folder that nanotron saves them in."""
    root = checkpoint / "model" / "model"
    files = root.rglob("*.safetensors")
    return {str(file.parent.relative_to(root)): load_file(file)["data"].requires_grad_() for file in files}


def _norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _rotated(x, interleaved):
    """x [samples, heads, tokens, size]: pairs of it turned by an angle that grows with the token's place."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2])[:, None] / BASE ** (torch.arange(half) / half)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def logits(weights, ids, documents, interleaved):
    """[samples, tokens, vocabulary]. documents [samples, tokens]: tokens see those before them of the same number."""
    seen = documents[:, None, :, None] == documents[:, None, None, :]
    seen = seen & torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    x = weights["token_position_embeddings/pp_block/token_embedding"][ids]
    for layer in range(sum(name.endswith("o_proj") for name in weights)):
        own = {name.split("pp_block/")[1]: w for name, w in weights.items() if name.startswith(f"decoder/{layer}/")}
        parts = (_norm(x, own["input_layernorm"]) @ own["attn/qkv_proj"].T).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        scores = _rotated(q, interleaved) @ _rotated(k, interleaved).transpose(-1, -2) / q.shape[-1] ** 0.5
        mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        x = x + mixed.transpose(1, 2).flatten(2) @ own["attn/o_proj"].T
        gate, up = (_norm(x, own["post_attention_layernorm"]) @ own["mlp/gate_up_proj"].T).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ own["mlp/down_proj"].T
    return _norm(x, weights["final_layer_norm/pp_block"]) @ weights["lm_head/pp_block"].T


def losses(checkpoint, config, micro_batches, *, packed, interleaved):
    """The loss of each step from `checkpoint` on, of `micro_batches` of 2 samples over all ranks: the mean of their
    means over the tokens that count, as nanotron has it. packed: documents, told by their positions, do not see others.
    """
    weights = read_weights(checkpoint)
    optimizer = torch.optim.AdamW(weights.values(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    loader = iter(cl.make_dataloader(dict(config), dp_rank=0, dp_size=1, micro_batch_size=2))
    while True:
        total = torch.zeros(())
        for _ in range(micro_batches):
            batch = next(loader)
            starts = (batch["position_ids"] == 0).cumsum(1) if packed else torch.zeros_like(batch["input_ids"])
            found = logits(weights, batch["input_ids"], starts, interleaved)
            each = functional.cross_entropy(found.transpose(1, 2), batch["labels"], reduction="none")
            total = total + (each * batch["loss_mask"]).sum() / batch["loss_mask"].sum().clamp(min=1) / micro_batches
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimizer.step()
        yield total.item()
