"""The command `conceptloader trace`."""

import argparse
from typing import Any

from conceptloader.base.arguments import not_negative, refuse_all_but
from conceptloader.cli.checkpoint import show_checkpoint
from conceptloader.cli.output import Output
from conceptloader.cli.runs import CONFIG, add_run_arguments, open_run
from conceptloader.cli.window import sample_lines, weights_line
from conceptloader.order.segments import Segment
from conceptloader.trace import trace_sample, trace_step

DESCRIPTION = """\
Show what a step contains, past or future: the weights in force, and why, if they were set live. For each sample: its
window of the dataset; its documents by their ids, with the positions of their inputs and labels; its spans with
concepts, exactly as in the batch: [start, end), with < or > if a span continues outside.

  conceptloader trace --run-log checkpoints --step 1200
  conceptloader trace run.yaml --sample 614400

--checkpoint shows whose order a checkpoint of any trainer holds, at which sample, and, with a configuration, what a
resume with it does.

  conceptloader trace --checkpoint checkpoints/step-1200
  conceptloader trace run.yaml --checkpoint checkpoints/step-1200

--html writes one page, which needs no server and can be mailed: the mixture up to the step, a table of samples that
sorts and filters, and samples with their spans in colors. Tables of many steps: `query`.

  conceptloader trace --run-log checkpoints --step 1200 --html step.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help=CONFIG, nargs="?")
    add_run_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=not_negative, metavar="N", help="all samples of this step")
    what.add_argument("--sample", type=not_negative, metavar="N", help="one sample, by the trainer's index")
    what.add_argument("--checkpoint", metavar="DIR", help="the order that this checkpoint holds, and its position")
    parser.add_argument("--html", metavar="FILE", help="write a page with the samples instead")


def run(arguments: argparse.Namespace, output: Output) -> None:
    if arguments.checkpoint is not None:
        refuse_all_but("--checkpoint", arguments, "config")
        show_checkpoint(arguments, output)
    else:
        _show_samples(arguments, output)


def _show_samples(arguments: argparse.Namespace, output: Output) -> None:
    if arguments.html is not None:
        from conceptloader.cli import page

        page.save_run(open_run(arguments), arguments, output)
        return
    asked = open_run(arguments)
    if arguments.step is None:
        first, stop, era = arguments.sample, 0, asked.at(arguments.sample)
    else:
        (first, stop), era = asked.steps.range_of(arguments.step), asked.at_step(arguments.step)
    weights = era.segments_in(first, stop)
    found = trace_step(asked, arguments.step) if arguments.sample is None else [trace_sample(asked, arguments.sample)]
    value = {"weights": [*map(_weights, weights)], "samples": [one.to_dict() for one in found]}
    shown = weights if arguments.sample is None else []
    output.result(value, [*map(weights_line, shown), *(line for one in found for line in sample_lines(one))])


def _weights(one: Segment) -> dict[str, Any]:
    return {"at": one.at, "weights": one.shares, "why": one.why, "losses": dict(one.losses)}
