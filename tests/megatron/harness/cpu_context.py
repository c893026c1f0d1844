"""Without Transformer Engine: attention within the sequences of a pack, and context parallelism by local attention over
keys and values gathered from all ranks.

Megatron's own attention refuses context parallelism, though its batches, losses and gradients support it. Here each
rank attends from its part of the sequence to the whole of it, as the rows of the mask of its part say.
"""

import copy

import torch
import torch.distributed as dist


class GatherSequence(torch.autograd.Function):
    """[s / n, ...] of each of n ranks, two chunks each, to the whole sequence [s, ...] in its natural order."""

    @staticmethod
    def forward(ctx, part, group):
        ctx.group, ctx.rank, ctx.size = group, dist.get_rank(group), dist.get_world_size(group)
        parts = [torch.empty_like(part) for _ in range(ctx.size)]
        dist.all_gather(parts, part.contiguous(), group=group)
        halves = [half.chunk(2) for half in parts]
        return torch.cat([first for first, _ in halves] + [last for _, last in reversed(halves)])

    @staticmethod
    def backward(ctx, *gradients):
        whole = gradients[0].contiguous()
        dist.all_reduce(whole, group=ctx.group)
        chunks = whole.chunk(2 * ctx.size)
        return torch.cat((chunks[ctx.rank], chunks[2 * ctx.size - 1 - ctx.rank])), None


def install():
    """Teach megatron.core's DotProductAttention to run with packed sequences, and under context parallelism."""
    from megatron.core import parallel_state
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    attention = DotProductAttention
    make, attend = attention.__init__, attention.forward

    def __init__(self, config, *args, **kwargs):
        alone = copy.copy(config)
        alone.context_parallel_size = 1
        make(self, alone, *args, **kwargs)

    def forward(self, query, key, value, *args, **kwargs):
        packs = kwargs.pop("packed_seq_params", None)
        if packs is not None:  # [tokens, heads, size]
            places = torch.arange(len(query))
            sequence = torch.searchsorted(packs.cu_seqlens_q.long(), places, right=True)
            seen = (sequence[:, None] == sequence) & (places[:, None] >= places)
            return attend(self, query[:, None], key[:, None], value[:, None], ~seen[None, None], **kwargs)
        if parallel_state.get_context_parallel_world_size() > 1:
            group = parallel_state.get_context_parallel_group()
            key, value = GatherSequence.apply(key, group), GatherSequence.apply(value, group)
        return attend(self, query, key, value, *args, **kwargs)

    attention.__init__, attention.forward = __init__, forward
