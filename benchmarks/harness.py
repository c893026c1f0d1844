"""Fair timing: all contenders of a row run in turn, several times, in one process; medians, spread and ratios."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

US = "conceptloader"


@dataclass
class Contender:
    """One line of a row. `run` does `units` units of work per call."""

    name: str
    run: Callable[[], object]
    units: int
    wall: bool = False  # wall-clock time, for what threads or a disk do; else CPU time, processes that ended included


class Report:
    """Collects results, prints them as tables on stderr and, at the end, as JSON on stdout."""

    def __init__(self, title):
        self.title, self.results = title, []

    def race(self, row, contenders, unit="ns", scale=1e9, repeats=7):
        """Time the contenders in turn; the one named conceptloader is what ratios refer to."""
        times = {c.name: [] for c in contenders}
        for contender in contenders:
            contender.run()  # warm: page cache, allocator, what is loaded at the first use
        for _ in range(repeats):
            for contender in contenders:
                clock = time.perf_counter if contender.wall else cpu
                start = clock()
                contender.run()
                times[contender.name].append((clock() - start) * scale / contender.units)
        self.add(row, unit, times)

    def add(self, row, unit, times):
        print(f"\n{self.title}: {row}", file=sys.stderr)
        ours = statistics.median(times[US])
        for name, values in times.items():
            median, low, high = statistics.median(values), min(values), max(values)
            ratio = median / ours  # how many times our time this is; below 1 is faster than us
            spread = f"({low:,.4g} to {high:,.4g})"
            print(f"  {name:<50} {median:>10,.4g} {unit:<12} {spread:<24} {ratio:>10,.3g}x", file=sys.stderr)
            found = {"name": name, "unit": unit, "median": median, "low": low, "high": high, "ratio": ratio}
            self.results.append({"row": row, **found})

    def finish(self):
        print(json.dumps({"title": self.title, "results": self.results}))


def program(code, *arguments, timeout=None, **more):
    """What a program in a process of its own prints last, as JSON. more: of its environment."""
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def cpu():
    """Seconds of this process, and of those that it started and that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def resident_mb():
    """Memory of this process that is really there, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
