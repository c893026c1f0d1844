"""What every rank was given and what it computed, for tests to compare; and a death after a step, see tests.ranks.

$RECORD/rank<R>.jsonl, one line per step: {"step", "loss" (the exact float, null without one), "outputs" (of
the model, by micro batch), "batches"}; a batch maps each key to a nested list, or to {"owner": pp rank}.
"""

import json
import os
from pathlib import Path

import torch

from tests.ranks.launch import die_at


def install():
    """Wrap the step of the trainer."""
    import nanotron.trainer as trainer

    path = Path(os.environ["RECORD"], f"rank{os.environ['RANK']}.jsonl")
    real_step = trainer.DistributedTrainer.training_step

    def training_step(self, dataloader):
        batches = []
        results = real_step(self, dataloader=_tap(dataloader, batches))
        loss = results[1].item() if isinstance(results[1], torch.Tensor) else None
        extra = [{k: v.item() for k, v in output.items() if isinstance(v, torch.Tensor)} for output in results[0]]
        line = {"step": self.iteration_step, "loss": loss, "outputs": extra, "batches": batches}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        die_at(self.iteration_step)
        return results

    trainer.DistributedTrainer.training_step = training_step


def _tap(dataloader, batches):
    for batch in dataloader:
        batches.append({key: _plain(value) for key, value in batch.items()})
        yield batch


def _plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else {"owner": value.group_rank}
