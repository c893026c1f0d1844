"""conceptloader plan"""

import argparse
from collections.abc import Iterator
from typing import Any

from conceptloader.cli.arguments import not_negative, positive
from conceptloader.cli.output import Output, save_picture, table
from conceptloader.cli.runs import add_run_arguments, open_run
from conceptloader.errors import ConfigError
from conceptloader.trace import Run
from conceptloader.view.plots import plot_mixture

DESCRIPTION = """\
Print the samples of every rank and micro batch of some steps: index, dataset and window.

  conceptloader plan run.yaml --log checkpoints --step 1200 --steps 2
  conceptloader plan run.yaml --global-batch 512 --micro-batch 4 --dp-size 16
  conceptloader plan run.yaml --log checkpoints --step 1200 --until 20000 --picture mixture.png

With a log, steps are those of the run as it was started and restarted, and then as it would go on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--step", type=not_negative, default=0, metavar="N", help="the first step (default: 0)")
    parser.add_argument("--steps", type=positive, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--rank", type=not_negative, metavar="N", help="of this data-parallel rank only")
    parser.add_argument("--picture", metavar="FILE", help="also draw the mixture over the run (.png, .svg, .pdf)")
    parser.add_argument("--until", type=positive, metavar="STEP", help="the end of the picture (default: of an epoch)")


def run(arguments: argparse.Namespace, output: Output) -> None:
    if arguments.until is not None and arguments.picture is None:
        raise ConfigError("--until", "found without --picture, which it is for")
    asked = open_run(arguments)
    steps = range(arguments.step, arguments.step + arguments.steps)
    shares = [share for step in steps for share in plan_step(asked, step, arguments.rank)]
    rows = [
        [share["step"], share["dp_rank"], share["micro_batch"], "  ".join(map(_short, share["samples"]))]
        for share in shares
    ]
    if arguments.picture is not None:
        first, order = asked.steps.range_of(arguments.step)[0], asked.blend.order
        end = max(sum(order.sizes), first + 1) if arguments.until is None else asked.steps.range_of(arguments.until)[0]
        if end <= first:
            raise ConfigError("--until", str(arguments.until), f"a step after {arguments.step}, which is marked")
        save_picture(plot_mixture(order, end, first), arguments.picture)
    output.result({"shares": shares}, table(rows, ["step", "rank", "micro batch", "samples"]))


def plan_step(asked: Run, step: int, only: int | None = None) -> Iterator[dict[str, Any]]:
    """The shares of a step: {"step", "dp_rank", "micro_batch", "samples"}."""
    plan = asked.steps.segment(step).plan
    for dp_rank in range(plan.partition.dp_size) if only is None else [only]:
        for micro_batch, indices in enumerate(plan.micro_batches(step, dp_rank)):
            found = (part.tolist() for part in (indices, *asked.blend.order.sample_many(indices)))
            samples = [
                {"sample": sample, "dataset": asked.name(index), "epoch": epoch, "window": window}
                for sample, index, epoch, window in zip(*found, strict=True)
            ]
            yield {"step": step, "dp_rank": dp_rank, "micro_batch": micro_batch, "samples": samples}


def _short(sample: dict[str, Any]) -> str:
    epoch = f" epoch {sample['epoch']}" if sample["epoch"] else ""
    return f"{sample['sample']}={sample['dataset']}:{sample['window']}{epoch}"
