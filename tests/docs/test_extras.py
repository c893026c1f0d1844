"""An extra that a page or a message names can be installed: setup.py has it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"\bextras? `([\w-]+)`|conceptloader\[([\w,-]+)\]")
FILES = [  # not CHANGELOG.md, which names those that are gone, too
    *ROOT.glob("README.md"), ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"),
    *ROOT.glob("conceptloader/**/*.py"), *ROOT.glob("integrations/**/*.py"),
]  # fmt: skip


def named(text):
    return {name for groups in NAMED.findall(text) for group in groups for name in group.split(",") if name}


def extras():
    """Those of setup.py, which is not run."""
    calls = ast.walk(ast.parse((ROOT / "setup.py").read_text("utf-8")))
    (given,) = (node.value for node in calls if isinstance(node, ast.keyword) and node.arg == "extras_require")
    assert isinstance(given, ast.Dict)
    return {str(key.value) for key in given.keys if isinstance(key, ast.Constant)}


def test_the_extras_that_are_named_can_be_installed():
    wrong = {str(file.relative_to(ROOT)): gone for file in FILES if (gone := named(file.read_text()) - extras())}
    assert wrong == {}
