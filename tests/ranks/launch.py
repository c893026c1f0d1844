"""Runs that are killed and resumed: how a launch is started and ends, and what its ranks have seen against the plan.

A launch calls a function of a module in several processes, which `server.py` forks. In them `record` writes down what a
step was trained on, and dies where the launch says so.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.dying import die_with_parent
from tests.ranks.server import free_port


def record(step, samples, kind="train"):
    """To be called where a step, counted from 0, trains on samples. Here comes the SIGKILL."""
    folder, number, rank = Path(os.environ["RECORD"]), os.environ["NUMBER"], os.environ["RANK"]
    line = json.dumps({"step": step, "kind": kind, "samples": [int(sample) for sample in samples]}) + "\n"
    file = os.open(folder / f"record.{number}.{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, line.encode())
    os.close(file)
    if kind == "train":
        die_at(step)


def die_at(step):
    """At the step of $KILL, RANK:STEP or all:STEP: SIGKILL to one rank now, or to all once all are here."""
    victim, _, at = os.environ.get("KILL", "").partition(":")
    if victim == os.environ["RANK"] and step >= int(at):
        os.kill(os.getpid(), signal.SIGKILL)
    if victim == "all" and step >= int(at):
        Path(os.environ["RECORD"], f"reached.{os.environ['NUMBER']}.{os.environ['RANK']}").touch()
        time.sleep(60)


def run_script(argv):
    """What `python ARGV` runs: a script, or -m and a module."""
    module = argv[0] == "-m"
    sys.argv = argv[module:]
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(argv[0])))
    if module:
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(argv[0], run_name="__main__")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a run.

    out: its directory; checkpoints and records lie there. steps: train up to this one. save_at: steps after which a
    checkpoint is written; with `mid` that happens one micro batch later, in the middle of a step. resume: from the last
    checkpoint. ahead: something between loader and trainer reads ahead. kill: RANK:STEP or all:STEP. bare: with
    make_dataloader's Loader, as if there were no adapter. options: of one trainer. other: configuration of rank 1,
    beside that of the others.
    """

    config: str
    out: str
    number: int
    ranks: int
    micro: int
    accumulate: int
    steps: int
    save_at: int
    mid: bool = False
    resume: bool = False
    ahead: bool = False
    kill: str = ""
    bare: bool = False
    valid: str | None = None
    other: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self):
        return Path(self.out)

    @property
    def first(self):
        """The step at which a resumed launch begins: where the one before it has saved."""
        return self.save_at - 2 if self.resume else 0

    @property
    def batch(self):
        """Samples of a step."""
        return self.micro * self.ranks * self.accumulate

    def of_rank(self):
        """As this rank has it."""
        differs = os.environ["RANK"] == "1" and self.other is not None
        return Launch(**{**vars(self), "config": str(Path(self.config).parent / str(self.other))}) if differs else self

    def record(self, step, samples, kind="train"):
        record(step, samples, kind)


@dataclass(frozen=True)
class Ended:
    """How a launch ended. codes: of its ranks; below 0, a signal."""

    codes: list[int]
    output: str

    @property
    def code(self):
        """0, or that of a rank that failed."""
        return next(filter(None, self.codes), 0)


class Server:
    """A process that has imported a module, and forks ranks."""

    def __init__(self, module, env):
        command = [sys.executable, str(Path(__file__).with_name("server.py")), module]
        environment = {**os.environ, **env, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            command, env=environment, stdin=-1, stdout=-1, text=True, preexec_fn=die_with_parent
        )

    def run(self, job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the server has ended; see above"
        return list(json.loads(answer))

    def end(self):
        self.process.kill()
        self.process.communicate()


_servers = {}


def end_servers(keep=0):
    """All but the newest."""
    while len(_servers) > keep:
        _servers.pop(next(iter(_servers))).end()


atexit.register(end_servers)


def launch(
    module, argument, folder, *, function="main", ranks=1, number=0, kill="", kill_after=None, env=None, path=(),
    server_env=None, nodes=({},), timeout=300,
):  # fmt: skip
    """Call `function` of `module` in `ranks` processes, in `folder`, where it records.

    kill: RANK:STEP or all:STEP, see `die_at`. kill_after: seconds after which all are killed. path: comes first on
    sys.path. server_env: of the process that imports the module. nodes: the environment of each, which has an equal
    share of the ranks.
    """
    server_env = server_env or {}
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"log.{number}.txt"
    log.write_text("")
    for left in folder.glob(f"reached.{number}.*"):
        left.unlink()
    key = (module, *sorted(server_env.items()))
    if key not in _servers:
        end_servers(keep=1)  # each has a framework in memory
        _servers[key] = Server(module, server_env)
    own = {"RECORD": str(folder), "NUMBER": str(number), "KILL": kill, "OMP_NUM_THREADS": "1"}
    job = {
        "function": function, "argument": asdict(argument) if isinstance(argument, Launch) else [*argument],
        "folder": str(folder), "log": str(log), "ranks": ranks, "number": number, "kill_after": kill_after,
        "env": {**os.environ, **own, **server_env, **(env or {}), "CUDA_VISIBLE_DEVICES": ""}, "path": [*path],
        "nodes": [*map(dict, nodes)], "timeout": timeout,
    }  # fmt: skip
    try:
        codes = _servers[key].run(job)
    except BaseException:  # of pytest-timeout, too: an answer that nobody has read would be the next one's
        _servers.pop(key).end()
        raise
    return Ended(codes, log.read_text(errors="replace"))


def seen(folder, number, kind="train"):
    """Step -> samples that the ranks of a launch have trained on."""
    found = {}
    for path in folder.glob(f"record.{number}.*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if line["kind"] == kind:
                found.setdefault(line["step"], Counter()).update(line["samples"])
    return found


def judge(folder, launches, steps, batch):
    """(skipped, repeated) samples of the run as it counts: a step is what the last launch that made it has seen."""
    made = {}
    for number in range(launches):
        trained = seen(folder, number)
        assert trained, f"launch {number} trained nothing"
        made = {step: samples for step, samples in made.items() if step < min(trained)} | trained
    total = sum(made.values(), Counter())
    planned = Counter(range(steps * batch))
    for step in made:
        if made[step] != Counter(range(step * batch, (step + 1) * batch)):
            print(f"step {step}: {sorted(made[step].elements())}")
    return (planned - total).total(), (total - planned).total()


def _forked(rank, function, ranks, port, arguments):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port))  # fmt: skip
    function(rank, *arguments)


def forked(function, ranks, *arguments):
    """Call it with the rank and `arguments` in processes that find each other as those of torchrun do."""
    from torch.multiprocessing import start_processes

    start_processes(_forked, (function, ranks, free_port(), arguments), nprocs=ranks, start_method="fork")
