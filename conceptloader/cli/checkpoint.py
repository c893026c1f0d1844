"""What `conceptloader trace --checkpoint` shows: whose order a checkpoint holds, and what a resume from it does."""

import argparse
from itertools import zip_longest

from conceptloader.cli.output import Output
from conceptloader.config import load_config, open_blend
from conceptloader.order.progress.found import locate_state
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.order.segments import in_force
from conceptloader.trace.past import defaults_of


def show_checkpoint(arguments: argparse.Namespace, output: Output) -> None:
    """Raises ResumeError if a resume with the configuration, as far as one is given, would be refused."""
    path, state = locate_state(arguments.checkpoint)
    value = {"file": str(path), "spec_hash": state.spec.hash, "consumed_samples": state.consumed, **state.more}
    lines = [f"{path}: state of an order with the hash {state.spec.hash}", *_position(state), *_order(state.spec)]
    if arguments.config is not None:
        config = load_config(arguments.config, defaults=defaults_of(state.spec))
        resumed = open_blend(config).resume(state.spec, state.consumed).spec.hash
        ahead = "as planned" if resumed == state.spec.hash else "by this configuration, which has changed"
        lines.append(f"{arguments.config}: resumes at sample {state.consumed:,}; those ahead are {ahead}")
        value |= {"resumes_at": state.consumed, "resumed_spec_hash": resumed}
    output.result({**value, "spec": state.spec.to_dict()}, lines)


def _position(state: OrderState) -> list[str]:
    told = {
        "step_start": "of the step that was begun at sample",
        "step": "steps of the trainer up to there:",
        "count_start": "of another trainer's before this one's count:",
        "data_stage": "data stage",
        "data_stage_start": "of data stages before:",
    }
    known = [f"{text} {state.more[key]}" for key, text in told.items() if key in state.more]
    return [f"  samples consumed: {state.consumed:,}" + f" ({', '.join(known)})" * bool(known)]


def _order(spec: OrderSpec) -> list[str]:
    lines = [f"  order: {spec.order}, seed {spec.seed}"]
    for name, member in spec.members.items():
        cut = "documents" if member.seq_len is None else f"of {member.seq_len:,} tokens"
        lines.append(f"  {name}: {member.windows:,} {cut}, fingerprint {member.stream_fingerprint}")
    listed = [one for one in in_force(spec.segments) if one.weights]
    for one, after in zip_longest(listed, listed[1:]):
        if one.ramp and after is not None and after.ramp:
            continue  # between the first and the last step
        shares = ", ".join(f"{name} {share:.4g}" for name, share in one.shares.items())
        note = " (set live)" if one.drawn is not None else " (end of a ramp)" if one.ramp else ""
        lines.append(f"  from sample {one.at:,}: {shares}{note}")
    return lines
