"""Figures of one run of the benchmarks, written into the pages: python benchmarks/figures.py [--check]

Blocks between `<!-- bench:NAME -->` and `<!-- /bench -->` of README.md and docs/ are made of bench-output/results.json,
so that no figure stands in two places with two values. What is written by hand stands outside of them.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/performance.md"]
BLOCK = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
US = "conceptloader"
SHOWN = (  # rows of docs/performance.md: what a user does, next to what others take for it
    "mixture: 64 datasets", "reads: warm, batches of 16", "metadata: warm, batches of 16",
    "loader: batch 16, one process", "start: first batch", "scale: 1e15 tokens: first batch of a rank",
    "build: pre-tokenized documents of 700 tokens", "text: text to tokens, and others",
    "Megatron: configuration to first batch: 1e+08 samples, 4 datasets", "packing: a pack",
)  # fmt: skip
Result = dict[str, Any]


class Figures:
    """Results of one run, looked up by report, row and contender."""

    def __init__(self, results):
        self.machine = results["machine"]
        self.reports = results["reports"]

    def one(self, title, row, name):
        """The only result of this report, row and contender."""
        found = [
            result
            for report in self.reports
            for result in report["results"]
            if (report["title"], result["row"], result["name"]) == (title, row, name)
        ]
        if len(found) != 1:
            sys.exit(f"results.json: expected one result of {title!r}, {row!r}, {name!r}, found {len(found)}")
        return found[0]

    def claims(self):
        """The table of the README."""
        start, row = "Megatron: configuration to first batch", "1e+08 samples, 4 datasets"
        names = US, "in place", "megatron-core", "megatron-core, warm"
        ours, place, theirs, warm = (number(self.one(start, row, name)["median"]) for name in names)
        memory = [number(self.one(start, row, f"{name}, memory")["median"]) for name in (US, "megatron-core")]
        return (
            "| | Megatron's datasets | conceptloader |\n| --- | --- | --- |\n"
            "| change the blend of a running job | new index, other samples | at any sample; the past stays |\n"
            "| which documents had step N, which steps have document X | no | "
            "`trace`, `locate`, `query`, also for future steps |\n"
            "| labels on spans of tokens in the batch | no | tensors next to `input_ids` |\n"
            "| 10^8 samples, 4 datasets: seconds and memory to the first batch, with no index yet; with a cached one | "
            f"{theirs} s, {memory[1]} MB; {warm} s | {ours} s from a YAML of adopted files, "
            f"{place} s with files in place, {memory[0]} MB; no index, at every launch the same |\n"
        )

    def table(self):
        """The rows of SHOWN: what is beside conceptloader is a multiple of its figure."""
        lines = ["| work | conceptloader | others |", "| --- | --- | --- |"]
        for report in self.reports:
            rows = {}
            for result in report["results"]:
                if result["ratio"]:
                    rows.setdefault(result["row"], {})[result["name"]] = result
            for row, found in rows.items():
                ours = found.pop(US)
                names = {name: name.removeprefix(f"{US}, ") for name in found}
                beside = "; ".join(f"{names[name]} {number(one['ratio'])}x" for name, one in found.items())
                if beside and f"{report['title']}: {row}" in SHOWN:
                    spread = f"{number(ours['median'])} {ours['unit']} ({number(ours['low'])}-{number(ours['high'])})"
                    lines.append(f"| {report['title']}: {row} | {spread} | {beside} |")
        return "\n".join(lines) + "\n"

    def machine_line(self):
        """Where and when all of it was measured."""
        versions = ", ".join(f"{name} {version}" for name, version in self.machine["versions"].items())
        return (
            f"{self.machine['date']}; {self.machine['cores']} cores of {self.machine['processor']}, Python "
            f"{self.machine['python']}; {versions}.\n"
        )

    def block(self, name):
        return {"claims": self.claims, "table": self.table, "machine": self.machine_line}[name]()


def number(value):
    """Two digits, since a third of them is the machine's mood."""
    digits = float(f"{value:.2g}")
    return f"{digits:,.0f}" if digits >= 10 else f"{digits:g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "bench-output/results.json")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a page says something else")
    options = parser.parse_args()
    figures = Figures(json.loads(options.results.read_text()))
    stale = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        new = BLOCK.sub(lambda match: match[1] + figures.block(match[2]) + match[3], text)
        if new != text:
            stale.append(page)
            if not options.check:
                (ROOT / page).write_text(new, "utf-8")
    print("changed:" if not options.check else "stale:", ", ".join(stale) or "nothing")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
