"""The first batches: plain ones while compiled code is loaded or compiled beside them, equal to what comes after."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.batch import warm
from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.open import open_reader
from conceptloader.batch.plain import ReferenceReader
from conceptloader.testing import random_documents, write_dataset
from tests.batch.cases import random_case
from tests.batch.compare import assert_same

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("data") / "data"
    write_dataset(path, random_documents(300, seed=1))
    return {"seq_len": 32, "datasets": {"data": {"path": str(path)}}, "concepts": {"concepts": {}}}


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_that_takes_over_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Six threads, while the compiled engine becomes ready at some read."""
    case = random_case(tmp_path, 3000 + seed)
    picked = case.datasets, case.windows
    wanted = ReferenceReader(None, case.views, case.layout).read(case.samples, picked=picked)
    monkeypatch.setattr(warm, "_loaded", False)
    monkeypatch.setattr(warm, "_loads", lambda: False)
    reader = warm.open_engine(None, case.views, case.layout)
    assert isinstance(reader, warm.StartingReader)
    copy = pickle.loads(pickle.dumps(reader))
    ready = iter([False] * (2 + seed))
    monkeypatch.setattr(warm, "_ready", lambda: next(ready, True))
    monkeypatch.setattr(warm, "_begin", lambda: None)
    found: list = []

    def read() -> None:
        for _ in range(5):
            engine = getattr(reader.read, "__self__", reader)
            found.append((type(engine), reader.read(case.samples, picked=picked)))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {engine for engine, _ in found} == {warm.StartingReader, CompiledReader}
    for _, batch in found:
        assert_same(batch, wanted)
    assert_same(copy.read(case.samples, picked=picked), wanted)


def test_an_order_that_is_followed_is_so_after_the_change_of_engines(
    config: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (cl.open_blend({**config, "seed": seed}) for seed in (1, 2))
    samples = np.arange(40, dtype=np.uint64)
    for when in ("before", "after"):
        monkeypatch.setattr(warm, "_loaded", False)
        monkeypatch.setattr(warm, "_loads", lambda: False)
        reader = open_reader(first)
        assert isinstance(reader, warm.StartingReader)
        monkeypatch.setattr(warm, "_ready", lambda: True)
        if when == "after":
            reader.read(samples)
        reader.follow(second.order)
        assert_same(reader.read(samples), ReferenceReader(second.order, first.views, reader.layout).read(samples))
        monkeypatch.undo()


# Processes

WITHOUT_NUMBA = """
import sys
import numpy as np
import conceptloader as cl
from conceptloader.batch import open, warm
warm._begin = lambda: None
warm._loads = lambda: {loads} and warm.load_engine() is None
reader = open.open_reader(cl.open_blend({config!r}))
reader.read(np.arange(16, dtype=np.uint64))
shuffle = cl.Permutation(10**6, key=1)
assert shuffle.inverse(shuffle.forward(5)) == 5 and cl.Mixture([3, 5000]).sample(7)
assert (type(reader).__name__, "llvmlite" in sys.modules) == ({engine!r}, {loads})
assert "numba" not in sys.modules
"""

FIRST = """
import json, logging, time
import numpy as np
import conceptloader as cl
from conceptloader.batch import open, warm
logging.basicConfig()
reader = open.open_reader(cl.open_blend({config!r}))
plain = compiled = 0
digests = []
while compiled < 3:
    ready = warm._ready()
    digests.append(cl.batch_digest(reader.read(np.arange(8 * len(digests), 8 * len(digests) + 8, dtype=np.uint64))))
    plain, compiled = plain + (not ready), compiled + ready
    if plain == 1:
        assert not warm._loaded
    time.sleep(0.0 if ready or plain < 3 else 0.2)
print(json.dumps([plain, type(reader.read.__self__).__name__, digests]))
"""


def start(
    script: str, stdin: int | None = None, flags: Sequence[str] = (), cwd: Path = CHECKOUT, **environment: str
) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *flags, "-c", script], env={**os.environ, **environment}, cwd=cwd, stdin=stdin,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen, code: int = 0) -> tuple[str, str]:
    """What it wrote to stdout and stderr."""
    output, log = process.communicate(timeout=300)
    assert process.returncode == code, log
    return output, log


