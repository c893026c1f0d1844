"""A training loop with Accelerate, for tests.ranks."""

import contextlib
from typing import Any

import torch
import torch._dynamo  # which optimizers import; here, once for all launches
from accelerate import Accelerator
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.integrations.accelerate_lm import AcceleratedEvaluation, AcceleratedLoader
from tests.trainers import values
from tests.trainers.ahead import Ahead


def train(launch):
    """As docs/trainers/lightning.md trains. With an option `values` it evaluates after each step, too."""
    options = dict(launch.options)
    names = "plain", "skip", "wrapped", "loops", "values", "before"
    plain, skip, wrapped, loops, valued, _ = (options.pop(name, False) for name in names)
    loops = loops or -1  # micro batches after which one is left
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=launch.accumulate)
    tiny = values.Tiny()
    model, optimizer = accelerator.prepare(tiny, torch.optim.SGD(tiny.parameters(), lr=values.RATE))
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

    def losses_of(model, batch):
        return values.weighted(model(batch["input_ids"], batch["position_ids"]), batch)

    def evaluated():
        mean, size = cl.TokenMean(), values.eval_batch(launch)
        held_out = AcceleratedEvaluation(accelerator, launch.valid, micro_batch_size=size, num_samples=values.HELD_OUT)
        with torch.no_grad():
            for rows in held_out:
                mean.add(losses_of(tiny, rows), rows)
        return mean.finish()

    step, before = first, accelerator.step
    losses, validated, step_losses = [], [], []
    while step < launch.steps:  # a loop for each epoch, and after each break
        for number, batch in enumerate(Ahead(loader) if launch.ahead else loader):
            if number == loops:
                break
            launch.record(step, batch["sample_index"])
            with contextlib.nullcontext() if plain else accelerator.accumulate(model):
                loss = cl.token_mean(losses_of(model, batch), batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step_losses.append(loss.detach())
            if valued and accelerator.sync_gradients:
                losses.append(float(accelerator.reduce(torch.stack(step_losses).mean(), "mean")))
                step_losses.clear()
                validated.append(evaluated())
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
        if launch.valid and not valued:
            validate(launch, accelerator, step)
    accelerator.wait_for_everyone()
    if valued and accelerator.is_main_process:
        values.compare(launch, tiny, values.Tiny(), values.mean_apart, losses, validated, True)


def validate(launch, accelerator, step):
    shape = {"micro_batch_size": 4, "last_batch": "drop"}
    loader = cl.EvaluationLoader(launch.valid, dp_rank=accelerator.process_index, dp_size=launch.ranks, **shape)
    for batch in loader:
        launch.record(step, batch["sample_index"], "val0")
