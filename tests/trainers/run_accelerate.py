"""A training loop with Accelerate, for zygote.py."""

import contextlib
from typing import Any

import torch
import torch._dynamo  # which preparing a model imports; here, once for all launches
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.integrations.accelerate_lm import AcceleratedLoader
from tests.trainers.ahead import Ahead
from tests.trainers.zygote import Launch


def train(launch: Launch) -> None:
    options = dict(launch.options)
    plain, skip, wrapped = (options.pop(name, False) for name in ("plain", "skip", "wrapped"))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=launch.accumulate)
    model: Any = nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader: Any
    if launch.bare:
        loader = cl.make_dataloader(
            launch.config, dp_rank=accelerator.process_index, dp_size=launch.ranks, micro_batch_size=launch.micro,
            global_batch_size=launch.batch,
        )  # fmt: skip
    else:
        loader = AcceleratedLoader(accelerator, launch.config, micro_batch_size=launch.micro, **options)
    if launch.number % 2:  # which makes no difference
        loader = accelerator.prepare(loader)
    if skip:
        loader = accelerator.skip_first_batches(loader, 3)
    if wrapped:
        loader = accelerator.prepare(DataLoader(loader, sampler=range(9)))
    first = 0
    if launch.resume:
        accelerator.load_state(launch.path / "state")
        first = launch.first if launch.bare else loader.steps
    step, before = first, accelerator.step
    for batch in Ahead(loader) if launch.ahead else loader:
        launch.record(step, batch["sample_index"])
        with contextlib.nullcontext() if plain else accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        step += accelerator.sync_gradients and not plain
        done = accelerator.step - before
        if done == (launch.save_at - first) * launch.accumulate + launch.mid:
            accelerator.save_state(launch.path / "state")
        if step == launch.steps:
            break
    accelerator.wait_for_everyone()
