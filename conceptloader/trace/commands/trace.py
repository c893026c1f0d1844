"""The command `conceptloader trace`."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from conceptloader.base.packages import need_add_on
from conceptloader.base.terminal import counted, printable
from conceptloader.cli.arguments import (
    chosen,
    not_negative,
    positive,
    refuse_all_but,
    refuse_beside,
    refuse_without,
    steps,
)
from conceptloader.cli.output import Output, save_picture, table
from conceptloader.cli.tables import add_table_arguments, write_table
from conceptloader.errors import ConfigError
from conceptloader.order.progress.spec import LoggedPhase
from conceptloader.trace import Run, SampleTrace, explain, trace_sample, trace_step, trace_steps
from conceptloader.trace.commands.checkpoint import show_checkpoint
from conceptloader.trace.commands.compare import show_comparison
from conceptloader.trace.commands.runs import OF_STEPS, add_run_arguments, open_run

_RECORD = 1000  # characters of one, as text

DESCRIPTION = """\
Show what a step contains, past or future: the weights in force, and why, if they were set live. For each sample: its
window of the dataset; its documents by their ids, with the positions of their inputs and labels; its spans with
concepts, exactly as in the batch: [start, end), with < or > if a span continues outside; the range of its loss weights
and token fields (all values with --json). Tokens that a build inserted (--prefix) are spans of the track prefix.

  conceptloader trace --run-log checkpoints --step 1200
  conceptloader trace run.yaml --sample 614400
  conceptloader trace run.yaml --run-log checkpoints --steps 0:20000 --format parquet --out steps.parquet

--checkpoint shows whose order a checkpoint of any trainer holds, at which sample, and, with a configuration, what a
resume with it does.

  conceptloader trace --checkpoint checkpoints/step-1200
  conceptloader trace run.yaml --checkpoint checkpoints/step-1200

--steps writes a table, a row per document of a sample: --format jsonl (default) or parquet.

--indices-only shows which samples every rank and micro batch reads, by index, dataset and window. With a run log, past
steps are those of the launches of the run, and future steps those of the last launch; with --planned, of CONFIG.

  conceptloader trace run.yaml --run-log checkpoints --steps 1200:1202 --indices-only
  conceptloader trace run.yaml --global-batch-size 512 --micro-batch-size 4 --dp-size 16 --step 0 --indices-only
  conceptloader trace run.yaml --run-log checkpoints --step 1200 --indices-only --until 20000 --plot mixture.png

--compare names the steps before --until of which another configuration changes a batch: by what it excludes, replaces,
or draws. With --checkpoints, also the last one before these; --until is then by default the newest.

  conceptloader trace run.yaml --run-log checkpoints --compare other.yaml --checkpoints checkpoints

--audit compares the batch log of a run (`loader: {batch_log: true}`, or the --record of a BatchRecorder) with what the
order of each launch and the data give: samples, datasets and checksums of the tokens of each micro batch. If they
differ, it names the first step, micro batch and rank, with exit code 1. With --planned, or without a run log, it
compares them with what the configuration gives.

  conceptloader trace --audit --run-log checkpoints
  conceptloader trace --audit --record run/record --run-log checkpoints

--losses joins a loss log (conceptloader.trace.LossLog, one line in the trainer) with a step: its loss and the usual
loss (the mean of the steps before), the documents that raised it most, and their concepts. `excess` is a document's
part of the rise: its share of the sample times the sample's loss above the usual one.

  conceptloader trace run.yaml --run-log checkpoints --losses losses --step 1200
