"""The cache of compiled code: shared by processes, proof against damage and read-only installations."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")

SCRIPT = """
import sys, warnings
sys.path.insert(0, {module!r})
from kernels import add
import logging
logging.basicConfig()
[code] = [*add.codes.values()] if add(40) else [None]
print(int(add(40)), int(code.cached), int(not code.cached))
"""
KERNELS = """
import numpy as np
from conceptloader.base.compiled.code import inner
from conceptloader.base.compiled.kernel import kernel

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

    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def start(shift: int = 2, before: str = "", **environment: str) -> subprocess.Popen:
        module, text = tmp_path / "kernels.py", textwrap.dedent(KERNELS.format(shift=shift))
        if not module.exists() or module.read_text() != text:  # a process that was started may be importing it
            module.write_text(text)
            os.utime(module, (shift, shift))  # as old as ever: what counts is what is in it
        script = f"{before}\n{SCRIPT.format(module=str(tmp_path))}"
        environment = {**os.environ, "TMPDIR": str(temporary), **environment}
        command = [sys.executable, "-c", script]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT
        )

    def finish(process: subprocess.Popen) -> tuple[int, ...]:
        output, call.log = process.communicate(timeout=100)
        assert process.returncode == 0, call.log
        return tuple(map(int, output.split()))

    def call(shift: int = 2, before: str = "", **environment: str) -> tuple[int, ...]:
        return finish(start(shift, before, **environment))

    call.start, call.finish = start, finish
    return call


def files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.kernel"))


def test_processes_that_start_together_compile_once_and_leave_one_file(run, tmp_path):
    cache = str(tmp_path / "cache")
    started = [run.start(NUMBA_CACHE_DIR=cache) for _ in range(4)]
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


MODULES = {
    "constants": "import numpy as np\nSTEP = np.int64({})\nTABLE = np.array([1, {}])\n",
    "pieces": """
from conceptloader.base.compiled.code import inner
from conceptloader.extra.constants import STEP
from conceptloader.extra import constants

@inner
def stepped(x):
    return x + STEP + constants.TABLE[1]
""",
    "kernels": """
from conceptloader.base.compiled.kernel import kernel
from conceptloader.extra import pieces

@kernel
def add(x):
    return pieces.stepped(x)
""",
}


def test_a_change_behind_an_attribute_of_a_module_is_seen(tmp_path):
    """Two modules away from the kernel, in a file whose text is no part of its machine code."""
    (tmp_path / "extra").mkdir()
    script = f"""
import sys, conceptloader
conceptloader.__path__.append({str(tmp_path)!r})
from conceptloader.extra.kernels import add
print(add(40), *[int(code.cached) for code in add.codes.values()])
"""
    for step, table, said in ((1, 1, "42 0"), (2, 1, "43 0"), (2, 2, "44 0"), (2, 1, "43 1")):
        for name, text in MODULES.items():
            (tmp_path / "extra" / f"{name}.py").write_text(text.format(step, table) if name == "constants" else text)
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", script]
        found = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == said


