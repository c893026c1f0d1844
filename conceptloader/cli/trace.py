"""conceptloader trace"""

import argparse
import json
from collections.abc import Iterator

from conceptloader.base.terminal import printable
from conceptloader.cli.arguments import not_negative, steps
from conceptloader.cli.output import Output
from conceptloader.cli.runs import add_run_arguments, open_run
from conceptloader.cli.tables import add_table_arguments, write_table
from conceptloader.errors import ConfigError
from conceptloader.trace import SampleTrace, trace_sample, trace_step, trace_steps

DESCRIPTION = """\
Print what the samples of a step are made of, be it past or ahead: the window of the dataset; its documents, by their
ids in the input, with the positions of the inputs and of the labels that are theirs; its spans with their concepts,
exactly as they are in the batch: [start, end), with < or > where a span goes on outside; the range of its loss weights
and token fields, and all of them with --json. Tokens that a build inserted (--prefix) are spans of the track prefix.

  conceptloader trace run.yaml --log checkpoints --step 1200
  conceptloader trace run.yaml --sample 614400
  conceptloader trace run.yaml --log checkpoints --steps 0:20000 --format parquet --out steps.parquet

With --steps, a row for each document that a sample reads from, as a table: --format jsonl (default) or parquet.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=not_negative, metavar="N", help="all samples of this step")
    what.add_argument("--sample", type=not_negative, metavar="N", help="one sample, by the trainer's index")
    what.add_argument("--steps", type=steps, metavar="A:B", help="a table of the steps A to B - 1")
    add_table_arguments(parser)
    parser.add_argument("--rank", type=not_negative, metavar="N", help="of this data-parallel rank only")


def run(arguments: argparse.Namespace, output: Output) -> None:
    asked = open_run(arguments)
    if arguments.steps is not None:
        if arguments.rank is not None:
            raise ConfigError(
                "--rank", "found together with --steps, whose table has a column dp_rank", fix="leave it out"
            )
        write_table(trace_steps(asked, *arguments.steps), arguments, output)
        return
    for name in ("format", "out"):
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"--{name}", "found without --steps, which makes a table", fix="leave it out, or use --json"
            )
    found = trace_step(asked, arguments.step) if arguments.sample is None else [trace_sample(asked, arguments.sample)]
    if arguments.rank is not None:
        found = [one for one in found if any(place.dp_rank == arguments.rank for place in one.places)]
        if not found:
            raise ConfigError(
                "--rank", f"found {arguments.rank}, which has none of these samples", fix="check --dp-size"
            )
    output.result({"samples": [one.to_dict() for one in found]}, (line for one in found for line in _lines(one)))


def _lines(one: SampleTrace) -> Iterator[str]:
    places = [f"step {p.step}, micro batch {p.micro_batch}, rank {p.dp_rank}, slot {p.slot}" for p in one.places]
    if one.tokens is None:
        tokens = "empty, or quarantined: not read" if one.kind == "pack" else "quarantined: not read"
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
        yield f"  {track}: {len(spans)} spans"
        for span in spans:
            before, after = "<" if span.begins_before else "[", ">" if span.ends_after else ")"
            content = json.dumps(span.record) if span.names is None else printable(", ".join(span.names))
            yield f"    {before}{span.start}, {span.end}{after} {content}"
