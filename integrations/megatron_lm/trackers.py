"""Metrics of each step in Megatron's TensorBoard and W&B, which the last rank writes.

It reads data itself unless the model is tensor-parallel. Then the first rank of its tensor-parallel group reads for it,
and tells it through the key-value store of torch.distributed, before it yields the last micro batch of the step.
"""

import json
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

_KEY = "last step"


def track(step: int, values: dict[str, float]) -> None:
    """Write the values of a step if this is the last rank, or send them if it reads for the last one."""
    group = parallel_state.get_tensor_model_parallel_group()
    if dist.get_process_group_ranks(group)[-1] != dist.get_world_size() - 1:
        return
    step += 1  # as Megatron counts
    if group.size() == 1:
        _write(step, values)
    else:
        store = _store()
        store.set(_KEY, json.dumps([step, values]))
        store.check([_KEY])  # answered once it is there


def training_log(original: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of Megatron's, which all ranks call after each step: then what was sent is written, on the last one."""
    store, rank = _store(), dist.get_rank()
    if parallel_state.get_tensor_model_parallel_rank() and rank == dist.get_world_size() - 1 and store.check([_KEY]):
        _write(*json.loads(store.get(_KEY)))
        store.delete_key(_KEY)
    return original(*args, **kwargs)


def _store() -> Any:
    return PrefixStore("conceptloader metrics", _get_default_store())


def _write(step: int, values: dict[str, float]) -> None:
    from megatron.training import get_args, get_tensorboard_writer, get_wandb_writer

    tensorboard, wandb = get_tensorboard_writer(), get_wandb_writer()
    if step % get_args().tensorboard_log_interval:
        return
    for name, value in values.items() if tensorboard else ():
        tensorboard.add_scalar(name, value, step)
    if wandb:
        wandb.log(values, step)
