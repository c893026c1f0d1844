"""What the commands about a run share: which run is meant."""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

from conceptloader import trace
from conceptloader.base.arguments import positive, refuse_beside, refuse_without
from conceptloader.order.partition import Partition, Plan
from conceptloader.order.progress.runlog import History, RunStart
from conceptloader.order.schedule import BatchSchedule
from conceptloader.trace import Run

CONFIG = "configuration of the run, a YAML file; with --run-log only where its data are now"


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that define the steps of a run, whose configuration is `CONFIG`."""
    group = parser.add_argument_group("steps").add_argument
    group("--run-log", metavar="DIR", help="directory of conceptloader_runs.jsonl, usually that of the checkpoints")
    add_sizes(group, "without a run log: samples per step, over all ranks")


def add_sizes(group: Callable[..., Any], meaning: str) -> None:
    """Add the options of `plan_of`. meaning: of --global-batch-size."""
    group("--global-batch-size", type=positive, metavar="N", help=meaning)
    meaning = "samples per micro batch (default: a rank's share of a step)"
    group("--micro-batch-size", type=positive, metavar="N", help=meaning)
    group("--dp-size", type=positive, default=1, metavar="N", help="data-parallel ranks (default: 1)")
    scheme = "how ranks share a micro batch: as in plain PyTorch (default), or as in Megatron-LM and nanotron"
    group("--scheme", choices=["strided", "contiguous"], default="strided", help=scheme)


def open_run(arguments: argparse.Namespace) -> Run:
    """Open the run that the arguments name; with its steps, if the arguments define them."""
    refuse_without("--global-batch-size", arguments, "micro_batch_size", "dp_size", "scheme")
    if arguments.global_batch_size is None:
        return trace.open_run(arguments.config, arguments.run_log)
    refuse_beside("--global-batch-size", arguments, "run_log")
    run, plan = trace.open_run(arguments.config), plan_of(arguments)
    start = RunStart.of(run.blend.spec, plan.schedule, plan.partition, run.blend.config.seq_len)
    start = dataclasses.replace(start, balance=run.blend.config.loader.balance)
    if run.blend.order.num_samples is not None:
        start = dataclasses.replace(start, end=(run.blend.order.num_samples, "partial"))
    return dataclasses.replace(run, history=History([start]))


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Steps and ranks, as the options say."""
    partition = Partition(
        micro_batch_size=arguments.micro_batch_size or max(1, arguments.global_batch_size // arguments.dp_size),
        dp_size=arguments.dp_size,
        scheme=arguments.scheme,
    )
    return Plan(partition=partition, schedule=BatchSchedule.constant(arguments.global_batch_size))
