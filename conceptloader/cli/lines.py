"""A sample of a run, and the weights that it was drawn by, as lines of text."""

import json
from collections.abc import Iterator

from conceptloader.base.terminal import counted, printable
from conceptloader.order.segments import Segment
from conceptloader.trace import SampleTrace

_RECORD = 1000  # characters of one, as text


def weights_line(one: Segment) -> str:
    """Weights, and why if they were set live, as a line of text."""
    shares = ", ".join(f"{name} {share:.4g}" for name, share in one.shares.items())
    why = f", set live: {printable(one.why)}" if one.why else ""
    return f"weights from sample {one.at} on: {shares}{why}"


def sample_lines(one: SampleTrace) -> Iterator[str]:
    """What is in a sample, as lines of text."""
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
