"""Lightning Fabric: a loop of one's own over a TrainedLoader, which Fabric saves and loads."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import conceptloader as cl
from tests.corpora.for_megatron import write_datasets
from tests.trainers.values import KINDS, RATE, WINDOWS, Tiny, config_of, mean_apart, rows, sgd

fabric = pytest.importorskip("lightning.fabric", reason="lightning is not installed: `make test-trainers` has it")

MICRO, ACCUMULATE, STEPS = 5, 2, 6


def train(folder, config, steps, micro, accumulate):
    """As docs/trainers.md has it, to `steps`, saved one micro batch later; from the checkpoint where there is one."""
    run = fabric.Fabric(accelerator="cpu", devices=1)
    loader = cl.TrainedLoader(
        config, dp_rank=run.global_rank, dp_size=run.world_size, micro_batch_size=micro, global_batch_size=10
    )
    model = Tiny()
    model, optimizer = run.setup(model, torch.optim.SGD(model.parameters(), RATE))
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    if (folder / "state").exists():
        run.load(folder / "state", state)
    losses, parts = [], []
    for number, batch in enumerate(loader, 1):
        ends = number % accumulate == 0
        if loader.steps == steps:
            break
        with run.no_backward_sync(model, enabled=not ends):
            logits = model(batch["input_ids"], batch["position_ids"])
            loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()) / accumulate
            run.backward(loss)
        parts.append(loss.item())
        if ends:
            optimizer.step()
            optimizer.zero_grad()
            loader.acknowledge(batch["consumed_samples"])
            losses.append(sum(parts))
            parts.clear()
    run.save(folder / "state", state)  # a micro batch of the next step has been taken
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_a_loop_by_hand_through_a_resume(tmp_path, kind):
    config = config_of(write_datasets(tmp_path), KINDS[kind], ignore_index=-100)
    found = [loss for steps in (3, STEPS) for loss in train(tmp_path, config, steps, MICRO, ACCUMULATE)]
    hand = Tiny()

    def of_step(step):
        parts = [range(first, first + MICRO) for first in range(10 * step, 10 * step + 10, MICRO)]
        return torch.stack([mean_apart(hand, rows(config, part)) for part in parts]).mean()

    assert found == pytest.approx([*sgd(hand, map(of_step, range(STEPS)))], rel=1e-5)


def test_ranks_are_not_shared_among_ranks_once_more(tmp_path):
    """Fabric, as Lightning and Ray, puts a sampler of its own around others: a rank would read a part of its part."""
    run = fabric.Fabric(accelerator="cpu", devices=2)
    data = cl.SampleDataset(config_of(write_datasets(tmp_path), WINDOWS), 32)
    assert run._requires_distributed_sampler(DataLoader(data))
    assert not run._requires_distributed_sampler(DataLoader(data, sampler=cl.EpochSampler(32, 2, 0)))