def test_the_file_of_options_that_numba_reads_is_seen(run, tmp_path):
    """Where a process is, unlike those of its environment."""
    cache, there = str(tmp_path / "cache"), tmp_path / "there"
    there.mkdir()
    before = f"import conceptloader, os; os.chdir({str(there)!r})"
    assert run(before=before, NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    (there / ".numba_config.yaml").write_text("boundscheck: 1\n")
    assert run(before=before, NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    assert run(before=before, NUMBA_CACHE_DIR=cache) == (42, 1, 0)
    assert run(NUMBA_CACHE_DIR=cache) == (42, 1, 0)


def test_how_numpy_prints_does_not_matter(run, tmp_path):
    cache = str(tmp_path / "cache")
    assert run(NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    for legacy in ("1.13", "1.25"):
        before = f"import numpy; numpy.set_printoptions(legacy={legacy!r}, threshold=1)"
        assert run(before=before, NUMBA_CACHE_DIR=cache) == (42, 1, 0)


TYPES = """
from typing import Any, NamedTuple
import numpy as np

RECORD = np.dtype([({record[0]!r}, np.int64), ({record[1]!r}, np.int64)])

class Given(NamedTuple):
    {given[0]}: Any
    {given[1]}: Any
    records: Any

class Made(NamedTuple):
    {made[0]}: Any
    {made[1]}: Any
"""
TYPED_KERNELS = """
import numpy as np
from conceptloader.base.compiled.code import inner
from conceptloader.base.compiled.kernel import kernel
from types_of_kernels import Made

@inner
def low_of(made):
    return made.low

@kernel
def add(given):
    return low_of(Made(np.int64(100), np.int64(200))) + 10 * given.low + given.records[0].low
"""
TYPED_SCRIPT = """
import sys
sys.path.insert(0, {module!r})
import numpy as np
from kernels import add
from types_of_kernels import RECORD, Given
print(int(add(Given(1, 2, np.array([(1, 2)], RECORD)))), sum(code.cached for code in add.codes.values()))
"""


def test_a_change_in_the_fields_that_a_kernel_knows_is_seen(tmp_path):
    """The types have a file of their own, of which no function is called."""
    (tmp_path / "kernels.py").write_text(TYPED_KERNELS)

    def result(**fields: tuple[str, str]) -> list[int]:
        names = {name: fields.get(name, ("low", "high")) for name in ("record", "given", "made")}
        (tmp_path / "types_of_kernels.py").write_text(TYPES.format(**names))
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        command = [sys.executable, "-c", TYPED_SCRIPT.format(module=str(tmp_path))]
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, check=True)
        return [int(part) for part in output.stdout.split()]

    assert result() == [111, 0]
    assert result() == [111, 1]
    for changed, expected in (("record", 112), ("given", 121), ("made", 211)):
        assert result(**{changed: ("high", "low")}) == [expected, 0], changed


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
    assert "none of them can be used" in run.log
    assert run(NUMBA_CACHE_DIR=str(tmp_path / "cache"), TMPDIR=str(blocked)) == (42, 0, 1)


def test_a_full_disk_costs_the_cache_and_nothing_else(run, tmp_path):
    cache = str(tmp_path / "cache")
    full = """
import errno, pathlib, tempfile
def fail(*_, **__): raise OSError(errno.ENOSPC, "No space left on device")
"""
    assert run(before=f"{full}\ntempfile.mkstemp = fail", NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    assert "none of them can be used" in run.log
    assert files(tmp_path) == []
    assert not list(tmp_path.rglob("*.tmp"))
    without_source = "import os, kernels; os.unlink(kernels.__file__)"
    assert run(before=f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {without_source}") == (42, 0, 1)


def owned_by_another(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def another_link(path: Path) -> None:
    """A link of another user in place of a directory."""
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")
    owned_by_another(path)


PLACES = {"directory": "a/b/conceptloader", "parent": "a/b", "above": "a", "file": "a/b/conceptloader/*.kernel"}
TRICKS = {
    "owner": (owned_by_another, f"belongs to user {NOBODY}", list(PLACES)),
    "group": (lambda path: path.chmod(0o770), r"others can write to it (mode 770)", ["directory"]),
    "others": (lambda path: path.chmod(0o757), r"others can write to it (mode 757)", list(PLACES)),
    "link": (another_link, f"belongs to user {NOBODY}", ["parent", "above"]),
    "own link": (another_link, "it is a symbolic link", ["directory"]),
}


@pytest.mark.parametrize(
    ("trick", "place"), [(trick, place) for trick, (_, _, places) in TRICKS.items() for place in places]
)
def test_what_others_could_have_written_is_not_loaded(run, tmp_path, trick, place):
    change, reason, _ = TRICKS[trick]
    if change in (owned_by_another, another_link) and os.geteuid() != 0:
        pytest.skip("only root gives files to other users")
    cache = str(tmp_path / "a" / "b")
    assert run(NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    [path] = tmp_path.glob(PLACES[place])
    change(path)
    assert run(NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    assert reason in run.log
    assert str(path) in run.log
    assert "NUMBA_CACHE_DIR" in run.log


@needs_root
def test_code_in_the_cache_of_another_user_is_not_run(run, tmp_path):
    """Other code, with the right name and the right checksum."""
    cache = tmp_path / "cache"
    assert run(3, NUMBA_CACHE_DIR=str(cache)) == (43, 0, 1)
    [path] = files(tmp_path)
    other = path.read_bytes()
    path.unlink()
    assert run(NUMBA_CACHE_DIR=str(cache)) == (42, 0, 1)
    [path] = files(tmp_path)
    path.write_bytes(other)
    assert run(NUMBA_CACHE_DIR=str(cache)) == (43, 1, 0), "it would be run if it were ours"
    owned_by_another(path)
    assert run(NUMBA_CACHE_DIR=str(cache)) == (42, 0, 1)
    assert path.stat().st_uid == 0, "it was compiled afresh and took the place of the other"
    assert run(NUMBA_CACHE_DIR=str(cache)) == (42, 1, 0)


def test_a_sticky_directory_and_one_s_own_links_above_are_fine(run, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "link").symlink_to(shared)
    cache = str(tmp_path / "link" / "me")
    assert run(NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    assert run(NUMBA_CACHE_DIR=cache) == (42, 1, 0)
    assert run.log == ""


def test_what_is_made_is_not_for_others_to_write_to_whatever_the_umask(run, tmp_path):
    cache = str(tmp_path / "new" / "cache")
    assert run(before="import os; os.umask(0)", NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    assert run(NUMBA_CACHE_DIR=cache) == (42, 1, 0)


@needs_root
def test_a_read_only_cache_that_root_has_warmed_is_used(run, tmp_path):
    cache = str(tmp_path / "cache")
    assert run(NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    read_only = "import tempfile\nmake = tempfile.mkstemp\ndef fail(*_, **__): raise PermissionError(13, 'no')\n"
    assert run(before=read_only + "tempfile.mkstemp = fail", NUMBA_CACHE_DIR=cache) == (42, 1, 0)
    assert run.log == ""


def test_a_read_only_cache_is_used_where_nothing_at_all_can_be_written(run, tmp_path):
    """A container of which all is read-only, without a temporary directory."""
    cache = str(tmp_path / "cache")
    assert run(NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    read_only = """
import os, resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
access = os.access
os.access = lambda path, mode, **given: mode != os.W_OK and access(path, mode, **given)
"""
    assert run(before=read_only, NUMBA_CACHE_DIR=cache) == (42, 1, 0)
    assert run.log == ""


def test_the_user_cache_stands_in_for_a_read_only_installation(run, tmp_path, monkeypatch):
    from conceptloader.base.compiled import cache
    from conceptloader.base.compiled.kernel import kernel

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    beside, user = cache.cache_directories()
    assert beside.startswith(os.path.dirname(cache.__file__))
    assert user == str(tmp_path / "conceptloader")
    monkeypatch.setattr(cache, "cache_directories", lambda: ["/proc/none", user])  # nothing can be made there

    @kernel
    def twice(x):
        return 2 * x

    assert twice(4) == 8
    assert len(files(tmp_path)) == 1


SLOW = "import conceptloader.base.compiled.cache as c; c._PATIENCE_S = 0.0; c._spent_s = 0.0"


def test_compiling_that_takes_long_is_said_once_with_what_to_do(run, tmp_path):
    cache = str(tmp_path / "cache")
    assert run(before=SLOW, NUMBA_CACHE_DIR=cache) == (42, 0, 1)
    said = [line for line in run.log.splitlines() if "compiling the reader" in line]
    assert len(said) == 1
    assert "conceptloader warmup" in said[0]
    assert cache in said[0]
    assert run(before=SLOW, NUMBA_CACHE_DIR=cache) == (42, 1, 0)
    assert "compiling" not in run.log


def test_compiling_that_is_quick_is_not_said(run, tmp_path):
    patient = SLOW.replace("_PATIENCE_S = 0.0", "_PATIENCE_S = 100.0")
    assert run(before=patient, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == (42, 0, 1)
    assert "compiling" not in run.log
