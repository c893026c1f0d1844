"""docs/versions.md, made from the results of tests.versions.run.

python -m tests.versions.page            fails unless the page is what the results say
python -m tests.versions.page --write    writes it
"""

import json
import sys
from itertools import groupby

from tests.versions.environments import environments
from tests.versions.run import RESULTS, ROOT

PAGE = ROOT / "docs" / "versions.md"
HEAD = """# Tested versions

Each row is one environment, with the results of its tests ([a file per row](../tests/versions/results)). *not run*:
there is no result, or a test was skipped. `make trainers NAMES="lightning trl"` creates these environments, runs their
tests again and writes this page; without `NAMES`, all. Checkouts of Megatron-LM, nanotron and torchtitan are taken from
the folder `CONCEPTLOADER_CHECKOUTS`.

With a newer trainer than the known ones, conceptloader logs one warning that names the versions, and runs. Adapters
that patch a trainer raise an error if a line that they rely on is missing. The package's extras begin at the oldest
version that should work, and exclude the next major one.
"""


def result_of(environment, folder=RESULTS):
    path = folder / f"{environment.name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def outcome_of(result):
    """What is shown of a result."""
    if result is None:
        return "not run"
    names = {"failed": "failed", "passed": "passed", "skipped": "not run"}
    return ", ".join(f"{result[key]} {said}" for key, said in names.items() if result[key]) or "not run"


def row(environment, result):
    found = result or {"python": environment.python, "packages": {}, "date": "", "conceptloader": ""}
    pins = [pin for pin in environment.packages if pin.partition("==")[0] == environment.package]
    version = environment.version or found.get("version") or "".join(pins).partition("==")[2] or "newest"
    beside = [f"{name} {found['packages'][name]}" for name in ("numpy", "torch") if name in found["packages"]]
    cells = [environment.component, version, found["python"], ", ".join(beside), outcome_of(result), found["date"]]
    return f"| {' | '.join([*cells, found['conceptloader'], environment.note])} |"


def page(folder=RESULTS):
    text = HEAD
    for group, members in groupby(environments(), lambda each: each.group):
        text += f"\n## {group}\n\n| package | version | Python | with | tests | date | conceptloader | notes |\n"
        text += "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        text += "".join(f"{row(each, result_of(each, folder))}\n" for each in members)
    return text


def main():
    if "--write" in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("docs/versions.md is not what the results say: run `python -m tests.versions.page --write`")


if __name__ == "__main__":
    main()
