"""Trains the demo's model with plain PyTorch: DistributedDataParallel, our loader, and checkpoints of its own.

    torchrun --nproc_per_node 2 examples/demo/train.py config.yaml run --steps 240

Started again with the same folder, on any number of ranks, it goes on from its last checkpoint. What every rank trains
is recorded in run/record.*.jsonl, and the concept tensors of the steps named by --keep under run/tensors.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
import torch
import torch.distributed as dist
import torch.nn.functional as F
from proof import checksums
from shared import GPT, language_losses, start, train
from torch import Tensor, nn

import conceptloader as cl


class ConceptGPT(GPT):
    """With a second head that says, for every token, which concepts the token's span carries."""

    def __init__(self, vocab: int, concepts: int, seq_len: int) -> None:
        super().__init__(vocab, seq_len, width=128, layers=3)
        self.concept_head = nn.Linear(128, concepts)
        nn.init.constant_(self.concept_head.bias, -3.0)  # most concepts are rare

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        states = self.states(batch)
        return self.logits(states), self.concept_head(states)


def losses(found: tuple[Tensor, Tensor], batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What is minimized, language loss and concept loss, in nats per token; the last is summed over the concepts."""
    logits, concepts = found
    language = cl.token_mean(language_losses(logits, batch), batch)
    # [B, spans, concepts] to [B, S, concepts]: 1 where the span of an input carries the concept.
    targets, index = cl.concepts.span_targets(batch, "concepts", concepts.shape[-1]), batch["concepts_span_index"]
    of_token = targets.gather(1, index.clamp(min=0).long()[..., None].expand_as(concepts)) * (index >= 0)[..., None]
    concept = F.binary_cross_entropy_with_logits(concepts, of_token, reduction="none").sum(-1).mean()
    return language + 0.3 * concept, language, concept


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("out", type=Path)
    for name in ("steps", "global-batch-size", "micro-batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--keep", type=int, nargs="*", default=[])
    args = parser.parse_args()
    rank, ranks = start()
    sizes = {"micro_batch_size": args.micro_batch_size, "global_batch_size": args.global_batch_size}
    loader = cl.make_dataloader(args.config, dp_rank=rank, dp_size=ranks, **sizes)
    blend = loader.blend
    dataset = next(iter(blend.datasets.values()))
    model = ConceptGPT(dataset.tokenizer.vocab_size, len(dataset.vocabulary("concepts")), blend.config.seq_len)  # type: ignore[union-attr, arg-type]
    record: Any = None
    micro_batches = args.global_batch_size // (args.micro_batch_size * ranks)
    for step, batch, found in train(model, loader, losses, args.steps, args.out, micro_batches):
        if record is None:
            number = len(cl.adapters.RunLog(args.out).starts)
            record = open(args.out / f"record.{number}.{rank}.jsonl", "x", buffering=1)  # noqa: SIM115 - to the end
        line = {
            "step": step,
            "samples": batch["sample_index"].tolist(),
            "datasets": batch["dataset_id"].tolist(),
            "windows": blend.order.sample_many(batch["sample_index"])[2].tolist(),
            "checksums": checksums(batch),
            "language_loss": found[1].item(),
            "concept_loss": found[2].item(),
        }
        record.write(json.dumps(line) + "\n")
        if step in args.keep:
            folder = args.out / "tensors" / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            kept = {key: value for key, value in batch.items() if key == "sample_index" or key.startswith("concepts_")}
            torch.save(kept, folder / f"{step}.{line['samples'][0]}.pt")
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
