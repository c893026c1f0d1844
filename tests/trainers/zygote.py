"""Launches of a trainer, one after another: ranks over gloo, forked from a process that has imported it.

    python zygote.py MODULE LAUNCHES      LAUNCHES is a list as JSON; MODULE of this folder has `train(launch)`, and
                                          `compare_values(launch)` for those with an option `values`

Importing a trainer takes seconds; a fork has it at once. The ranks are processes like those of torchrun.
"""

import faulthandler
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a run.

    out: its directory; checkpoints and records lie there. steps: train up to this one. save_at: steps after which a
    checkpoint is written; with `mid` that happens one micro batch later, in the middle of a step. resume: from the last
    checkpoint. ahead: something between loader and trainer reads ahead. kill_at: SIGKILL to all ranks in this step.
    bare: with make_dataloader's Loader, as if there were no adapter. options: of one trainer. other: configuration of
    rank 1, beside that of the others.
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
    kill_at: int | None = None
    bare: bool = False
    valid: str | None = None
    other: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return Path(self.out)

    @property
    def first(self) -> int:
        """The step at which a resumed launch begins: where the one before it has saved."""
        return self.save_at - 2 if self.resume else 0

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.micro * self.ranks * self.accumulate

    def record(self, step: int, samples: Any, kind: str = "train") -> None:
        """To be called in the model's forward. step: that is being trained, from 0."""
        rank = os.environ["RANK"]
        line = json.dumps({"step": step, "kind": kind, "samples": [int(s) for s in samples]}) + "\n"
        file = os.open(self.path / f"record.{self.number}.{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(file, line.encode())
        os.close(file)
        if self.kill_at is not None and kind == "train" and step >= self.kill_at:
            time.sleep(60)  # here comes the SIGKILL


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start(train: Any, launch: Launch) -> dict[int, int]:
    """Process id -> rank."""
    world = {"WORLD_SIZE": launch.ranks, "LOCAL_WORLD_SIZE": launch.ranks, "MASTER_PORT": free_port()}
    ranks = {}
    for rank in range(launch.ranks):
        pid = os.fork()
        if pid:
            ranks[pid] = rank
            continue
        os.environ.update({key: str(value) for key, value in {**world, "RANK": rank, "LOCAL_RANK": rank}.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", NODE_RANK="0", GROUP_RANK="0", GLOO_SOCKET_IFNAME="lo")
        code = 1
        from tests.dying import die_with_parent

        die_with_parent()
        faulthandler.dump_traceback_later(280)
        try:
            differs = rank == 1 and launch.other is not None
            train(replace(launch, config=str(Path(launch.config).parent / str(launch.other))) if differs else launch)
            code = 0
        except BaseException:
            traceback.print_exc()
            written = Path(launch.out, f"writing.{launch.number}.{rank}")
            written.write_text(traceback.format_exc())
            written.rename(written.with_name(f"error.{launch.number}.{rank}"))  # whole: another rank may end this one
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return ranks


def run(train: Any, launch: Launch) -> None:
    """A launch to its end. A rank that fails ends the others, as torchrun would."""
    ranks = start(train, launch)
    began = time.monotonic()
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in ranks:
            del ranks[pid]
            failed = status != 0
        else:
            failed = time.monotonic() > began + 300
            if failed:
                Path(launch.out, f"error.{launch.number}.all").write_text("hangs")
            if launch.kill_at is not None and all(reached(launch, rank) for rank in range(launch.ranks)):
                failed = True
                (launch.path / "killed").touch()
            time.sleep(0.01)
        if failed:
            for other in ranks:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    print(f"{launch.out} {launch.number}: {time.monotonic() - began:.1f} s", file=sys.stderr)


def reached(launch: Launch, rank: int) -> bool:
    path = launch.path / f"record.{launch.number}.{rank}.jsonl"
    return path.exists() and f'"step": {launch.kill_at}, "kind": "train"' in path.read_text()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ["OMP_NUM_THREADS"] = "1"
    from conceptloader import make_dataloader
    from tests.dying import die_with_parent

    die_with_parent()

    module = importlib.import_module(f"tests.trainers.{sys.argv[1]}")
    launches = [Launch(**spec) for spec in json.loads(sys.argv[2])]
    with make_dataloader(launches[0].config, micro_batch_size=1) as loader:
        next(iter(loader))  # loads the compiled code, once for all launches
    for one in launches:
        run(module.compare_values if "values" in one.options else module.train, one)
