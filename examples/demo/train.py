"""Trains the demo's model with plain PyTorch: DistributedDataParallel, our loader, and checkpoints of its own.

    torchrun --nproc_per_node 2 examples/demo/train.py config.yaml --output run --steps 240

Started again with the same --output, on any number of ranks, it goes on from its last checkpoint. What every rank
trains is recorded in run/record.*.jsonl, and the concept tensors of the steps named by --keep under run/tensors.
"""

import argparse
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model import ConceptGPT
from proof import checksums
from torch.nn.parallel import DistributedDataParallel

import conceptloader as cl

LEARNING_RATE, WARM_UP = 4e-3, 20
CONCEPT_WEIGHT = 0.3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--global-batch-size", type=int, default=12)
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=30)
    parser.add_argument("--keep", type=int, nargs="*", default=[])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    dp_rank, dp_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    loader = cl.make_dataloader(
        args.config,
        dp_rank=dp_rank,
        dp_size=dp_size,
        micro_batch_size=args.micro_batch_size,
        global_batch_size=args.global_batch_size,
    )
    model = make_model(loader.blend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    checkpoint = args.output / "checkpoint.pt"
    first = load(checkpoint, model, optimizer, loader) if checkpoint.exists() else 0
    parallel = DistributedDataParallel(model)

    loader.log_start(args.output, first)
    dist.barrier()  # the log is written
    number = len(cl.adapters.RunLog(args.output).starts)
    record = open(args.output / f"record.{number}.{dp_rank}.jsonl", "x", buffering=1)  # noqa: SIM115 - as long as the run

    batches = iter(loader)
    micro_batches = args.global_batch_size // (args.micro_batch_size * dp_size)
    for step in range(first, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARM_UP, 3.1 - 3 * step / args.steps)
        for micro_batch in range(micro_batches):
            batch = next(batches)
            last = micro_batch == micro_batches - 1
            with contextlib.nullcontext() if last else parallel.no_sync():
                language, concept = parallel(batch)
                ((language + CONCEPT_WEIGHT * concept) / micro_batches).backward()
            lists = {
                "samples": batch["sample_index"].tolist(),
                "datasets": batch["dataset_id"].tolist(),
                "windows": loader.blend.order.sample_many(batch["sample_index"])[2].tolist(),
                "checksums": checksums(batch),
            }
            losses = {"language_loss": language.item(), "concept_loss": concept.item()}
            record.write(json.dumps({"step": step, **lists, **losses}) + "\n")
            if step in args.keep:
                keep(args.output / "tensors" / str(number), f"{step}.{dp_rank}.{micro_batch}", batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % args.save_every == 0 and dp_rank == 0:
            save(checkpoint, step + 1, model, optimizer, loader)
    loader.close()
    dist.destroy_process_group()


def make_model(blend: cl.Blend) -> ConceptGPT:
    dataset = next(iter(blend.datasets.values()))
    concepts = dataset.vocabulary("concepts")
    assert dataset.tokenizer is not None
    assert concepts is not None
    assert blend.config.seq_len is not None
    return ConceptGPT(dataset.tokenizer.vocab_size, len(concepts), blend.config.seq_len)


def save(path: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    """Under another name first: a kill at any moment leaves the old checkpoint or the new one."""
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),  # the same on every rank
    }
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> int:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    step: int = state["step"]
    return step


def keep(directory: Path, name: str, batch: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    chosen = {key: value for key, value in batch.items() if key == "sample_index" or key.startswith("concepts_")}
    torch.save(chosen, directory / f"{name}.pt")


if __name__ == "__main__":
    main()
