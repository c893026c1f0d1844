"""Figures of one run of the benchmarks, written into the pages: python benchmarks/figures.py

Blocks between `<!-- bench:NAME -->` and `<!-- /bench -->` of README.md and docs/ are made of bench-output/results.json,
so that no figure stands in two places with two values. What is written by hand stands outside of them.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
US = "conceptloader"
MEGATRON, START = "Megatron", "configuration to first batch: 1e8 samples, 4 datasets"
MEMORY = START.replace("configuration to first batch", "memory")
SHOWN = (  # rows of docs/performance.md: what a user does, next to what others take for it
    "loader: a window, wall clock", "loader: a window, CPU time", "loader: a window with metadata, CPU time",
    "loader: added to a step of 12.6 ms", "start: first batch", "start: growth of resident memory",
    "build: pre-tokenized documents of 700 tokens", "text: text to tokens, and others", f"{MEGATRON}: {START}",
    "packing: a pack",
)  # fmt: skip
ABSOLUTE = "ms a step"  # unit of what may be nothing, or less: no multiples of it


def claims(reports):
    """The table of the README."""
    found = {(result["row"], result["name"]): number(result["median"]) for result in reports[MEGATRON]}
    names = US, "in place", "megatron-core", "megatron-core, warm"
    ours, place, theirs, warm = (found[START, name] for name in names)
    our_memory, their_memory = (found[MEMORY, name] for name in (US, "megatron-core"))
    return (
        "| | Megatron's datasets | conceptloader |\n| --- | --- | --- |\n"
        "| change the blend of a running job | new index, other samples | at any sample; the past stays |\n"
        "| which documents had step N, which steps have document X | no | "
        "`trace`, `locate`, `query`, also for future steps |\n"
        "| labels on spans of tokens in the batch | no | tensors next to `input_ids` |\n"
        "| 10^8 samples, 4 datasets: to the first batch, with no index yet | "
        f"{theirs} s, {their_memory} MB | {ours} s from a YAML of adopted files, {place} s with files in place; "
        f"{our_memory} MB |\n"
        f"| with a cached index | {warm} s | the same: there is no index |\n"
    )


def table(reports):
    """The rows of SHOWN: what is beside conceptloader is a multiple of its figure."""
    lines = ["| work | conceptloader | others |", "| --- | --- | --- |"]
    for row in SHOWN:
        title, _, name = row.partition(": ")
        found = {result["name"]: result for result in reports[title] if result["row"] == name}
        ours = measured(found.pop(US))
        beside = "; ".join(f"{name.removeprefix(f'{US}, ')} {compared(one)}" for name, one in found.items())
        lines.append(f"| {row} | {ours} | {beside} |")
    return "\n".join(lines) + "\n"


def machine_line(machine):
    """Where and when all of it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    cores = f"{machine['cores']} cores of {machine['processor']}"
    return f"{machine['date']}; {cores}, Python {machine['python']}; {versions}.\n"


def number(value):
    """Two digits, since a third of them is the machine's mood."""
    digits = float(f"{value:.2g}")
    return f"{digits:,.0f}" if digits >= 10 else f"{digits:g}"


def measured(result):
    return f"{number(result['median'])} {result['unit']} ({number(result['low'])} to {number(result['high'])})"


def compared(result):
    return measured(result) if result["unit"] == ABSOLUTE else f"{number(result['ratio'])}x"


if __name__ == "__main__":
    results = json.loads((ROOT / "bench-output/results.json").read_text())
    reports = {report["title"]: report["results"] for report in results["reports"]}
    blocks = {"claims": claims(reports), "table": table(reports), "machine": machine_line(results["machine"])}
    for page in (ROOT / "README.md", ROOT / "docs/performance.md"):
        page.write_text(
            BLOCK.sub(lambda match: match[1] + blocks[match[2]] + match[3], page.read_text("utf-8")), "utf-8"
        )
