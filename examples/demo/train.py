"""Trains the demo's model with plain PyTorch: DistributedDataParallel, our loader, and checkpoints of its own.

    torchrun --nproc_per_node 2 examples/demo/train.py config.yaml run

Started again with the same folder, on another number of ranks, it goes on from its last checkpoint. What every rank
trains is recorded in run/record.*.jsonl.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import torch.distributed as dist
from proof import GLOBAL_BATCH, STEPS, checksums
from shared import GPT, joint_losses, start, train
from torch import nn

import conceptloader as cl


class ConceptGPT(GPT):
    """With a second head that says, for every token, which concepts the token's span carries."""

    def __init__(self, vocab, concepts, seq_len):
        super().__init__(vocab, seq_len, width=128, layers=3)
        self.concept_head = nn.Linear(128, concepts)
        nn.init.constant_(self.concept_head.bias, -3.0)  # most concepts are rare

    def forward(self, batch):
        states = self.states(batch)
        return self.logits(states), self.concept_head(states)


def main():
    config, out = sys.argv[1], Path(sys.argv[2])
    rank, ranks = start()
    sizes = {"micro_batch_size": GLOBAL_BATCH // ranks, "global_batch_size": GLOBAL_BATCH}
    loader = cl.make_dataloader(config, dp_rank=rank, dp_size=ranks, **sizes)
    blend = loader.blend
    dataset = next(iter(blend.datasets.values()))
    model = ConceptGPT(dataset.tokenizer.vocab_size, len(dataset.vocabulary("concepts")), blend.config.seq_len or 0)
    record = None
    for step, batch, (_, language, concept) in train(model, loader, joint_losses, STEPS, out):
        if record is None:
            number = len(cl.adapters.RunLog(out).starts)
            record = open(out / f"record.{number}.{rank}.jsonl", "x", buffering=1)  # noqa: SIM115 - to the end
        samples = batch["sample_index"]
        line = {
            "step": step,
            "samples": samples.tolist(),
            "datasets": batch["dataset_id"].tolist(),
            "windows": blend.order.sample_many(samples)[2].tolist(),
            "checksums": checksums(batch),
            "language_loss": language.item(),
            "concept_loss": concept.item(),
        }
        record.write(json.dumps(line) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
