"""The teacher: trained on all documents, and then asked for its most likely tokens of those that the student gets."""

from pathlib import Path
from typing import Any

import torch
from gpt import GPT, TOP, language_losses, train

import conceptloader as cl

SEQ_LEN = 128
COLUMNS = {"teacher_ids": ("u2", TOP), "teacher_logprobs": ("f2", TOP)}


def trained(datasets: dict[str, Any], steps: int) -> GPT:
    model = GPT(SEQ_LEN, width=128, layers=2)
    config = {"seq_len": SEQ_LEN, "datasets": datasets, "packing": {}}
    with cl.make_dataloader(config, micro_batch_size=8) as loader:
        for _ in train(model, loader, steps, language_losses):
            pass
    return model


@torch.no_grad()
def write(path: Path, model: GPT, rank: int, ranks: int) -> None:
    """One rank's part of the columns. Started again after a kill, it computes what is not there yet."""
    config = {"seq_len": SEQ_LEN, "datasets": {"code": {"path": str(path)}}, "packing": {}, "order": "sequential"}
    loader = cl.make_dataloader(config, micro_batch_size=16, dp_rank=rank, dp_size=ranks, last_batch="wrap")
    ids, logprobs = (cl.column_writer(path, name, *COLUMNS[name], loader=loader) for name in COLUMNS)
    with loader, ids, logprobs:
        for batch in loader:
            if not (ids.has(batch) and logprobs.has(batch)):
                best = torch.log_softmax(model(batch), -1).topk(TOP)
                ids.write(batch, best.indices)
                logprobs.write(batch, best.values)
