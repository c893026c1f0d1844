"""What `conceptloader trace --checkpoint` shows: whose order a checkpoint holds, and what a resume from it does."""

import argparse

from conceptloader.cli.output import Output
from conceptloader.config import load_config, open_blend
from conceptloader.order.progress.found import locate_state
from conceptloader.trace.past import defaults_of


def show_checkpoint(arguments: argparse.Namespace, output: Output) -> None:
    """Raises ResumeError if a resume with the configuration, as far as one is given, would be refused."""
    path, state = locate_state(arguments.checkpoint)
    value = {"file": str(path), "spec_hash": state.spec.hash, "consumed_samples": state.consumed, **state.more}
    more = ", ".join(f"{key} {one}" for key, one in state.more.items() if isinstance(one, (int, str)))
    lines = [
        f"{path}: state of an order with the hash {state.spec.hash}",
        f"  samples consumed: {state.consumed:,}" + f" ({more})" * bool(more),
        f"  order: {state.spec.order}, seed {state.spec.seed}; --json has all of it",
    ]
    if arguments.config is not None:
        config = load_config(arguments.config, defaults=defaults_of(state.spec))
        resumed = open_blend(config).resume(state.spec, state.consumed).spec.hash
        ahead = "as planned" if resumed == state.spec.hash else "by this configuration, which has changed"
        lines.append(f"{arguments.config}: resumes at sample {state.consumed:,}; those ahead are {ahead}")
        value |= {"resumes_at": state.consumed, "resumed_spec_hash": resumed}
    output.result({**value, "spec": state.spec.to_dict()}, lines)
