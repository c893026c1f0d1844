"""The tool that counts mutants: what it changes, that its table fits the tree."""

import ast
import random
from pathlib import Path

import pytest

from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.run import ROOT, candidates, equivalents
from tests.mutants.table import concerning

SOURCE = '''\
"""Doc - string 1."""
__all__ = ["a" + "b"]
def f(x: int = 1, *, y: "a - b" = 0.5) -> list[3]:
    if x < 2 and not y:  # 1 + 1
        x += y
    text = f"{x - 1}"
    return [z for z in (x,) if ok(z)] if x is None else -x << 0x10
'''
EXPECTED = {
    "def f(x: int = 2", "def f(x: int = 0", '= 1.5)', "= (-0.5))", "if x <= 2", "if x >= 2", "if x < 3", "if x < 1",
    "2 or not y", "and  y:", "if (not (x < 2 and not y)):", "x -= y", "if (not (ok(z)))]", "if x is not None",
    "else x <<", "-x >> 0x10", "<< 0x11", "<< 0xf",
}  # fmt: skip


def test_what_is_changed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    found = mutants_of(tmp_path, "a.py")
    changed = [mutant.apply(SOURCE.encode()).decode() for mutant in found]
    assert len(set(changed)) == len(found) == len(EXPECTED)
    for text in changed:
        ast.parse(text)
        assert sum(part in text for part in EXPECTED - {p for p in EXPECTED if p in SOURCE}) == 1, text
    lines = SOURCE.splitlines()
    for mutant in found:
        before, after = mutant.before_and_after(SOURCE.encode())
        assert before == " ".join(lines[mutant.line - 1].split())
        assert before != after


@pytest.fixture(scope="module")
def every() -> list[Mutant]:
    return candidates([])


def test_mutants_are_python(every: list[Mutant]) -> None:
    for mutant in random.Random(0).sample(every, 100):
        ast.parse(mutant.apply((ROOT / mutant.path).read_bytes()))


def test_every_module_has_tests(every: list[Mutant]) -> None:
    assert len(every) > 5000
    for path in {mutant.path for mutant in every}:
        assert [test for test in concerning(path) if not (ROOT / test).exists()] == [], path


def test_equivalents_are_mutants(every: list[Mutant]) -> None:
    """An entry whose line has changed is looked at again."""
    sources = {mutant.path: (ROOT / mutant.path).read_bytes() for mutant in every}
    listed = equivalents()
    paths = {path for path, _, _ in listed}
    made = {(m.path, *m.before_and_after(sources[m.path])) for m in every if m.path in paths}
    assert set(listed) - made == set()
    assert all(listed.values()), "each with its reason"
