"""Fair timing: all contenders of a row run in turn, several times, in one process; medians, spread and ratios."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

US = "conceptloader"


@dataclass
class Contender:
    """One line of a row. `run` does `units` units of work per call."""

    name: str
    run: Callable[[], object]
    units: int
    wall: bool = False  # wall-clock time, for what threads or a disk do; else CPU time, processes that ended included


@dataclass
class Result:
    row: str
    name: str
    unit: str
    median: float
    low: float
    high: float
    ratio: float = 0.0  # how many times our time this is; below 1 is faster than us


@dataclass
class Report:
    """Collects results, prints them as tables on stderr and, at the end, as JSON on stdout."""

    title: str
    results: list[Result] = field(default_factory=list)

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
        ours = statistics.median(times[US])
        print(f"\n{self.title}: {row}", file=sys.stderr)
        for name, values in times.items():
            median = statistics.median(values)
            result = Result(row, name, unit, median, min(values), max(values), median / ours if ours else 0.0)
            self.results.append(result)
            spread = f"{result.low:,.4g} to {result.high:,.4g}"
            print(f"  {name:<34} {median:>12,.4g} {unit:<12} ({spread:<24}) {result.ratio:>10,.3g}x", file=sys.stderr)

    def fact(self, row, name, value, unit):
        """A figure that is not a time: bytes, deviations, counts."""
        self.results.append(Result(row, name, unit, value, value, value))
        print(f"  {row}: {name}: {value:,.5g} {unit}", file=sys.stderr)

    def finish(self):
        print(json.dumps({"title": self.title, "results": [asdict(result) for result in self.results]}))


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


def own_mb():
    """Memory that is this process's alone: without files that it maps, in MB."""
    with open("/proc/self/statm") as file:
        _, resident, shared = map(int, file.read().split()[:3])
    return (resident - shared) * os.sysconf("SC_PAGESIZE") / 1e6


def resident_mb():
    """Memory of this process that is really there, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
