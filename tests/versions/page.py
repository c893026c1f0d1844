"""docs/versions.md, made from the results of tests.versions.run.

python -m tests.versions.page            fails unless the page is what the results say
python -m tests.versions.page --write    writes it
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.versions.environments import Environment, environments
from tests.versions.run import RESULTS, ROOT

PAGE = ROOT / "docs" / "versions.md"
HEAD = """# Tested versions

Made by `python -m tests.versions.page --write` from results of tests ([a file each](../tests/versions/results), which
names the tests); nobody edits it. *not run*: there is no result, or a test was skipped. `make trainers` makes the
environments and runs the tests again, `make trainers NAMES="lightning trl"` some of them. Checkouts of Megatron-LM,
nanotron and torchtitan are taken from `CONCEPTLOADER_CHECKOUTS=`, a folder.

The extras of the package begin at the oldest version that is meant to work, and end before the next major one. A
trainer newer than those that are known logs one warning that names both; none is refused for its number. Adapters that
patch look for the lines that they rely on, and raise where one is missing.
"""


def result_of(environment: Environment, folder: Path = RESULTS) -> dict[str, Any] | None:
    path = folder / f"{environment.name}.json"
    return json.loads(path.read_text()) if path.exists() else None  # type: ignore[no-any-return]


def outcome_of(result: dict[str, Any] | None) -> str:
    """What is shown of a result."""
    if result is None:
        return "not run"
    names = {"failed": "failed", "passed": "passed", "skipped": "not run"}
    return ", ".join(f"{result[key]} {said}" for key, said in names.items() if result[key]) or "not run"


def row(environment: Environment, result: dict[str, Any] | None) -> str:
    found = result or {"python": environment.python, "packages": {}, "date": "", "conceptloader": ""}
    pins = [pin for pin in environment.packages if pin.partition("==")[0] == environment.package]
    version = environment.version or found.get("version") or "".join(pins).partition("==")[2] or "newest"
    beside = [f"{name} {found['packages'][name]}" for name in ("numpy", "torch") if name in found["packages"]]
    cells = [environment.component, version, found["python"], ", ".join(beside), outcome_of(result), found["date"]]
    return f"| {' | '.join([*cells, found['conceptloader'], environment.note])} |"


def page(folder: Path = RESULTS) -> str:
    text = HEAD
    for group, members in groupby(environments(), lambda each: each.group):
        text += f"\n## {group}\n\n| | version | Python | with | tests | on | conceptloader | |\n"
        text += "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        text += "".join(f"{row(each, result_of(each, folder))}\n" for each in members)
    return text


def main() -> None:
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/versions.md is not what the results say: run `python -m tests.versions.page --write`")


if __name__ == "__main__":
    main()
