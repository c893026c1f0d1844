"""A training loop with Accelerate, for tests.ranks."""

import contextlib
from typing import Any

import torch
import torch._dynamo  # which optimizers import; here, once for all launches
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.integrations.accelerate_lm import AcceleratedEvaluation, AcceleratedLoader
from tests.trainers import values
from tests.trainers.ahead import Ahead


def train(launch):
    options = dict(launch.options)
    plain, skip, wrapped, loops = (options.pop(name, False) for name in ("plain", "skip", "wrapped", "loops"))
    loops = loops or -1  # micro batches after which one is left
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=launch.accumulate)
    model = nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
    while step < launch.steps:  # a loop for each epoch, and after each break
        for number, batch in enumerate(Ahead(loader) if launch.ahead else loader):
            if number == loops:
                break
            launch.record(step, batch["sample_index"])
            with contextlib.nullcontext() if plain else accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += accelerator.sync_gradients and not plain
            if not launch.bare and not plain:
                trained = loader.consumed_samples - loader.run.count_start
                assert trained == min(step * launch.batch, options.get("num_samples", 1000))
                loader.check_step(step)
            done = accelerator.step - before
            if done == (launch.save_at - first) * launch.accumulate + launch.mid:
                accelerator.save_state(launch.path / "state")
            if step == launch.steps:
                break
        if launch.valid:
            validate(launch, accelerator, step)
    accelerator.wait_for_everyone()


def compare_values(launch):
    """As docs/trainers/lightning.md trains and evaluates, with weights."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=launch.accumulate)
    tiny = values.Tiny()
    held_out = AcceleratedEvaluation(
        accelerator, launch.valid, micro_batch_size=values.eval_batch(launch), num_samples=values.HELD_OUT
    )

    def losses_of(model, batch):
        return values.weighted(model(batch["input_ids"], batch["position_ids"]), batch)

    model, optimizer = accelerator.prepare(tiny, torch.optim.SGD(tiny.parameters(), lr=values.RATE))
    loader = accelerator.prepare(AcceleratedLoader(accelerator, launch.config, micro_batch_size=launch.micro))
    if launch.resume:
        accelerator.load_state(launch.path / "state")
    trained, validated, step_losses = [], [], []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = cl.token_mean(losses_of(model, batch), batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        step_losses.append(loss.detach())
        if not accelerator.sync_gradients:
            continue
        trained.append(float(accelerator.reduce(torch.stack(step_losses).mean(), "mean")))
        step_losses.clear()
        mean = cl.TokenMean()
        with torch.no_grad():
            for rows in held_out:
                mean.add(losses_of(tiny, rows), rows)
        validated.append(mean.finish())
        if loader.steps == launch.save_at:
            accelerator.save_state(launch.path / "state")
        if loader.steps == launch.steps:
            break
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        values.compare(launch, tiny, values.Tiny(), values.mean_apart, trained, validated, True)


def validate(launch, accelerator, step):
    shape = {"micro_batch_size": 4, "last_batch": "drop"}
    loader = cl.EvaluationLoader(launch.valid, dp_rank=accelerator.process_index, dp_size=launch.ranks, **shape)
    for batch in loader:
        launch.record(step, batch["sample_index"], "val0")
