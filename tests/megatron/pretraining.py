"""Runs of an unmodified pretrain_gpt.py under the launcher, and what they must agree with."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from conceptloader.order.partition import Partition
from tests.megatron.launching import ARGUMENTS, ROOT, torchrun

CHECKOUTS = [Path(word).resolve() for word in os.environ.get("MEGATRON_SRC", "").split(os.pathsep) if word]
# core_v0.16.1 needs six, regex and pydantic as well.
needs_checkout = [
    pytest.mark.skipif(not CHECKOUTS, reason="MEGATRON_SRC names no Megatron-LM checkout"),
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]
OWN = ROOT / "tests/megatron/own_pretrain.py"

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

    def planned(self, rank, first=0, begin=0, stop=STEPS):
        """Samples of each micro batch of steps first..stop of process `rank`, of a run from sample `begin` on."""
        partition = Partition(micro_batch_size=self.micro_batch, dp_size=self.dp_size, scheme="contiguous")
        steps = range(begin + first * BATCH, begin + stop * BATCH, BATCH)
        return [row for start in steps for row in partition.samples(start, start + BATCH, rank % self.dp_size).tolist()]


DP2 = Layout(dp_size=2, readers=(0, 1))
ALONE = Layout(processes=1)
PP2 = Layout(("--pipeline-model-parallel-size", "2"), readers=(0, 1))


def of_steps(size, steps):
    return ("--global-batch-size", str(size), "--train-iters", str(steps))


WHOLE = of_steps(BATCH, STEPS)


@dataclass(frozen=True)
class Pretrain:
    """Runs of one test with a checkout; `folder` holds one of each."""

    checkout: Path
    folder: Path

    def has(self, word, file):
        """Whether a file of the checkout has a word, which other releases lack."""
        return word in (self.checkout / "megatron" / file).read_text()

    def __call__(
        self,
        name,
        layout,
        *more,
        config=None,
        in_place=False,
        launched=True,
        script=None,
        save="",
        load="",
        stop=0,
        refused="",
        kill_after=0,
        nodes=({},),
        batch=WHOLE,
    ):
        """Run pretrain_gpt.py or `script`, under the launcher if there is a configuration of ours, or none has to be.

        save: checkpoints go to this folder; the run goes on from those of `load`, by default from the same. stop: the
        step behind which it stops. refused: what it says where it has to fail.
        """
        # Its end-of-document token is the last of the vocabulary, or, in earlier releases, the one behind that.
        last = self.has("eod_id=None", "core/tokenizers/text/libraries/null_tokenizer.py")
        command = [str(script or self.checkout / "pretrain_gpt.py"), *ARGUMENTS, "--vocab-size", str(255 + last)]
        command += [*layout.arguments, *batch, *map(str, more), "--micro-batch-size", str(layout.micro_batch)]
        if save:
            there = ["--save", self.folder / save, "--load", self.folder / (load or save)]
            command += [*map(str, there), "--save-interval", str(SAVED)]
        if stop:
            command += ["--exit-interval", str(stop)]
        if config is not None:
            command += ["--conceptloader-config", str(config), "--conceptloader-concept-stage", "all"]
        if launched and (in_place or config is not None):
            command = ["-m", "conceptloader.launch", *command]
        run = torchrun(
            command, self.folder / name, processes=layout.processes, checkout=self.checkout, kill_after=kill_after,
            nodes=nodes,
        )  # fmt: skip
        assert (run.returncode == 0) == (not refused and not kill_after), run.output[-4000:]
        assert refused in run.output
        return run

    def resumed(self, layout, *more, first=None, whole=None, **options):
        """A run that stops after SAVED steps and is resumed trains what it would have in one piece.

        first: options of the run up to there, if they are others. whole: the run in one piece, if it is there already.
        Returns the resumed part.
        """
        first = options if first is None else first
        whole = whole or self("whole", layout, *more, **first)
        self("first", layout, *more, save="a", stop=SAVED, **first)
        rest = self("rest", layout, *more, save="a", **options)
        same_losses(rest, whole)
        as_planned(rest, layout, SAVED)
        return rest


def as_planned(run, layout, first=0):
    """Each reader has taken its samples of the steps from `first` on."""
    for rank in layout.readers:
        assert run.samples(rank) == layout.planned(rank, first)


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
