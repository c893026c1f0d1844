"""Runs of an unmodified pretrain_gpt.py under the launcher, and what they must agree with."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from conceptloader.order.partition import Partition
from tests.megatron.launching import ARGUMENTS, torchrun

CHECKOUTS = [Path(word).resolve() for word in os.environ.get("MEGATRON_SRC", "").split(os.pathsep) if word]
# core_v0.16.1 needs six, regex and pydantic as well.
needs_checkout = [
    pytest.mark.skipif(not CHECKOUTS, reason="MEGATRON_SRC names no Megatron-LM checkout"),
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]
each_checkout = pytest.mark.parametrize("checkout", CHECKOUTS or [Path()], ids=lambda path: path.name)

STEPS, SAVED, BATCH = 8, 4, 8


@dataclass(frozen=True)
class Layout:
    """How a run is divided; `arguments` are Megatron's. readers: the ranks that take samples."""

    arguments: tuple[str, ...] = ()
    processes: int = 2
    dp_size: int = 1
    micro_batch: int = 2
    readers: tuple[int, ...] = (0,)

    @property
    def micro_batches(self):
        return BATCH // self.micro_batch // self.dp_size

    def planned(self, rank, first=0):
        """Samples of each micro batch of steps first..STEPS of process `rank`."""
        partition = Partition(micro_batch_size=self.micro_batch, dp_size=self.dp_size, scheme="contiguous")
        steps = range(first * BATCH, STEPS * BATCH, BATCH)
        return [row for start in steps for row in partition.samples(start, start + BATCH, rank % self.dp_size).tolist()]


DP2 = Layout(dp_size=2, readers=(0, 1))
ALONE = Layout(processes=1)


def pretrain(
    checkout,
    folder,
    layout,
    *more,
    config=None,
    in_place=False,
    launched=True,
    script=None,
    kill_after=0,
    nodes=({},),
    batch=("--global-batch-size", str(BATCH), "--train-iters", str(STEPS)),
):
    """Run pretrain_gpt.py or `script`, under the launcher if there is a configuration of ours, or none has to be."""
    # Its end-of-document token is the last of the vocabulary, or, in earlier releases, the one behind that.
    source = (checkout / "megatron/core/tokenizers/text/libraries/null_tokenizer.py").read_text()
    vocabulary = ["--vocab-size", "256" if "eod_id=None" in source else "255"]
    command = [str(script or checkout / "pretrain_gpt.py"), *ARGUMENTS, *vocabulary, *layout.arguments, *batch, *more]
    command += ["--micro-batch-size", str(layout.micro_batch)]
    if config is not None:
        command += ["--conceptloader-config", str(config), "--conceptloader-concept-stage", "all"]
    if launched and (in_place or config is not None):
        command = ["-m", "conceptloader.launch", *command]
    return torchrun(command, folder, processes=layout.processes, checkout=checkout, kill_after=kill_after, nodes=nodes)


def saving(folder, load=None):
    """Write checkpoints to `folder`; go on from those of `load`."""
    return ["--save", str(folder), "--load", str(load or folder), "--save-interval", str(SAVED)]


def ended(run):
    assert run.returncode == 0, run.errors
    return run


def same_losses(resumed, whole, first=SAVED + 1, rounding=0.0):
    """Every step after the resume printed what the uninterrupted run did, to the last digit unless there is a rounding.

    Megatron's second line after a start shows the mean of two losses; of that step only the gradient norm is compared.
    """
    assert max(whole.losses) in resumed.losses
    for step in range(first, max(whole.losses) + 1):
        skipped = 1 if step == first + 1 else 0
        found, expected = (run.losses[step][skipped:] for run in (resumed, whole))
        if rounding:
            assert [*map(float, found)] == pytest.approx([*map(float, expected)], rel=rounding), step
        else:
            assert found == expected, step
