"""The documentation's code works: ```python runs, ```bash runs commands of ours, ```console also compares their output.

The blocks of a page run in order, in one namespace, one temporary directory and this process. Other languages are not
run. After `<!-- needs: PACKAGE -->` a new part begins, with a namespace and a directory of its own, in a fork: trainers
set up a process for good. A part whose package is missing is skipped. `<!-- run: FILE -->` runs a script there.

In a `console` block a line that begins with "$ " is a command, the lines below it are all that it prints: its results,
and what it says on stderr if it fails. "..." in a line stands for any text, on a line of its own for any lines.
"""

import contextlib
import io
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
NEEDS = re.compile(r"^<!-- needs: (\w+) -->$", re.MULTILINE)
SCRIPT = re.compile(r"^<!-- run: (\S+) -->$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    line: int
    code: str


class Part(NamedTuple):
    page: Path
    needs: str
    blocks: list[Block]


def blocks(text, line=0):
    """The blocks that are to be run. `line` is that of the first line of code, counted from 1."""
    found = [Block(m[1], line + text.count("\n", 0, m.start(2)) + 1, m[2]) for m in FENCE.finditer(text)]
    start = {"bash": "conceptloader ", "console": "$ conceptloader ", "python": ""}
    found = [one for one in found if one.language in start and one.code.startswith(start[one.language])]
    for m in SCRIPT.finditer(text):
        code = f"__import__('runpy').run_path({str(ROOT / m[1])!r}, run_name='__main__')"
        found.append(Block("python", line + text.count("\n", 0, m.start()) + 1, code))
    return sorted(found, key=lambda one: one.line)


def parts(page):
    text, found, begin, needs = page.read_text("utf-8"), [], 0, ""
    for mark in [*NEEDS.finditer(text), None]:
        end = mark.start() if mark else len(text)
        found.append(Part(page, needs, blocks(text[begin:end], text.count("\n", 0, begin))))
        begin, needs = end, mark[1] if mark else ""
    return [part for part in found if part.blocks]


def everything():
    return [part for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))] for part in parts(page)]


@pytest.mark.parametrize("part", everything(), ids=lambda p: f"{p.page.relative_to(ROOT)} {p.needs}".strip())
def test_page(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not part.needs:
        run(part)
        return
    if find_spec(part.needs) is None:
        pytest.skip(f"{part.needs} is not installed: `make test-trainers` or `make trainers` has it")
    assert child(lambda: run(part))


def run(part):
    """In the current directory. Returns the part's names."""
    namespace = {"__name__": "__main__"}
    for block in part.blocks:
        if block.language == "python":
            # Blank lines in front, so that a traceback names the line of the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(part.page), "exec"), namespace)
            continue
        for line, command, shown in commands(block):
            where = f"{part.page}:{line}"
            name, *words = shlex.split(command, comments=True)
            assert name == "conceptloader", f"{where}: a block has commands of this package alone"
            if shown is None:
                assert main(words) == 0, where
                continue
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                code = main(words)
            found = out.getvalue() + err.getvalue() * bool(code)
            assert matches(shown, found), f"{where}: prints\n{found}"
    return namespace


def commands(block):
    """Each command with its line, and in a `console` block with what it prints."""
    if block.language == "bash":
        yield from ((number, line, None) for number, line in enumerate(block.code.splitlines(), block.line))
        return
    for found in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.code, re.MULTILINE):
        yield block.line + block.code.count("\n", 0, found.start()), found[1], found[2]


def matches(shown, found):
    lines = [re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in shown.rstrip().splitlines()]
    pattern = "".join("(?:.*\n)*" if line == ".*\n" else line for line in lines)
    return re.fullmatch(pattern, re.sub(" +$", "", found.rstrip() + "\n", flags=re.MULTILINE)) is not None


def test_what_is_shown_is_compared():
    assert matches("a ... c\n", "a b c\n")
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("...\nd\n", "d\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a ... c\n", "a\nc\n")
