"""Where this repository is published: one address, ADDRESS in setup.py, which pages repeat.

python -m tests.packaging.address URL             writes another one, here and in all pages
python -m tests.packaging.address --require URL   fails unless it is this one
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = (
    "setup.py",
    "README.md",
    "SECURITY.md",
    "CITATION.cff",
    "docs/troubleshooting.md",
    "conceptloader/base/version.py",
)


def address():
    (found,) = re.findall(r'^ADDRESS = "(.+)"$', (ROOT / "setup.py").read_text("utf-8"), re.M)
    return str(found)


def main():
    before, given = address(), sys.argv[-1].rstrip("/")
    if "--require" in sys.argv and given != before:
        sys.exit(
            f"setup.py has the address {before}, expected {given}: run `python -m tests.packaging.address {given}`"
        )
    for name in NAMED:
        path = ROOT / name
        path.write_text(path.read_text("utf-8").replace(before, given), "utf-8")


if __name__ == "__main__":
    main()