"""

_OF_INDICES = "plot", "until"
_OF_LOSSES = "top", "baseline", "track"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=not_negative, metavar="N", help="all samples of this step")
    what.add_argument("--sample", type=not_negative, metavar="N", help="one sample, by the trainer's index")
    what.add_argument("--steps", type=steps, metavar="A:B", help="table of steps A to B - 1")
    what.add_argument("--checkpoint", metavar="DIR", help="the order that this checkpoint holds, and its position")
    what.add_argument("--compare", metavar="OTHER", help="steps of which this other configuration changes a batch")
    what.add_argument("--audit", action="store_true", help="the first step that differs from what was recorded")
    add_table_arguments(parser)
    meaning = "with --audit: batch log that the ranks wrote (default: next to the run log)"
    parser.add_argument("--record", metavar="DIR", help=meaning)
    parser.add_argument("--checkpoints", metavar="DIR", help="with --compare: where to find one to start again from")
    parser.add_argument("--rank", type=not_negative, metavar="N", help="only this data-parallel rank")
    group = parser.add_argument_group("samples of ranks").add_argument
    group("--indices-only", action="store_true", help="only which samples each rank reads")
    group("--plot", metavar="FILE", help="also plot the mixture over the run (.png, .svg, .pdf)")
    group("--until", type=positive, metavar="STEP", help="end of the plot (default: of an epoch), or of --compare")
    group = parser.add_argument_group("losses").add_argument
    group("--losses", metavar="DIR", help="loss log: show what raised the loss of --step")
    group("--top", type=positive, default=10, metavar="N", help="documents and concepts shown (default: 10)")
    group("--baseline", type=positive, default=100, metavar="N", help="earlier steps for the usual loss (default: 100)")
    group("--track", default="concepts", metavar="NAME", help="track of the concepts (default: concepts)")


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.audit:
        refuse_all_but("--audit", arguments, "config", "run_log", "planned", "record")
        code: int = need_add_on("conceptloader.trace.commands.audit", "--audit").show_audit(arguments, output)
        return code
    refuse_without("--audit", arguments, "record")
    _show(arguments, output)
    return 0


def _show(arguments: argparse.Namespace, output: Output) -> None:
    if arguments.checkpoint is not None:
        refuse_all_but("--checkpoint", arguments, "config")
        return show_checkpoint(arguments, output)
    if arguments.compare is not None:
        refuse_all_but("--compare", arguments, "config", "until", "checkpoints", *OF_STEPS)
        return show_comparison(arguments, output)
    refuse_without("--compare", arguments, "checkpoints")
    if arguments.indices_only:
        refuse_beside("--indices-only", arguments, "sample", "format", "out", "losses", *_OF_LOSSES)
        return _show_indices(arguments, output)
    refuse_without("--indices-only", arguments, *_OF_INDICES)
    if arguments.losses is not None:
        refuse_beside("--losses", arguments, "sample", "steps", "format", "out", "rank")
        return _show_losses(arguments, output)
    refuse_without("--losses", arguments, *_OF_LOSSES)
    return _show_samples(arguments, output)


def _show_samples(arguments: argparse.Namespace, output: Output) -> None:
    refuse_without("--steps", arguments, "format", "out")
    if arguments.steps is not None:
        refuse_beside("--steps", arguments, "rank")  # of which the table has a column
        write_table(trace_steps(open_run(arguments), *arguments.steps), arguments, output)
        return
    asked = open_run(arguments)
    if arguments.step is None:
        first, stop, era = arguments.sample, 0, asked.at(arguments.sample)
    else:
        (first, stop), era = asked.steps.range_of(arguments.step), asked.at_step(arguments.step)
    weights = [_weights(one) for one in era.phases_in(first, stop)]
    found = trace_step(asked, arguments.step) if arguments.sample is None else [trace_sample(asked, arguments.sample)]
    if arguments.rank is not None:
        found = [one for one in found if any(place.dp_rank == arguments.rank for place in one.places)]
        if not found:
            raise ConfigError("--rank", f"{arguments.rank}", "a rank with some of these samples", "check --dp-size")
    value = {"weights": weights, "samples": [one.to_dict() for one in found]}
    shown = weights if arguments.sample is None else []
    output.result(value, [*map(_said, shown), *(line for one in found for line in _lines(one))])


def _weights(one: LoggedPhase) -> dict[str, Any]:
    return {"global_sample": one.phase.start, "weights": one.phase.shares, "why": one.why, "losses": dict(one.losses)}


def _said(weights: dict[str, Any]) -> str:
    shares = ", ".join(f"{name} {share:.4g}" for name, share in weights["weights"].items())
    why = f", set live: {printable(weights['why'])}" if weights["why"] else ""
    return f"weights from global sample {weights['global_sample']} on: {shares}{why}"


def _lines(one: SampleTrace) -> Iterator[str]:
    places = [f"step {p.step}, micro batch {p.micro_batch}, rank {p.dp_rank}, slot {p.slot}" for p in one.places]
    if one.tokens is None:
        tokens = "not read: excluded" + ", or an empty pack" * (one.kind == "pack")
    else:
        within = "of tokens" if one.kind == "pack" else "tokens"
        tokens = f"{within} {one.tokens[0]} to {one.tokens[1] - 1}"
    window = f"{one.dataset}, {one.kind} {one.window} of epoch {one.epoch}"
    yield "; ".join([f"sample {one.sample}", *places, window, tokens])
    for part in one.documents:
        name = f"number {part.document}" if part.id is None else printable(part.id)
        parts = {"inputs": part.inputs, "labels": part.labels}
        yield f"  document {name}: " + ", ".join(f"{kind} {p[0]}:{p[1]}" for kind, p in parts.items() if p is not None)
    for name, values in one.fields.items():
        yield f"  {name}: {min(values):g} to {max(values):g}, mean {sum(values) / len(values):g}"
    for track, spans in one.spans.items():
        yield f"  {track}: {counted(len(spans), 'span')}"
        for span in spans:
            before, after = "<" if span.begins_before else "[", ">" if span.ends_after else ")"
            content = json.dumps(span.record)[:_RECORD] if span.names is None else printable(", ".join(span.names))
            yield f"    {before}{span.start}, {span.end}{after} {content}"


def _show_indices(arguments: argparse.Namespace, output: Output) -> None:
    refuse_without("--plot", arguments, "until")
    asked = open_run(arguments)
    first, last = arguments.steps or (arguments.step, arguments.step + 1)
    shares = [share for step in range(first, last) for share in plan_step(asked, step, arguments.rank)]
    rows = [
        [share["step"], share["dp_rank"], share["micro_batch"], "  ".join(map(_short, share["samples"]))]
        for share in shares
    ]
    if arguments.plot is not None:
        begin, order = asked.steps.range_of(first)[0], asked.drawn
        end = max(sum(order.sizes), begin + 1) if arguments.until is None else asked.steps.range_of(arguments.until)[0]
        if end <= begin:
            raise ConfigError("--until", str(arguments.until), f"a step after {first}", "raise --until")
        plots = need_add_on("conceptloader.viewer.plots", "--plot")
        save_picture(plots.plot_mixture(order, end, begin), arguments.plot)
    output.result({"shares": shares}, table(rows, ["step", "rank", "micro batch", "samples"]))


def plan_step(asked: Run, step: int, only: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the shares of a step: {"step", "dp_rank", "micro_batch", "samples"}."""
    plan, era = asked.steps.segment(step).plan, asked.at_step(step)
    for dp_rank in range(plan.partition.dp_size) if only is None else [only]:
        for micro_batch, indices in enumerate(plan.micro_batches(step, dp_rank)):
            found = (part.tolist() for part in (indices, *era.blend.order.sample_many(indices)))
            samples = [
                {"sample": sample, "dataset": era.name(index), "epoch": epoch, "window": window}
                for sample, index, epoch, window in zip(*found, strict=True)
            ]
            yield {"step": step, "dp_rank": dp_rank, "micro_batch": micro_batch, "samples": samples}


