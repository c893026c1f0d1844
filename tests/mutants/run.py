"""Random mutants of the product, each given to the tests that concern it, and then to all.

python -m tests.mutants.run --count 300 --jobs 2        `make mutants`
python -m tests.mutants.run --only conceptloader/format/write/ladder.py:74

Each process works in a copy of the tree. Kernels are compiled once more for a mutant of theirs; a library of other
sources is refused, so that a mutant never runs that of another.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from conceptloader.kernels import library
from tests.mutants.mutations import mutants_of
from tests.mutants.table import ALL, MODULES, concerning

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).parent / "equivalent.txt"
TIMEOUT_S = 1200
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
        status = pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", *WHOLE, *tests])
        sys.stdout.flush()
        os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def candidates(only):
    """All mutants of the modules; `only` keeps those whose file:line begins with one of its elements."""
    files = sorted(
        str(file.relative_to(ROOT))
        for module in MODULES
        for file in ([ROOT / module] if module.endswith(".py") else (ROOT / module).rglob("*.py"))
    )
    found = [mutant for path in files for mutant in mutants_of(ROOT, path)]
    return [m for m in found if not only or any(f"{m.place}:".startswith(place) for place in only)]


def equivalents():
    """(file, line before, line after) -> why no test can tell."""
    entries = EQUIVALENT.read_text().split("\n\n")[1:]  # the first paragraph explains
    lines = [[line.strip() for line in entry.strip().split("\n")] for entry in entries if entry.strip()]
    return {(path, before[2:], after[2:]): " ".join(why) for path, before, after, *why in lines}


class Tree:
    """A copy of the checkout in which one mutant at a time is tested."""

    def __init__(self, path):
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
            "OMP_NUM_THREADS": "1",  # as in conftest.py, which torch is imported before: a test's forks would wait
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

    def test(self, tests, timeout, *options):
        """(exit status of pytest, None after the timeout; output)."""
        output = self.path.with_name(f"{self.path.name}.txt")
        present = [*options, *(name for name in tests if (self.path / name).exists())]
        requests, answers = self._server.stdin, self._server.stdout
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
    def mutated(self, mutant):
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


def _kill(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def verdict(tree, mutant):
    """What kills a mutant; "" for nothing."""
    with tree.mutated(mutant) as refused:
        if refused:
            return f"compiler: {refused.strip().splitlines()[-1]}"
        status, output = tree.test(concerning(mutant.path), TIMEOUT_S, "-mnot slow")
        if status == 0:  # another room may show it, or a slow test
            status, output = tree.test(ALL, 2 * TIMEOUT_S)
    if not status:
        return "" if status == 0 else "timeout"
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:200] if failed else f"exit {status}: {output.strip()[-200:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="mutants (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--only", action="append", default=[], metavar="FILE[:LINE]", help="of these places only")
    options = parser.parse_args()

    found, known, trees = candidates(options.only), equivalents(), SimpleQueue()
    chosen = random.Random(options.seed).sample(found, min(options.count, len(found)))
    mutants = [m for m in chosen if (m.path, *m.before_and_after((ROOT / m.path).read_bytes())) not in known]
    for number in range(options.jobs):
        trees.put(Tree(ROOT / f"build/mutants/tree{number}"))

    def one(mutant):
        tree = trees.get()
        try:
            killer = verdict(tree, mutant)
        finally:
            trees.put(tree)
        lines = mutant.before_and_after((ROOT / mutant.path).read_bytes())
        print("killed  " if killer else "SURVIVED", mutant.place, *lines, killer, sep="\n  ", flush=True)
        return bool(killer)

    with ThreadPoolExecutor(options.jobs) as pool:
        killed = sum(pool.map(one, mutants))
    same = len(chosen) - len(mutants)
    print(f"\n{len(chosen)} mutants: {same} change nothing that a test could see ({EQUIVALENT.name});")
    print(f"of the other {len(mutants)}, {killed} were killed: {100 * killed / max(1, len(mutants)):.1f} %")


if __name__ == "__main__":
    main()
