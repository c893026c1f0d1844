"""What the examples share: a small GPT, a loop that trains it and resumes, torchrun, a tokenizer."""

import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import conceptloader as cl

END = "<|endoftext|>"


class GPT(nn.Module):
    """Blocks with causal attention behind token and position embeddings."""

    def __init__(self, vocab, seq_len, width, layers, heads=4):
        super().__init__()
        self.seq_len = seq_len
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, **options)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(seq_len), persistent=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def states(self, batch):
        """[B, S, width], of each input."""
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        return self.blocks(x, self.mask, is_causal=True)

    def forward(self, batch):
        """Logits [B, S, vocab]."""
        return self.logits(self.states(batch))

    def logits(self, states):
        return F.linear(states, self.tokens.weight)


def language_losses(logits, batch):
    """Nats [B, S]."""
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")


def joint_losses(found, batch):
    """Of logits and logits of concepts [B, S, concepts]: what is minimized; the mean language loss of tokens with loss;
    the mean concept loss of annotated tokens, summed over the concepts. All in nats."""
    logits, scores = found
    language = cl.token_mean(language_losses(logits, batch), batch)
    # "Not here" is known of annotated tokens alone, be it with nothing: others have no part in the concept loss.
    status = cl.concepts.annotation_status(batch, "concepts")
    known = status.gt(0) & status.lt(3)
    targets = cl.concepts.span_targets(batch, "concepts", scores.shape[-1])
    index = batch["concepts_span_index"].clamp(min=0).long()[..., None].expand_as(scores)
    wrong = F.binary_cross_entropy_with_logits(scores, targets.gather(1, index), reduction="none").sum(-1)
    concept = (wrong * known).sum() / known.sum().clamp(min=1)
    return language + 0.3 * concept, language, concept


def start():
    """(rank, ranks) of this process of torchrun."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def train(
    model, loader, losses, steps,
    out = None,
):  # fmt: skip
    """Train up to step `steps`; yields (step, batch, losses), before the step is made.

    losses: of the model's output and a batch; the first is minimized. out: folder of a run log, and of a checkpoint
    every 30 steps, from which the training goes on if it is there. DIES_AT, of the environment: in that step rank 1 is
    killed.
    """
    rate, checkpoint, dies_at = 4e-3, out and out / "checkpoint.pt", int(os.environ.get("DIES_AT", -1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    parts, first = {"model": model, "optimizer": optimizer, "loader": loader}, 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    if out:
        loader.log_start(out, first)
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model  # waits for the other ranks
    batches = iter(loader)
    for step in range(first, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 20, 2.1 - 2 * step / steps)
        batch = next(batches)
        found = losses(parallel(batch), batch)
        found[0].backward()
        yield step, batch, found
        if step == dies_at and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if checkpoint and (step + 1) % 30 == 0 and dist.get_rank() == 0:
            state = {name: part.state_dict() for name, part in parts.items()}  # the loader's is the same on every rank
            torch.save({**state, "step": step + 1}, f"{checkpoint}.tmp")
            os.replace(f"{checkpoint}.tmp", checkpoint)  # a kill leaves the old one or the new one


def torchrun(ranks, *script, **more):
    """Arguments of subprocess.run. more: of the environment."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ, **more}
    return {"args": [*command, *map(str, script)], "env": environment}


def train_tokenizer(texts, path, size=2048):
    """Byte-level BPE: every text can be written with its 256 bytes and the merges that were worth it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return str(path)
