"""The threat model names a test for each of its lines, and each of these tests is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "design/threat-model.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| what could"))
]


@cache
def _tests_of(file):
    tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_line_has_tests_that_exist(row):
    assert len(row) == 3
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row[2])
    assert len(named) == len(row[2].split(", "))
    for file, test in named:
        assert test in _tests_of(file), f"{file}::{test}"


def test_the_page_is_linked():
    assert len(ROWS) > 20
    assert "threat-model.md" in (ROOT / "SECURITY.md").read_text("utf-8")
    assert "threat-model.md" in (ROOT / "docs/reliability.md").read_text("utf-8")
