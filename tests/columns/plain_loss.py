"""The loss of docs/distillation.md by its definition, from logits of the whole vocabulary."""

import torch
import torch.distributed as dist

Tensor = torch.Tensor


def plain_losses(logits, labels, teacher_ids, teacher_logprobs):
    """[samples, tokens] of [samples, tokens, vocabulary]: each token of the teacher, and one in place of all others."""
    mine, ids = torch.softmax(logits.double(), -1), teacher_ids.long()
    theirs = teacher_logprobs.double().exp()
    others = mine.scatter(-1, ids, 0).sum(-1, keepdim=True)
    found = torch.cat([mine.gather(-1, ids), others], -1)
    wanted = torch.cat([theirs, (1 - theirs.sum(-1, keepdim=True)).clamp(min=0)], -1)
    language = -mine.gather(-1, labels.long()[..., None])[..., 0].log()
    return (0.3 * language - 0.7 * (wanted * found.log()).sum(-1)).float()


def compare(divided, whole, logits, group):
    """Raise unless a loss of logits [..., vocabulary / tp] is that of all of them, with its gradient."""
    parts = [torch.empty_like(logits) for _ in range(group.size())]
    dist.all_gather(parts, logits.detach().contiguous(), group=group)
    part, full = logits.detach().clone().requires_grad_(), torch.cat(parts, -1).requires_grad_()
    found, expected = divided(part * 1), whole(full)  # * 1: a copy, which trainers overwrite
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    (gradient,), (wanted,) = torch.autograd.grad(found.sum(), part), torch.autograd.grad(expected.sum(), full)
    torch.testing.assert_close(gradient, wanted.chunk(len(parts), -1)[group.rank()], rtol=1e-4, atol=1e-6)
