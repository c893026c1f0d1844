"""All benchmarks: python benchmarks/run.py [name ...]. Tables on stderr; results in bench-output/results.json."""

import json
import os
import platform
import subprocess
import sys
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "bench-output"
ALL = [
    "mixture",
    "reads",
    "metadata",
    "columns",
    "loader",
    "startup",
    "scale",
    "build",
    "text",
    "megatron_startup",
    "packing",
]


def processor():
    """What the system calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions():
    """Of this package, of what it needs and of its baselines."""
    found = {}
    for name in ("conceptloader", "numpy", "torch", "megatron-core", "grain", "datatrove", "litdata", "ai2-olmo-core"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found


def main(names):
    OUTPUT.mkdir(exist_ok=True)
    reports, failed = [], []
    for name in names or ALL:
        script = HERE / (f"{name}.py" if name == "megatron_startup" else f"bench_{name}.py")
        environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}", "PYTHONWARNINGS": "ignore"}
        run = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
        if run.returncode:
            failed.append(name)
            print(f"{script.name} failed with exit code {run.returncode}", file=sys.stderr)
            continue
        reports.append(json.loads(run.stdout.splitlines()[-1]))
    machine = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": versions(),
    }
    (OUTPUT / "results.json").write_text(json.dumps({"machine": machine, "reports": reports}, indent=1))
    print(f"results: {OUTPUT / 'results.json'}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
