"""Random mutants of the product, each given to the tests that concern it.

python -m tests.mutants.run --count 300 --jobs 2        `make mutants`; goes on where it was interrupted
python -m tests.mutants.run --only conceptloader/format/write/ladder.py:74

Each process works in a copy of the tree. Kernels are compiled once more for a mutant of theirs; a library of other
sources is refused, so that a mutant never runs that of another.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from conceptloader.kernels import library
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.table import MODULES, near_and_wide

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).parent / "equivalent.txt"
MOST_BYTES = 12 << 30  # of address space: a mutant may ask for anything
# A failing property is not made smaller: that it fails is enough.
QUICK = """
from hypothesis import Phase
settings.register_profile("mutants", deadline=None, phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutants")
"""


# What every run of the tests needs is imported once; each run is a fork, which imports the mutant.
SERVER = """
import json, os, resource, signal, sys
import hypothesis, numpy, pyarrow.parquet, pytest, tokenizers, torch, yaml
WHOLE = ["--ignore=tests/kernels/test_library.py"]  # of the libraries of a build; a copy has one level
for line in sys.stdin:
    tests, output, most = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background; tests need it
        status = pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-mnot slow", *WHOLE, *tests])
        sys.stdout.flush()
        os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def candidates(only: list[str]) -> list[Mutant]:
    """All mutants of the modules; `only` keeps those whose file:line begins with one of its elements."""
    files = sorted(
        str(file.relative_to(ROOT))
        for module in MODULES
        for file in ([ROOT / module] if module.endswith(".py") else (ROOT / module).rglob("*.py"))
    )
    found = [mutant for path in files for mutant in mutants_of(ROOT, path)]
    return [m for m in found if not only or any(f"{m.place}:".startswith(place) for place in only)]


def equivalents() -> dict[tuple[str, str, str], str]:
    """(file, line before, line after) -> why no test can tell."""
    entries = EQUIVALENT.read_text().split("\n\n")[1:]  # the first paragraph explains
    lines = [[line.strip() for line in entry.strip().split("\n")] for entry in entries if entry.strip()]
    return {(path, before[2:], after[2:]): " ".join(why) for path, before, after, *why in lines}


class Tree:
    """A copy of the checkout in which one mutant at a time is tested."""

    def __init__(self, path: Path) -> None:
        self.path, self.libraries = path, path.with_name(f"{path.name}-kernels")
        shutil.rmtree(path, ignore_errors=True)
        listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
        for name in sorted(filter(None, listed.split("\0"))):
            if (ROOT / name).is_file():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        with (path / "tests/conftest.py").open("a") as file:
            file.write(QUICK)
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.path),
            "PYTHONDONTWRITEBYTECODE": "1",
            library.VARIABLE: str(self.libraries),
        }
        where = subprocess.check_output(
            [sys.executable, "-c", "import conceptloader; print(conceptloader.__file__)"],
            cwd=self.path, env=environment, text=True,
        )  # fmt: skip
        if str(path) not in where:
            sys.exit(f"the tests would not import the mutant but {where}")
        self._compile = partial(
            subprocess.run, [sys.executable, "-m", "conceptloader.kernels.build", "--output", self.libraries,
            "--levels", library.load_library().level], cwd=path, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        self._compile(check=True)
        (path / "conceptloader/kernels/lib").symlink_to(self.libraries)  # tests look at what is there, too
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], cwd=self.path, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def test(self, tests: list[str], timeout: float) -> tuple[int | None, str]:
        """(exit status of pytest, None after the timeout; output)."""
        output = self.path.with_name(f"{self.path.name}.txt")
        present = [name for name in tests if (self.path / name).exists()]
        requests, answers = self._server.stdin, self._server.stdout
        assert requests is not None
        assert answers is not None
        print(json.dumps([present, str(output), MOST_BYTES]), file=requests, flush=True)
        group = int(answers.readline())
        ended = threading.Timer(timeout, _kill, [group])
        ended.start()
        status = int(answers.readline())
        late = not ended.is_alive()
        ended.cancel()
        _kill(group)  # what the tests left running
        return None if late else status, output.read_text(errors="replace")

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[str]:
        """Yields what the compiler has against the mutant: nothing but for kernels."""
        file = self.path / mutant.path
        source = file.read_bytes()
        compiled = file.parent.name == "kernels"
        file.write_bytes(mutant.apply(source))
        try:
            yield self._compile().stderr if compiled else ""
        finally:
            file.write_bytes(source)
            if compiled:
                self._compile(check=True)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _digest(names: list[str]) -> str:
    """Of the Python files below these paths."""
    digest = hashlib.sha256()
    for name in names:
        files = sorted((ROOT / name).rglob("*.py")) if (ROOT / name).is_dir() else [ROOT / name]
        for file in files:
            digest.update(str(file).encode() + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()[:16]


class Baseline:
    """How long tests take on the tree as it is, where they have to pass. Measured once, and kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def timeout(self, tree: Tree, tests: list[str]) -> float:
        return 60 + 4 * sum(self._measured(tree, test) for test in tests)

    def _measured(self, tree: Tree, test: str) -> float:
        key = f"{_digest(['conceptloader', test])} {test}"
        with self._lock:
            if key not in self._seconds:
                begin = time.monotonic()
                status, output = tree.test([test], 3600)
                if status not in (0, 5):  # 5: all of them are slow
                    sys.exit(f"{test} fails without a mutant:\n{output[-3000:]}")
                self._seconds[key] = time.monotonic() - begin
                self._path.write_text(json.dumps(self._seconds))
            return self._seconds[key]


def verdict(tree: Tree, baseline: Baseline, mutant: Mutant, near_only: bool) -> tuple[bool, str]:
    """(killed, by what)."""
    near, wide = near_and_wide(mutant.path)
    stages = [near] if near_only else [near, wide]
    limits = [baseline.timeout(tree, tests) for tests in stages]
    with tree.mutated(mutant) as refused:
        if refused:
            return True, f"compiler: {refused.strip().splitlines()[-1]}"
        for tests, limit in zip(stages, limits, strict=True):
            status, output = tree.test(tests, limit)
            if status != 0:
                return True, _reason(status, output)
    return False, ""


def _reason(status: int | None, output: str) -> str:
    if status is None:
        return "timeout"
    late = "timeout: " if "from pytest-timeout" in output else ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return late + failed[0][:200] if failed else f"exit {status}: {output.strip()[-200:]}"


def too_late(entry: dict[str, Any]) -> bool:
    """Whether a mutant was killed by a timeout, of a test or of all of them."""
    return bool(entry["killed"]) and entry["by"].startswith("timeout")


def tried_before(results: Path) -> dict[str, dict[str, Any]]:
    lines = results.read_text().splitlines() if results.exists() else []
    return {entry["key"]: entry for entry in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="mutants (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--only", action="append", default=[], metavar="FILE[:LINE]", help="of these places only")
    parser.add_argument("--near", action="store_true", help="only the tests closest to the module: quicker, stricter")
    parser.add_argument("--survivors", action="store_true", help="try those again that survived or were too slow")
    parser.add_argument("--list", action="store_true", help="show the mutants, try none")
    parser.add_argument("--work", type=Path, default=ROOT / "build/mutants", help="copies and results")
    options = parser.parse_args()

    found = candidates(options.only)
    mutants = random.Random(options.seed).sample(found, min(options.count, len(found)))
    sources = {m.path: (ROOT / m.path).read_bytes() for m in mutants}
    known = equivalents()
    if options.list:
        for m in mutants:
            print(m.place, " => ".join(m.before_and_after(sources[m.path])), sep="  ")
        return
    options.work.mkdir(parents=True, exist_ok=True)
    results = options.work / "results.jsonl"
    done = tried_before(results)
    todo = []
    for m in mutants:
        before = done.get(m.key(sources[m.path]))
        if (m.path, *m.before_and_after(sources[m.path])) in known:
            continue
        if before is None or (options.survivors and (not before["killed"] or too_late(before))):
            todo.append(m)
    trees: SimpleQueue[Tree] = SimpleQueue()
    for number in range(min(options.jobs, len(todo))):
        trees.put(Tree(options.work.resolve() / f"tree{number}"))
    baseline = Baseline(options.work / "baseline.json")

    def one(mutant: Mutant) -> None:
        tree = trees.get()
        try:
            begin = time.monotonic()
            killed, by = verdict(tree, baseline, mutant, options.near)
        finally:
            trees.put(tree)
        key = mutant.key(sources[mutant.path])
        entry = {"key": key, "killed": killed, "by": by, "mutant": asdict(mutant)}
        entry["seconds"] = round(time.monotonic() - begin, 1)
        with results.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        done[key] = entry
        print(
            "killed  " if killed else "SURVIVED", mutant.place, repr(mutant.old), "->", repr(mutant.new), by, flush=True
        )

    with ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for _ in pool.map(one, todo):
            pass
    report(mutants, sources, done, known)


def report(mutants: list[Mutant], sources: dict[str, bytes], done: dict[str, Any], known: dict[Any, str]) -> None:
    """The survivors, and the figure."""
    killed = same = late = 0
    for m in mutants:
        before, after = m.before_and_after(sources[m.path])
        if (m.path, before, after) in known:
            same += 1
        elif done[m.key(sources[m.path])]["killed"]:
            killed += 1
            late += too_late(done[m.key(sources[m.path])])
        else:
            print(f"\n{m.place}\n- {before}\n+ {after}")
    rest = len(mutants) - same
    print(f"\n{len(mutants)} mutants: {same} change nothing that a test could see ({EQUIVALENT.name}); of the other")
    print(f"{rest}, {killed} were killed: {100 * killed / max(1, rest):.1f} %; {rest - killed} survived, see above")
    print(f"{late} of the killed ones took too long, as on a busy machine tests may: --survivors tries them again, too")


if __name__ == "__main__":
    main()
