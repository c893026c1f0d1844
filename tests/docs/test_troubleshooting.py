"""docs/troubleshooting.md: an entry for each error code, to which commands point."""

import ast
import re
from pathlib import Path

import pytest

from conceptloader import errors
from conceptloader.base.version import PAGES
from conceptloader.cli import main
from conceptloader.errors import ConceptloaderError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
ENTRIES = dict(re.findall(r"^### (\w+)\n\n(.+)$", PAGE, re.M))


def kinds():
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ConceptloaderError)]


def own_codes():
    """Those that single errors have, in place of their class's."""
    found = set()
    for path in [*ROOT.glob("conceptloader/**/*.py"), *ROOT.glob("integrations/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                found.add(str(node.value.value))
    return found - {""}


def test_every_code_has_an_entry():
    assert own_codes() >= {"unknown", "package"}
    assert set(ENTRIES) == {kind.CODE for kind in kinds()} | own_codes()


@pytest.mark.parametrize("kind", kinds())
def test_the_entry_names_the_class(kind):
    if kind is not ConceptloaderError:
        assert f"`{kind.__name__}`" in ENTRIES[kind.CODE]
    else:
        assert "base class" in ENTRIES[kind.CODE]


@pytest.mark.parametrize(("command", "code"), [("verify nowhere", "config"), ("verify corrupt", "format")])
def test_a_command_points_to_the_entry(command, code, tmp_path, monkeypatch, capsys):
    (tmp_path / "corrupt").mkdir()
    (tmp_path / "corrupt" / "manifest.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--verbose"]) != 0
    assert capsys.readouterr().err.splitlines()[-1] == f"  see {PAGES}/troubleshooting.md#{code}"
    assert code in ENTRIES
    assert main(command.split()) != 0
    assert "troubleshooting" not in capsys.readouterr().err
