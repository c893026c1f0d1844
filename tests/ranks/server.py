"""Forks ranks from a process that has imported what they need: python server.py MODULE, for tests.ranks.launch.

Importing a framework takes seconds; a fork has it at once, and is a process like those of torchrun. A job is a line of
JSON on standard input: `function` of MODULE is called in `ranks` processes. A line with their exit codes answers it.
"""

import faulthandler
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
import types
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port():
    """A TCP port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def run_rank(module, job, rank):
    """In the forked process. Returns its exit code."""
    from tests.dying import die_with_parent
    from tests.ranks.launch import Launch

    die_with_parent()
    os.setpgid(0, 0)  # with its helpers, which are ended after it
    for number, (path, flags) in enumerate(
        [("/dev/null", os.O_RDONLY), *[(job["log"], os.O_WRONLY | os.O_APPEND)] * 2]
    ):
        os.dup2(os.open(path, flags), number)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["env"])
    os.environ.update(job["nodes"][rank * len(job["nodes"]) // job["ranks"]])
    os.environ.update({name: str(rank) for name in ("RANK", "LOCAL_RANK")})
    sys.path[:0] = job["path"]
    faulthandler.dump_traceback_later(max(1, job["timeout"] - 20))
    code = 1
    try:
        argument = job["argument"]
        attrgetter(job["function"])(module)(Launch(**argument).of_rank() if isinstance(argument, dict) else argument)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else error.code is not None
    except BaseException:
        sys.excepthook(*sys.exc_info())  # torch's says which rank it is
        written = Path(job["folder"], f"writing.{job['number']}.{rank}")
        written.write_text(traceback.format_exc())
        written.rename(written.with_name(f"error.{job['number']}.{rank}"))  # whole: another rank may end this one
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run(module, job):
    """The exit code of each rank. A rank that fails ends the others, as torchrun would."""
    world = {"WORLD_SIZE": job["ranks"], "LOCAL_WORLD_SIZE": job["ranks"], "MASTER_PORT": free_port()}
    fixed = {"MASTER_ADDR": "127.0.0.1", "GROUP_RANK": "0", "NODE_RANK": "0", "GLOO_SOCKET_IFNAME": "lo"}
    job["env"] |= {**fixed, **{name: str(value) for name, value in world.items()}}
    alive, codes = {}, [0] * job["ranks"]
    for rank in range(job["ranks"]):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = run_rank(module, job, rank)
            finally:
                os._exit(code)
        alive[pid] = rank
    reached = [Path(job["folder"], f"reached.{job['number']}.{rank}") for rank in range(job["ranks"])]
    began = time.monotonic()
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        passed, end = time.monotonic() - began, False
        if pid in alive:
            codes[alive.pop(pid)] = os.waitstatus_to_exitcode(status)
            with suppress(ProcessLookupError):
                # Helpers, as those of Megatron's checkpoints. multiprocessing's resource tracker ignores this, cleans
                # up after them, and ends.
                os.killpg(pid, signal.SIGTERM)
            end = status != 0
        elif passed > job["timeout"]:
            Path(job["folder"], f"error.{job['number']}.all").write_text("hangs")
            end = True
        else:
            end = all(path.exists() for path in reached) or passed > (job["kill_after"] or passed)
            time.sleep(0.005)
        if end:
            for other in random.sample([*alive], len(alive)):
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    return codes


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what is printed is no answer
    sys.path[0] = str(ROOT)
    ours = types.ModuleType("tests")  # a checkout may have a package of that name, which would come first
    ours.__path__ = [str(ROOT / "tests")]
    sys.modules["tests"] = ours
    from tests.dying import die_with_parent

    die_with_parent()
    module = importlib.import_module(sys.argv[1])
    gc.freeze()  # else each collection in a fork copies all that was imported
    for line in sys.stdin:
        answers.write(json.dumps(run(module, json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
