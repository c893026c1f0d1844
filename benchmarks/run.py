"""All benchmarks: python benchmarks/run.py [name ...]. Tables on stderr; results and a picture in bench-output/."""

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
    "shuffle",
    "mixture",
    "reads",
    "metadata",
    "columns",
    "loader",
    "step",
    "startup",
    "scale",
    "size",
    "build",
    "text",
    "annotate",
    "bulk",
    "megatron_startup",
    "packing",
]


def draw(reports: list[dict], path: Path) -> None:
    """One panel a row with a peer in it: how many times our time each contender takes, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows: dict[str, list[dict]] = {}
    for report in reports:
        for result in report["results"]:
            if result["ratio"]:
                rows.setdefault(f"{report['title']}: {result['row']} [{result['unit']}]", []).append(result)
    rows = {title: found for title, found in rows.items() if len(found) > 1}
    figure, axes = plt.subplots(len(rows), 1, figsize=(9, 1.1 + sum(0.35 * len(r) + 0.7 for r in rows.values())),
                                height_ratios=[len(r) + 1 for r in rows.values()], squeeze=False)  # fmt: skip
    for axis, (title, found) in zip(axes[:, 0], rows.items(), strict=True):
        names = [result["name"] for result in found]
        colours = ["tab:green" if name.startswith("conceptloader") else "tab:gray" for name in names]
        axis.barh(names, [result["median"] for result in found], color=colours)
        axis.set_xscale("log")
        axis.invert_yaxis()
        axis.set_title(title, loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
        for k, result in enumerate(found):
            axis.text(
                result["median"], k, f" {result['median']:,.3g}  ({result['ratio']:,.3g}x)", va="center", fontsize=7
            )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def processor() -> str:
    """What the system calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> dict[str, str]:
    """Of this package, of what it needs and of its baselines."""
    found = {}
    for name in ("conceptloader", "numpy", "torch", "megatron-core", "grain", "datatrove", "litdata", "ai2-olmo-core"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found


def main(names: list[str]) -> int:
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
    draw(reports, OUTPUT / "results.png")
    print(f"results: {OUTPUT / 'results.json'}, {OUTPUT / 'results.png'}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