@pytest.mark.parametrize(("loads", "engine"), [(False, "StartingReader"), (True, "CompiledReader")])
def test_neither_the_first_batches_nor_compiled_code_that_is_there_need_numba(
    config: dict, loads: bool, engine: str
) -> None:
    finish(start(WITHOUT_NUMBA.format(config=config, loads=loads, engine=engine)))


def check_batches(config: dict, outputs: list[str], begins_plain: bool = True) -> None:
    """Their first batches were plain, or not, the last ones compiled, and all what the reference engine reads."""
    reader = open_reader(cl.open_blend({**config, "loader": {"engine": "reference"}}))
    for plain, engine, digests in map(json.loads, outputs):
        assert (plain >= 1) == begins_plain
        assert engine == "CompiledReader"
        samples = [np.arange(8 * k, 8 * k + 8, dtype=np.uint64) for k in range(len(digests))]
        assert digests == [cl.batch_digest(reader.read(part)) for part in samples]


def test_with_a_warm_cache_the_first_batch_is_compiled_and_nothing_is_said(config: dict) -> None:
    output, log = finish(start(FIRST.format(config=config)))
    check_batches(config, [output], begins_plain=False)
    assert log == ""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_with_a_cold_cache_nobody_waits_and_a_machine_compiles_once(config: dict, tmp_path: Path) -> None:
    """Two processes that start together. Afterwards a warmup finds the reader compiled."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    processes = [start(FIRST.format(config=config), **environment) for _ in range(2)]
    outputs, logs = zip(*map(finish, processes), strict=True)
    check_batches(config, outputs)
    assert len(list(tmp_path.rglob("fill_samples-*.kernel"))) == 1
    assert sum("compiling the reader" in log for log in logs) == 1  # by the one that has it compiled
    assert "".join(logs).count("`conceptloader warmup`") == 1
    script = """
        import conceptloader.batch.kernels.fill as fill
        from conceptloader.batch.warm import warm_up
        warm_up()
        print([code.cached for code in fill.fill_samples.codes.values()])
    """
    assert finish(start(textwrap.dedent(script), **environment))[0] == "[True]\n"


# In place of the reader, something that compiles quickly, in the process and in the one that compiles for it.
STAND_IN = """
import os, time
import numpy as np
from conceptloader.base.compiled.kernel import kernel
from conceptloader.batch import warm

@kernel
def add(x):
    return x + np.int64(2)

child = False

def load():
    {always}
    if child:
        {in_child}
    assert add(np.int64(40)) == 42
    warm._loaded = True

def compiles():
    global child
    child = True
    with open({compiled!r}, "a") as file:
        file.write(f"{{os.getpid()}}\\n")

