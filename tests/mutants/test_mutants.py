"""The tool that counts mutants: what it changes, that its table fits the tree."""

import ast
import random

import pytest

from tests.mutants.run import ROOT, candidates, equivalents
from tests.mutants.table import concerning


@pytest.fixture(scope="module")
def every():
    return candidates([])


def test_mutants_are_python(every):
    for mutant in random.Random(0).sample(every, 100):
        ast.parse(mutant.apply((ROOT / mutant.path).read_bytes()))


def test_every_module_has_tests(every):
    assert len(every) > 5000
    for path in {mutant.path for mutant in every}:
        assert [test for test in concerning(path) if not (ROOT / test).exists()] == [], path


def test_equivalents_are_mutants(every):
    """An entry whose line has changed is looked at again."""
    sources = {mutant.path: (ROOT / mutant.path).read_bytes() for mutant in every}
    listed = equivalents()
    paths = {path for path, _, _ in listed}
    made = {(m.path, *m.before_and_after(sources[m.path])) for m in every if m.path in paths}
    assert set(listed) - made == set()
    assert all(listed.values()), "each with its reason"
