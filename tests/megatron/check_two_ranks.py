"""What two ranks do, run by test_two_ranks.py with a folder and names of YAMLs in it. Writes files: libraries print to
the output of both, within lines.

found<RANK>.json: what each finds where it was given other data. For each YAML, the tiny model in the training loop of
megatron-core (schedules, DDP, optimizer): the loss of each step, and of one pass over what --split holds out.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from stock import data_of, dataset_config
from tiny import LENGTH, parameters, token_losses

from conceptloader.errors import ConfigError

MICRO, BATCH, STEPS, RATE, SPLIT = 2, 8, 4, 0.5, "80,20,0"
FLAGS = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}


class Tiny(MegatronModule):
    """tiny.py as Megatron wants a model."""

    def __init__(self, config):
        super().__init__(config)
        self.model_type = ModelType.encoder_or_decoder
        self.of = torch.nn.ParameterDict(parameters())

    def set_input_tensor(self, tensor): ...

    def forward(self, *batch):
        return token_losses(dict(self.of.items()), *batch)


def forward_step(data, iterator, model):
    batch = data.get_batch(iterator)
    losses = model(batch["tokens"], batch["position_ids"], batch["attention_mask"][:, 0], batch["labels"])

    def loss(losses):
        total, count = (losses * batch["loss_mask"] * batch["loss_weight"]).sum(), batch["loss_mask"].sum()
        report = torch.stack((total, count)).detach()
        torch.distributed.all_reduce(report, group=parallel_state.get_data_parallel_group())
        return total, count.int(), {"sums": report}

    return losses, loss


def run(path):
    data = data_of(path, dataset_config(LENGTH, **FLAGS), [STEPS * BATCH, None, 0], split=SPLIT, stage="all")
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=1, calculate_per_token_loss=True,
        finalize_model_grads_func=finalize_model_grads,
    )  # fmt: skip
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), Tiny(config))
    plain = OptimizerConfig(optimizer="sgd", lr=RATE, weight_decay=0.0, sgd_momentum=0.0, clip_grad=0.0)
    optimizer = get_megatron_optimizer(plain, [model])
    train, valid, _ = data.datasets()
    ranks = parallel_state.get_data_parallel_world_size()

    def forward(iterator, micro_batches, only):
        step = get_forward_backward_func()
        reports = step(
            forward_step_func=partial(forward_step, data), data_iterator=iterator, model=model,
            num_microbatches=micro_batches, seq_length=LENGTH, micro_batch_size=MICRO, forward_only=only,
        )  # fmt: skip
        total, count = sum(report["sums"] for report in reports).tolist()
        return float(total / count)

    losses, iterator = [], data.iterator(train)
    for _ in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses.append(forward(iterator, BATCH // MICRO // ranks, only=False))
        optimizer.step()
    evaluated = len(valid) // (MICRO * ranks)
    with torch.no_grad():
        return {"train": losses, "valid": forward(data.iterator(valid), evaluated, only=True)}


LAYOUTS = {
    "dp": {},
    "pp": {"pipeline_model_parallel_size": 2},
    "cp": {"context_parallel_size": 2},
    "tp": {"tensor_model_parallel_size": 2},
}
GIVEN = {"other weight": {}, "other copy": {}, "other position": {"consumed": 8, "accept": ["loader"]}}


def compared(folder, rank):
    """What a rank finds when both open their data, divided in each way, and rank 1 was given other ones."""
    found = {}
    for name, layout in LAYOUTS.items():
        parallel_state.initialize_model_parallel(**layout)
        for what, more in {"same": {}, **GIVEN}.items():
            path = folder / (f"{what}.yaml" if rank and "position" not in what else "same.yaml")
            try:
                data_of(path, dataset_config(16), **(more if rank else {}))
                found[f"{name}, {what}"] = "accepted"
            except ConfigError as error:
                found[f"{name}, {what}"] = " ".join(str(error).split())
        parallel_state.destroy_model_parallel()
    return found


def main(folder, *yamls):
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    Path(f"found{rank}.json").write_text(json.dumps(compared(folder, rank)))
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    init_num_microbatches_calculator(rank, None, BATCH, MICRO, ranks)
    for name in yamls:
        losses = run(folder / name)
        if not rank:
            Path(f"{Path(name).stem}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
