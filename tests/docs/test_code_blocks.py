"""The documentation's code works: every ```python block runs, and so does every ```bash block of our own commands.

The blocks of a file run in order, in one namespace, one temporary directory and this process. Other languages are not
run.
"""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from conceptloader.cli import main
from tests.soak.builds import child

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    line: int
    code: str


def blocks(text: str) -> list[Block]:
    """The blocks that are to be run. `line` is that of the first line of code, counted from 1."""
    found = [Block(m[1], text.count("\n", 0, m.start(2)) + 1, m[2]) for m in FENCE.finditer(text)]
    return [
        b for b in found if b.language == "python" or (b.language == "bash" and b.code.startswith("conceptloader "))
    ]


# Trainers set up a process for good: each gets a fork of this one, which has their imports.
OF_TRAINERS = {
    "lightning.md": "lightning",
    "transformers.md": "transformers",
    "accelerate.md": "accelerate",
    "olmo.md": "olmo_core",
    "jax.md": "jax",
}


def pages() -> list[Path]:
    return [p for p in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] if blocks(p.read_text("utf-8"))]


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page.name not in OF_TRAINERS:
        run_page(page)
        return
    if find_spec(OF_TRAINERS[page.name]) is None:
        pytest.skip(f"{OF_TRAINERS[page.name]} is not installed: `make trainers` has all of them")
    assert child(lambda: run_page(page))


def run_page(page: Path) -> dict[str, object]:
    """In the current directory. Returns the page's names."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text("utf-8")):
        if block.language == "python":
            # Blank lines in front, so that a traceback names the line of the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), namespace)
            continue
        for number, line in enumerate(block.code.splitlines(), block.line):
            name, *words = shlex.split(line, comments=True)
            assert name == "conceptloader", f"{page}:{number}: a block has commands of this package alone"
            assert main(words) == 0, f"{page}:{number}"
    return namespace
