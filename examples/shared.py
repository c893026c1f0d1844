"""What the examples share: a small GPT, a loop that trains it and resumes, torchrun, a tokenizer."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

END = "<|endoftext|>"


class GPT(nn.Module):
    """Blocks with causal attention behind token and position embeddings."""

    def __init__(self, vocab: int, seq_len: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.seq_len = seq_len
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
        options: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, **options) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(seq_len), persistent=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def states(self, batch: dict[str, Any]) -> Tensor:
        """[B, S, width], of each input."""
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        for block in self.blocks:
            x = block(x, self.mask, is_causal=True)
        return self.norm(x)

    def forward(self, batch: dict[str, Any]) -> Any:
        """Logits [B, S, vocab]."""
        return self.logits(self.states(batch))

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.tokens.weight)


def language_losses(logits: Tensor, batch: dict[str, Any]) -> Tensor:
    """Nats [B, S]."""
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")


def start() -> tuple[int, int]:
    """(rank, ranks) of this process of torchrun."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def train(
    model: nn.Module, loader: Any, losses: Callable[[Any, dict[str, Any]], tuple[Tensor, ...]], steps: int,
    out: Path | None = None, micro_batches: int = 1, save_every: int = 30,
) -> Iterator[tuple[int, dict[str, Any], tuple[Tensor, ...]]]:  # fmt: skip
    """Train up to step `steps`; yields (step, batch, losses) of each micro batch, before its step is made.

    losses: of the model's output and a batch; the first is minimized. out: folder of a run log, and of a checkpoint,
    from which the training goes on if it is there.
    """
    rate, checkpoint = 4e-3, out and out / "checkpoint.pt"
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    parts, first = {"model": model, "optimizer": optimizer, "loader": loader}, 0
    if checkpoint and checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    if out:
        loader.log_start(out, first)
    distributed = dist.is_initialized()
    parallel: Any = DistributedDataParallel(model) if distributed else model  # waits for the other ranks
    batches = iter(loader)
    for step in range(first, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 20, 2.1 - 2 * step / steps)
        for left in reversed(range(micro_batches)):
            batch = next(batches)
            with parallel.no_sync() if left else nullcontext():
                found = losses(parallel(batch), batch)
                (found[0] / micro_batches).backward()
            yield step, batch, found
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if checkpoint and (step + 1) % save_every == 0 and dist.get_rank() == 0:
            state = {name: part.state_dict() for name, part in parts.items()}  # the loader's is the same on every rank
            torch.save({**state, "step": step + 1}, f"{checkpoint}.tmp")
            os.replace(f"{checkpoint}.tmp", checkpoint)  # a kill leaves the old one or the new one


def torchrun(ranks: int, *script: object) -> dict[str, Any]:
    """Arguments of subprocess.run or Popen."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    return {"args": [*command, *map(str, script)], "env": environment}


def train_tokenizer(texts: Iterable[str], path: Path, size: int = 2048) -> str:
    """Byte-level BPE: every text can be written with its 256 bytes and the merges that were worth it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return str(path)