def _short(sample: dict[str, Any]) -> str:
    epoch = f" epoch {sample['epoch']}" if sample["epoch"] else ""
    return f"{sample['sample']}={sample['dataset']}:{sample['window']}{epoch}"


def _show_losses(arguments: argparse.Namespace, output: Output) -> None:
    options = chosen(arguments, "top", "baseline", "track")
    found = explain(open_run(arguments), arguments.losses, arguments.step, **options)
    usual = "no earlier step was logged" if found["usual"] is None else f"usual: {found['usual']:.4f}"
    logged = f"{found['logged']} of {found['samples']} samples were logged"
    documents = [
        [f"{one['excess']:+.5f}", f"{one['loss']:.4f}", one["sample"], one["dataset"], one["id"] or one["document"],
         f"{one['start']}:{one['end']}", ", ".join(map(str, one[arguments.track][:5]))]
        for one in found["documents"]
    ]  # fmt: skip
    concepts = [
        [f"{one['excess']:+.5f}", one["concept"], "-" if one["span_loss"] is None else f"{one['span_loss']:.4f}"]
        for one in found["concepts"]
    ]
    lines = [
        f"step {found['step']}: loss {found['loss']:.4f} ({usual}); {logged}",
        *table(documents, ["excess", "loss", "sample", "dataset", "document", "tokens", arguments.track]),
        *table(concepts, ["excess", "concept", "loss of its spans"]),
    ]
    output.result(found, lines)