warm.load_engine = load
# Importing this takes part in the process that compiles.
warm._CHILD = warm._CHILD.replace("compile_for_parent()", "import stand_in; stand_in.compiles(); compile_for_parent()")
"""
BEGIN = """
import logging, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
sys.path[:0] = [{folder!r}, {checkout!r}]
logging.basicConfig()
import stand_in
from conceptloader.batch import warm
warm._begin()
{rest}
"""
UNTIL_READY = "while not warm._ready(): time.sleep(0.01)\nprint(sum(not c.cached for c in stand_in.add.codes.values()))"


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., subprocess.Popen]:
    def call(rest: str = UNTIL_READY, always: str = "pass", in_child: str = "pass", **more: Any) -> subprocess.Popen:
        text = STAND_IN.format(always=always, in_child=in_child, compiled=str(tmp_path / "compiled"))
        module = tmp_path / "stand_in.py"
        if not module.exists() or module.read_text() != text:  # a process that was started may be importing it
            module.write_text(text)
        environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path), **more}
        return start(BEGIN.format(folder=str(tmp_path), checkout=str(CHECKOUT), rest=rest), **environment)

    return call


def compilers(tmp_path: Path) -> list[int]:
    """Processes that compiled for others."""
    path = tmp_path / "compiled"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(process: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_of_processes_that_start_together_one_has_it_compiled(begin, tmp_path: Path) -> None:
    assert [finish(process)[0] for process in [begin() for _ in range(4)]] == ["0\n"] * 4
    assert len(compilers(tmp_path)) == 1


def test_a_compiler_that_fails_is_heard_and_replaced(begin, tmp_path: Path) -> None:
    output, log = finish(begin(in_child="raise MemoryError('no room for LLVM')"))
    assert output == "1\n"
    assert "no room for LLVM" in log
    assert "exit code 1" in log


def test_a_compiler_is_as_isolated_as_its_parent(begin, tmp_path: Path) -> None:
    """It imports neither what is where it runs, nor what the environment names."""
    for folder, name in (("here", "json"), ("named", "sitecustomize")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text("import os; os._exit(3)")
    output, log = finish(begin(flags=["-I"], cwd=tmp_path / "here", PYTHONPATH=str(tmp_path / "named")))
    assert (output, log) == ("0\n", "")


def test_code_that_cannot_be_compiled_is_an_error_of_the_next_batch(begin) -> None:
    rest = "time.sleep(0.1)\nwhile warm._loading.error is None: time.sleep(0.01)\n" + UNTIL_READY
    _, log = finish(begin(rest, always="raise TypeError('not for this processor')"), 1)
    assert log.rstrip().endswith("TypeError: not for this processor")


def test_without_a_cache_that_can_be_written_to_processes_share_a_temporary_one(begin, tmp_path: Path) -> None:
    output, log = finish(begin(NUMBA_CACHE_DIR="/proc/none"))
    assert output == "0\n"
    assert "none of them can be used" in log
    assert len(list(tmp_path.glob("conceptloader-*/add-*.kernel"))) == 1
    assert finish(begin(NUMBA_CACHE_DIR="/proc/none"))[0] == "0\n"
    assert len(compilers(tmp_path)) == 1


@pytest.mark.parametrize("how", ["end", "interrupt", "kill"])
def test_the_process_that_compiles_ends_with_the_one_it_compiles_for(begin, tmp_path: Path, how: str) -> None:
    process = begin("print('waits', flush=True)\nopen(0).read(1)", in_child="time.sleep(60)", stdin=subprocess.PIPE)
    wait_for(lambda: compilers(tmp_path))
    start, [compiler] = time.monotonic(), compilers(tmp_path)
    if how == "end":
        _, log = process.communicate("x", timeout=30)
        assert (process.returncode, log) == (0, "")
    else:
        os.killpg(process.pid, signal.SIGINT if how == "interrupt" else signal.SIGKILL)  # the terminal's Ctrl-C
        _, log = process.communicate(timeout=30)
        assert process.returncode != 0
        assert log.count("KeyboardInterrupt") == (how == "interrupt")
    wait_for(lambda: is_gone(compiler))
    assert time.monotonic() - start < 30


FORKED = """
import os, sys, time
import numpy as np
import conceptloader as cl
from conceptloader.batch import open, warm
loads, warm._loads = warm._loads, lambda: False
reader = open.open_reader(cl.open_blend({config!r}))
warm._loads = loads
samples = np.arange(8, dtype=np.uint64)
digests = {{cl.batch_digest(reader.read(samples))}}
time.sleep({delay})
child = os.fork()
while not hasattr(reader.read, "__self__") or type(reader.read.__self__).__name__ != "CompiledReader":
    digests.add(cl.batch_digest(reader.read(samples)))
assert len(digests) == 1
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_fork_while_code_is_loaded_leaves_both_processes_able_to(config: dict, delay: float) -> None:
    """As workers are forked, while what loads code is half imported: a child could never complete that."""
    finish(start(FORKED.format(config=config, delay=delay)))
