"""Trains a model that predicts tokens from concepts, on any dataset with a track `concepts`, as convert.py makes one:

    torchrun --nproc_per_node 2 examples/atlas/train.py data/atlas runs/atlas --steps 600

Started again with the same folder it goes on from its last checkpoint. --die-at kills one rank with SIGKILL in the
midst of a step. At the end rank 0 measures on documents that the model never saw: the average precision of each
concept, beside its base rate, which is that of guessing. What the demo builds will do, demo-output/datasets/packages.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
import torch
import torch.distributed as dist
import torch.nn.functional as F
from shared import GPT, language_losses, start, train
from torch import Tensor, nn

import conceptloader as cl

SEQ_LEN, BATCH = 128, 16


class BottleneckLM(GPT):
    """The state of each token becomes probabilities of the concepts, and `free` numbers for what these do not say; the
    next token is predicted from both, and from nothing else."""

    def __init__(self, vocab: int, concepts: int, width: int = 96, free: int = 48) -> None:
        super().__init__(vocab, SEQ_LEN, width, layers=2)
        self.concepts, self.free = nn.Linear(width, concepts), nn.Linear(width, free)
        self.said = nn.Linear(concepts + free, width)
        nn.init.constant_(self.concepts.bias, -2.0)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(logits [B, S, vocab], logits of the concepts [B, S, concepts])."""
        states = self.states(batch)
        concepts = self.concepts(states)
        return self.logits(self.said(torch.cat([concepts.sigmoid(), self.free(states)], -1))), concepts


def losses(found: tuple[Tensor, Tensor], batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What is minimized; means of the language losses of tokens with loss, of the concept losses of annotated ones."""
    logits, concepts = found
    language = cl.token_mean(language_losses(logits, batch), batch)
    # "Not here" is known of annotated tokens alone, be it with nothing: others have no part in the concept loss.
    status = cl.concepts.annotation_status(batch, "concepts")
    known = status.gt(0) & status.lt(3)
    targets = cl.concepts.span_targets(batch, "concepts", concepts.shape[-1])
    index = batch["concepts_span_index"].clamp(min=0).long()[..., None].expand_as(concepts)
    wrong = F.binary_cross_entropy_with_logits(concepts, targets.gather(1, index), reduction="none").mean(-1)
    concept = (wrong * known).sum() / known.sum().clamp(min=1)
    return language + 10 * concept, language, concept


def config(dataset: str, split: list[float], **more: Any) -> dict[str, Any]:
    datasets = {"atlas": {"path": dataset, "split": split}}
    return {"seq_len": SEQ_LEN, "datasets": datasets, "tracks": {"concepts": {}}, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("out", type=Path, help="folder of checkpoints and results")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--die-at", type=int)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rank, ranks = start()
    loader = cl.make_dataloader(
        config(args.dataset, [0.0, 0.9]), dp_rank=rank, dp_size=ranks, micro_batch_size=BATCH // ranks,
        num_samples=args.steps * BATCH,
    )  # fmt: skip
    dataset = loader.blend.datasets["atlas"]
    names: list[str] = dataset.vocabulary("concepts")  # type: ignore[assignment]
    model = BottleneckLM(dataset.tokenizer.vocab_size, len(names))  # type: ignore[union-attr]
    for step, _, (_, language, concept) in train(model, loader, losses, args.steps, args.out):
        if step == args.die_at and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: language {language.item():.3f}, concepts {concept.item():.4f}", flush=True)
    dist.destroy_process_group()  # rank 0 measures alone
    if rank == 0:
        found = measure(args.dataset, model, names)
        (args.out / "metrics.json").write_text(json.dumps(found, indent=1))
        print(f"held out: {found['spans']:,} spans, language loss {found['language_loss']:.3f} nats a token")
        for name, one in sorted(found["concepts"].items(), key=lambda item: -item[1]["average_precision"]):
            print(f"{name:28} base rate {one['base_rate']:.3f}, average precision {one['average_precision']:.3f}")


@torch.no_grad()
def measure(dataset: str, model: BottleneckLM, names: list[str]) -> dict[str, Any]:
    """On documents that the training never saw: the language loss, and for each concept how well its spans are ranked
    by what the model says at their last tokens."""
    model.eval()
    scores, targets, language = list[Tensor](), list[Tensor](), cl.TokenMean()
    held_out = config(dataset, [0.9, 1.0], order="sequential")
    for batch in cl.make_dataloader(held_out, micro_batch_size=32):
        logits, concepts = model(batch)
        language.add(language_losses(logits, batch), batch)
        wanted, here = cl.concepts.span_targets(batch, "concepts", len(names)), cl.concepts.span_mask(batch, "concepts")
        last = (batch["concepts_spans"][..., 1] - 1).clamp(min=0).long()[..., None].expand_as(wanted)
        scores.append(concepts.gather(1, last)[here])
        targets.append(wanted[here])
    score, target, found = torch.cat(scores), torch.cat(targets), dict[str, Any]()
    for k, name in enumerate(names):
        if 20 <= target[:, k].sum() <= len(target) - 20:
            # The mean of the precision at each span that has the concept, by falling score.
            hits = target[score[:, k].argsort(descending=True, stable=True), k]
            precision = float((hits.cumsum(0) / torch.arange(1, len(hits) + 1) * hits).sum() / hits.sum())
            found[name] = {"base_rate": hits.mean().item(), "average_precision": precision}
    return {"language_loss": language.finish(), "spans": len(target), "concepts": found}


if __name__ == "__main__":
    main()
