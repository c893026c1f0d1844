"""The figures of the structure have not passed their marks; that a change of the structure changes them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import figures
from tests.house.figures import circles, marks, static_figures, too_large, write_marks


@pytest.mark.slow
def test_no_figure_has_passed_its_mark(checkout: Path) -> None:
    """In a process of its own: no thread of another test is traced."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.house.figures"], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(marks())


def test_the_page_has_every_figure() -> None:
    traced = {name for name in marks() if " batch: " in name}
    assert marks().keys() - traced == static_figures().keys()
    assert traced == figures.traced_figures({"first": {}, "warm": {}, "kernels": {}}).keys()
    assert all(mark >= wanted for wanted, mark in marks().values())


def test_what_grows_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: mark for name, (_, mark) in marks().items()}
    assert too_large(found) == []
    found["circles of imports"] += 1
    found["top folder: entries"] = 3
    assert [line.split(":")[0] for line in too_large(found)] == ["circles of imports"]
    page = tmp_path / "page.md"
    page.write_bytes(figures.PAGE.read_bytes())
    monkeypatch.setattr(figures, "PAGE", page)
    write_marks(found)
    assert too_large(found) == []
    assert marks()["circles of imports"][1] == found["circles of imports"]
    assert marks()["top folder: entries"] == (14, 14)


def test_what_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tree of a few lines that has one of everything."""
    files = {
        "conceptloader/__init__.py": "",
        "conceptloader/a.py": "def f():\n    from conceptloader.c import b\n",
        "conceptloader/c/__init__.py": "",
        "conceptloader/c/b.py": "from .. import a\nimport conceptloader.c\n",
        "conceptloader/d.py": "def f():\n    import_module('conceptloader.e').f(import_module(f.__name__))\n",
        "conceptloader/e.py": "from conceptloader.d import f\n",
        "conceptloader/g.py": "import_module(f'conceptloader.{word}h', __name__)\n",
        "conceptloader/h.py": "import conceptloader.g\nimport_module(f'{package}.g')\n",
        "conceptloader/kernels/k.py": "A, B, END = numbered(3)\nOK, BAD = numbered(2)\n\n\n@inner\ndef g(x, y, *, z):\n"
        "    return x[0, B] if OK else BAD\n\n\n@inlined\ndef h(x):\n    pass\n\n\ndef i(a, b, c, d):\n    pass\n",
        "integrations/megatron_lm/__init__.py": "",
        "integrations/megatron_lm/data.py": "\n\n",
        "integrations/nanotron_lm/data.py": "\n",
        "tests/data.bin": "",
        "tests/test_a.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    figures.product_files.cache_clear()
    try:
        found = static_figures()
        pairs = [["a", "c.b"], ["d", "e"], ["g", "h"]]
        assert circles(figures.imports()) == [[f"conceptloader.{name}" for name in pair] for pair in pairs]
    finally:
        figures.product_files.cache_clear()
    assert found == {
        "widest kernel function: parameters": 3,
        "widest helper that is inlined: parameters": 1,
        "constants that number columns": 3,
        "largest folder: entries": 1,
        "top folder: entries": 7,
        "modules of megatron_lm": 1,
        "modules of nanotron_lm": 1,
        "longest module of those two: lines": 2,
        "circles of imports": 3,
        "data files of tests": 1,
    }
