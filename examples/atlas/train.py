"""Trains a model that predicts tokens from concepts, on any dataset with a track `concepts`, as convert.py makes one:

    torchrun --nproc_per_node 2 examples/atlas/train.py data/atlas runs/atlas 600

The last word is the number of steps. Started again with the same folder it goes on from its last checkpoint. At the end
rank 0 measures on documents that the model never saw, and writes metrics.json: the average precision of each concept,
beside its base rate, which is that of guessing. What the demo builds will do, demo-output/datasets/packages.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import torch
import torch.distributed as dist
from shared import GPT, joint_losses, language_losses, start, train
from torch import nn

import conceptloader as cl

SEQ_LEN, BATCH = 128, 16


class BottleneckLM(GPT):
    """The state of each token becomes probabilities of the concepts, and `free` numbers for what these do not say; the
    next token is predicted from both, and from nothing else."""

    def __init__(self, vocab, concepts, width=96, free=48):
        super().__init__(vocab, SEQ_LEN, width, layers=2)
        self.concepts, self.free = nn.Linear(width, concepts), nn.Linear(width, free)
        self.said = nn.Linear(concepts + free, width)
        nn.init.constant_(self.concepts.bias, -2.0)

    def forward(self, batch):
        """(logits [B, S, vocab], logits of the concepts [B, S, concepts])."""
        states = self.states(batch)
        concepts = self.concepts(states)
        return self.logits(self.said(torch.cat([concepts.sigmoid(), self.free(states)], -1))), concepts


def loader_of(dataset, split, sizes, **more):
    """Of documents in a part of the dataset."""
    datasets = {"atlas": {"path": dataset, "split": split}}
    config = {"seq_len": SEQ_LEN, "datasets": datasets, "tracks": {"concepts": {}}, **more}
    return cl.make_dataloader(config, **sizes)


def main():
    dataset, out, steps = sys.argv[1], Path(sys.argv[2]), int([*sys.argv, 600][3])
    out.mkdir(parents=True, exist_ok=True)
    rank, ranks = start()
    sizes = {"dp_rank": rank, "dp_size": ranks, "micro_batch_size": BATCH // ranks}
    loader = loader_of(dataset, [0.0, 0.9], sizes)
    data = loader.blend.datasets["atlas"]
    names = data.vocabulary("concepts")
    model = BottleneckLM(data.tokenizer.vocab_size, len(names))
    for step, _, (_, language, concept) in train(model, loader, joint_losses, steps, out):
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: language {language.item():.3f}, concepts {concept.item():.4f}")
    dist.destroy_process_group()  # rank 0 measures alone
    if rank == 0:
        found = measure(loader_of(dataset, [0.9, 1.0], {"micro_batch_size": 32}, order="sequential"), model, names)
        (out / "metrics.json").write_text(json.dumps(found, indent=1))


@torch.no_grad()
def measure(loader, model, names):
    """Over an epoch: the language loss, and for each concept how well its spans are ranked by what the model says at
    their last tokens."""
    model.eval()
    scores, targets, language = [], [], cl.TokenMean()
    for batch in loader:
        logits, concepts = model(batch)
        language.add(language_losses(logits, batch), batch)
        wanted, here = cl.concepts.span_targets(batch, "concepts", len(names)), cl.concepts.span_mask(batch, "concepts")
        last = (batch["concepts_spans"][..., 1] - 1).clamp(min=0).long()[..., None].expand_as(wanted)
        scores.append(concepts.gather(1, last)[here])
        targets.append(wanted[here])
    score, target, found = torch.cat(scores), torch.cat(targets), {}
    for k, name in enumerate(names):
        if 20 <= target[:, k].sum() <= len(target) - 20:
            # The mean of the precision at each span that has the concept, by falling score.
            hits = target[score[:, k].argsort(descending=True, stable=True), k]
            precision = float((hits.cumsum(0) / torch.arange(1, len(hits) + 1) * hits).sum() / hits.sum())
            found[name] = {"base_rate": hits.mean().item(), "average_precision": precision}
    return {"language_loss": language.finish(), "concepts": found}


if __name__ == "__main__":
    main()
