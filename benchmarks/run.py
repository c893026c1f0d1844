"""All benchmarks: python benchmarks/run.py [name ...]. Tables on stderr; results in bench-output/results.json."""

import json
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
OUTPUT = HERE.parent / "bench-output"
ALL = "loader", "startup", "build", "text", "megatron", "packing"


def machine():
    """What it was measured on, with versions of this package, of what it needs and of its baselines."""
    versions = {}
    for name in ("conceptloader", "numpy", "torch", "megatron-core", "grain", "datatrove", "litdata", "ai2-olmo-core"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name).partition("+")[0]
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "processor": re.search("model name.*: (.*)", Path("/proc/cpuinfo").read_text())[1],
        "cores": os.cpu_count(),
        "versions": versions,
    }


def main(names):
    OUTPUT.mkdir(exist_ok=True)
    reports, failed = [], []
    for name in names or ALL:
        environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, HERE / f"bench_{name}.py"]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
        if run.returncode:
            failed.append(name)
        else:
            reports.append(json.loads(run.stdout.splitlines()[-1]))
    (OUTPUT / "results.json").write_text(json.dumps({"machine": machine(), "reports": reports}, indent=1))
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
