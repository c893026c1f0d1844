"""The cache of compiled code: shared by processes, proof against damage and read-only installations."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
import sys, warnings
sys.path.insert(0, {module!r})
from kernels import add
print(int(add(40)), sum(add._cache_hits.values()), sum(add._cache_misses.values()))
"""
KERNELS = """
import numpy as np
from conceptloader.compiled import inner, kernel

SHIFT = np.int64({shift})

@inner
def shifted(x):
    return x + SHIFT

@kernel
def add(x):
    return shifted(x)
"""


@pytest.fixture
def run(tmp_path: Path):
    """Run add(40) in a process of its own: (result, cache hits, cache misses)."""

    def start(shift: int = 2, **environment: str) -> subprocess.Popen:
        (tmp_path / "kernels.py").write_text(textwrap.dedent(KERNELS.format(shift=shift)))
        script = SCRIPT.format(module=str(tmp_path))
        return subprocess.Popen(
            [sys.executable, "-c", script], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
        )

    def finish(process: subprocess.Popen) -> tuple[int, ...]:
        output = process.communicate(timeout=100)[0]
        assert process.returncode == 0
        return tuple(map(int, output.split()))

    def call(shift: int = 2, **environment: str) -> tuple[int, ...]:
        return finish(start(shift, **environment))

    call.start, call.finish = start, finish
    return call


def files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.kernel"))


def test_processes_that_start_together_compile_once_and_leave_one_file(run, tmp_path):
    cache = str(tmp_path / "cache")
    started = [run.start(NUMBA_CACHE_DIR=cache, TMPDIR=str(tmp_path)) for _ in range(4)]
    found = sorted(run.finish(process) for process in started)
    assert found == [(42, 0, 1), (42, 1, 0), (42, 1, 0), (42, 1, 0)]
    assert len(files(tmp_path)) == 1
    assert not list(Path(cache).rglob("*.tmp"))


def test_a_change_in_what_a_kernel_calls_is_seen(run, tmp_path):
    cache = str(tmp_path / "cache")
    assert run(2, NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    stamp = os.stat(tmp_path / "kernels.py")
    assert run(3, NUMBA_CACHE_DIR=cache) == (43, 0, 1)
    assert run(2, NUMBA_CACHE_DIR=cache) == (42, 1, 0)  # files of both are there
    assert stamp.st_size == os.stat(tmp_path / "kernels.py").st_size


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:50] + b"\1" + data[51:]]
)
def test_a_damaged_file_is_replaced(run, tmp_path, damage):
    cache = str(tmp_path / "cache")
    run(NUMBA_CACHE_DIR=cache)
    [path] = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert run(NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    assert run(NUMBA_CACHE_DIR=cache) == (42, 1, 0)


def test_without_a_place_to_write_to_everything_works(run, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    assert run(NUMBA_CACHE_DIR=str(blocked)) == (42, 0, 1)


def test_the_user_cache_stands_in_for_a_read_only_installation(run, tmp_path, monkeypatch):
    import conceptloader.compiled as compiled

    monkeypatch.setattr(compiled.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    beside, user = compiled.cache_directories()
    assert beside.startswith(os.path.dirname(compiled.__file__))
    assert user == str(tmp_path / "conceptloader")
    monkeypatch.setattr(compiled, "cache_directories", lambda: ["/proc/none", user])

    @compiled.kernel
    def twice(x):
        return 2 * x

    assert twice(4) == 8
    assert len(files(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_warming_up_leaves_nothing_to_compile(tmp_path):
    script = textwrap.dedent("""
        import numpy as np
        import conceptloader.batch.fill as fill
        from conceptloader.batch.warm import warm_up
        warm_up()
        print(len(fill.fill_samples.signatures), sum(fill.fill_samples._cache_misses.values()))
    """)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs == ["1 1\n", "1 0\n"]
