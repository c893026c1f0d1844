"""Start training scripts on CPU and read what they say."""

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.ranks.launch import launch

ROOT = Path(__file__).parents[2]
LOSS = re.compile(r'\{"step": .*?\}')
ITERATION = re.compile(r"iteration +(\d+)/ +\d+ .*lm loss: (\S+) .*grad norm: (\S+)")

# What a CPU needs, and a model that trains a step in milliseconds.
ARGUMENTS = shlex.split("""
    --transformer-impl local --distributed-backend gloo --use-cpu-initialization
    --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-gelu-fusion
    --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
    --num-layers 2 --hidden-size 32 --num-attention-heads 4
    --seq-length 64 --max-position-embeddings 64 --lr 1e-3 --seed 7
    --tokenizer-type NullTokenizer --log-interval 1
    --eval-iters 0 --eval-interval 1000 --ckpt-format torch_dist
    --attention-dropout 0 --hidden-dropout 0
""")


@dataclass(frozen=True)
class Finished:
    """returncode and output of torchrun; losses: by step, as printed; taken: by rank, a record of
    each micro batch that its iterator gave; given: the same of the concept tensors that a model got."""

    returncode: int
    output: str
    losses: dict[int, tuple[str, ...]]
    taken: dict[int, list[dict[str, list[int]]]]
    given: dict[int, list[dict[str, list[int]]]]

    def samples(self, rank):
        """Sample indices of each micro batch that a process took."""
        return [line["sample_index"] for line in self.taken.get(rank, [])]


def torchrun(script, folder, *, processes=2, checkout=None, kill_after=0, timeout=300, nodes=({},)):
    """Run `script` with the harness in `processes` processes. A run that takes longer than `timeout` s is a failure.

    nodes: the environment of each, which has an equal share of the processes; all are on this machine.
    """
    paths = [str(ROOT), *([] if checkout is None else [str(checkout)]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONPATH": os.pathsep.join(paths),
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
        "TORCH_COMPILE_DISABLE": "1",
        **({"WHEEL": "1"} if checkout is None else {}),
    }
    ended = launch(
        "tests.megatron.harness.run", script, folder, ranks=processes, env={"KILL_AFTER": str(kill_after)},
        server_env=environment, timeout=timeout, nodes=nodes,
    )  # fmt: skip
    return Finished(
        abs(ended.code), ended.output, losses(ended.output), records(folder, "rank"), records(folder, "given")
    )


def records(folder, kind):
    """By rank, what the harness has written down."""
    paths = {int(path.stem.removeprefix(kind)): path for path in folder.glob(f"{kind}*.jsonl")}
    return {rank: [json.loads(line) for line in path.read_text().splitlines()] for rank, path in paths.items()}


def losses(output):
    """By step, what a script has printed: Megatron's loss and gradient norm, or our example's line of JSON."""
    found = {}
    for line in output.splitlines():
        if match := ITERATION.search(line):
            found[int(match[1])] = match.groups()[1:]
        elif match := LOSS.search(line):  # another rank's output may stand before it
            entry = json.loads(match[0])
            found[entry["step"]] = (repr(entry["loss"]),)
    return found
