"""Trains the bottleneck model: torchrun --nproc_per_node 2 examples/atlas/train.py FOLDER --steps 300

Started again with the same folder it goes on from its last checkpoint. --die-at kills one rank with SIGKILL in the
midst of a step. At the end, rank 0 measures on held-out documents and writes FOLDER/run/metrics.json.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from model import BottleneckLM, losses, span_scores
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import conceptloader as cl

SEQ_LEN, BATCH, SAVE_EVERY = 128, 16, 40
RATE, WARM_UP, CONCEPT_WEIGHT = 4e-3, 20, 10.0
TRAINED, HELD_OUT = [0.0, 0.9], [0.9, 1.0]


def config(folder: Path, split: list[float], **more: Any) -> dict[str, Any]:
    return {
        "seq_len": SEQ_LEN,
        "datasets": {"atlas": {"path": str(folder / "dataset"), "split": split}},
        "tracks": {"concepts": {}},
        **more,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--into", default="run", help="folder of checkpoints and results, below FOLDER")
    parser.add_argument("--die-at", type=int)
    args = parser.parse_args()
    out = args.folder / args.into
    out.mkdir(exist_ok=True)

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = cl.make_dataloader(
        config(args.folder, TRAINED), dp_rank=rank, dp_size=ranks, micro_batch_size=BATCH // ranks,
        num_samples=args.steps * BATCH,
    )  # fmt: skip
    dataset = loader.blend.datasets["atlas"]
    names = dataset.vocabulary("concepts")
    assert names is not None
    assert dataset.tokenizer is not None
    model = BottleneckLM(dataset.tokenizer.vocab_size, len(names), SEQ_LEN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    step, checkpoint = 0, out / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    loader.log_start(out, step)
    parallel = DistributedDataParallel(model)
    for batch in loader:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP, 2 * (1 - step / args.steps))
        language, concept = losses(batch, *parallel(batch))
        if step == args.die_at and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (language + CONCEPT_WEIGHT * concept).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: language {language.item():.3f}, concepts {concept.item():.4f}", flush=True)
        if rank == 0 and step % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save({**state, "loader": loader.state_dict()}, f"{checkpoint}.tmp")
            os.replace(f"{checkpoint}.tmp", checkpoint)
    if rank == 0:
        found = measure(args.folder, model, names)
        (out / "metrics.json").write_text(json.dumps(found, indent=1))
    dist.destroy_process_group()


@torch.no_grad()
def measure(folder: Path, model: BottleneckLM, names: list[str]) -> dict[str, Any]:
    """On documents that the training never saw: the language loss, and for each concept how well it is ranked."""
    model.eval()
    scores: list[Tensor] = []
    targets: list[Tensor] = []
    total = counted = 0.0
    held_out = config(folder, HELD_OUT, order="sequential")
    for batch in cl.make_dataloader(held_out, micro_batch_size=32):
        logits, concepts = model(batch)
        tokens = batch["loss_mask"].sum()
        total, counted = total + float(losses(batch, logits, concepts)[0] * tokens), counted + float(tokens)
        found = span_scores(batch, concepts)
        scores.append(found[0])
        targets.append(found[1])
    score, target = torch.cat(scores), torch.cat(targets)
    concepts_found = {}
    for k, name in enumerate(names):
        if 20 <= target[:, k].sum() <= len(target) - 20:
            precision = average_precision(score[:, k], target[:, k])
            concepts_found[name] = {"base_rate": target[:, k].mean().item(), "average_precision": precision}
    return {"language_loss": total / counted, "spans": len(target), "concepts": concepts_found}


def average_precision(score: Tensor, target: Tensor) -> float:
    """Mean of the precision at each span that has the concept, by falling score; about the base rate for a guess."""
    hits = target[score.argsort(descending=True, stable=True)]
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / hits.sum())


if __name__ == "__main__":
    main()
