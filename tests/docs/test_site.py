"""The site of the pages: no warning, every public name with its docstring, nothing loaded from elsewhere."""

import os
import re
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import pytest

import conceptloader as cl

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(target)], cwd=ROOT, text=True,
        capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in ROOT.glob("docs/**/*.md"):
        assert f"{page.relative_to(ROOT / 'docs')}\n" in menu


def test_every_public_name_is_explained(site: Path) -> None:
    page = (site / "reference.html").read_text()
    shown = set(re.findall(r'id="conceptloader\.[\w.]*?(\w+)"', page))
    modules = {name for name in cl.__all__ if ismodule(getattr(cl, name))}
    assert set(cl.__all__) - modules - {"__version__"} <= shown
    for module in modules:
        assert set(getattr(cl, module).__all__) <= shown
    assert "Raises: ConfigError" in page


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="(\w+:|//)|<link[^>]+href="(https?:|//)', page.read_text())
        assert not loaded, page
