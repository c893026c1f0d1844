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


FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)


def mkdocs(checkout: Path, target: Path) -> "subprocess.CompletedProcess[str]":
    """The command of `make docs`."""
    [options] = re.findall(r"mkdocs build (.*)$", (ROOT / "Makefile").read_text(), re.M)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options.split(), "-d", str(target)], cwd=checkout, text=True,
        capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = mkdocs(ROOT, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("link", ["no-such-page.md", "#no-such-section"])
def test_a_link_to_nowhere_is_an_error(tmp_path: Path, link: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"[gone]({link})\n")
    settings = re.search(r"^validation:\n(?: .*\n)+", (ROOT / "mkdocs.yml").read_text(), re.M)
    (tmp_path / "mkdocs.yml").write_text("site_name: s\n" + (settings[0] if settings else ""))
    done = mkdocs(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert link in done.stderr


def test_powers_are_code() -> None:
    """Two of them in a paragraph would be bold text: 2 to the 63 would be read as 263."""
    folders = ("", "docs/**/", "design/", "examples/**/")
    for page in (page for folder in folders for page in ROOT.glob(f"{folder}*.md")):
        prose = re.sub(r"(`+).+?\1", "", FENCE.sub("", page.read_text()), flags=re.S)
        for paragraph in re.split(r"\n\s*\n|\n(?=\||- )", re.sub(r"^    .*$", "", prose, flags=re.M)):
            assert len(re.findall(r"\w\*\*\w", paragraph)) < 2, (page, paragraph)


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
