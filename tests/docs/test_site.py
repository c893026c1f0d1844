"""The site of the pages: no warning, every public name with its docstring, nothing loaded from elsewhere."""

import ast
import html
import os
import re
import subprocess
import sys
from inspect import ismodule
from pathlib import Path

import pytest

import conceptloader as cl
from tests.packaging.address import address

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)


def mkdocs(checkout, target):
    """The command of `make docs`."""
    [options] = re.findall(r"mkdocs build (.*)$", (ROOT / "Makefile").read_text(), re.M)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options.split(), "-d", str(target)], cwd=checkout, text=True,
        capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    done = mkdocs(ROOT, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize("link", ["no-such-page.md", "#no-such-section"])
def test_a_link_to_nowhere_is_an_error(tmp_path, link):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"[gone]({link})\n")
    settings = re.search(r"^validation:\n(?: .*\n)+", (ROOT / "mkdocs.yml").read_text(), re.M)
    (tmp_path / "mkdocs.yml").write_text("site_name: s\n" + (settings[0] if settings else ""))
    done = mkdocs(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert link in done.stderr


def test_every_page_is_in_the_menu(site):
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in ROOT.glob("docs/**/*.md"):
        assert f"{page.relative_to(ROOT / 'docs')}\n" in menu


def test_the_start_page_links_every_page():
    start = (ROOT / "docs/README.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")} - {"README.md"}
    assert pages - set(re.findall(r"\]\(([\w/-]+\.md)\)", start)) == set()


@pytest.fixture(scope="module")
def chapters(site):
    """The pages of the reference: what is in their articles."""
    found = {page.stem: page.read_text() for page in site.glob("reference/*.html")}
    return {name: page[page.index("<article") : page.index("</article")] for name, page in found.items()}


def shown(chapters):
    """What has a heading of its own there."""
    return [name for page in chapters.values() for name in re.findall(r'<h\d id="([\w.]+\.\w+)"', page)]


def test_every_public_name_is_explained_once(chapters):
    modules = {name for name in cl.__all__ if ismodule(getattr(cl, name))}
    public = {f"{cl._PUBLIC[name]}.{name}" for name in cl.__all__ if name not in {*modules, "__version__"}}
    for name in modules:
        public |= {f"{getattr(getattr(cl, name), one).__module__}.{one}" for one in getattr(cl, name).__all__}
    own = {name.removeprefix("conceptloader.") for name in public}
    headings = [name.removeprefix("conceptloader.") for name in shown(chapters)]
    assert own <= set(headings)
    assert sorted(set(headings)) == sorted(headings)
    assert "Raises:" in chapters["loading"]


@pytest.mark.parametrize("adapter", [path.parent.name for path in ROOT.glob("integrations/*/__init__.py")])
def test_adapters_are_in_the_reference(chapters, adapter):
    """Also those whose framework is not installed here."""
    text = (ROOT / "integrations" / adapter / "__init__.py").read_text()
    given = re.search(r"__all__ = \[(.+)\]", text) or re.search(r"_NAMES = \{(.+?)\}", text, re.S)
    names = re.findall(r"\b[A-Z]\w+", given[1]) if given else []
    explained = re.findall(rf'id="integrations\.{adapter}\.\w+\.(\w+)"', chapters["trainers"])
    assert f"conceptloader.integrations.{adapter}<" in chapters["trainers"]
    assert explained
    assert set(names) <= set(explained)


def test_the_loader_stands_first_with_its_arguments_and_methods(chapters):
    first = re.findall(r'<h3 id="[\w.]*?(\w+)"', chapters["loading"])
    assert first[:2] == ["make_dataloader", "Loader"]
    loader = chapters["loading"].partition('.Loader" class')[2].partition('.TensorBatch" class')[0]
    for name in ("micro_batch_size", "check_ranks", "state_dict", "set_weights", "log_start"):
        assert name in loader


def test_the_reference_names_only_what_is_explained(chapters):
    """No class that is not public, and no file: a reader has pages, not the source."""
    sources = [*ROOT.glob("conceptloader/**/*.py"), *ROOT.glob("integrations/**/*.py")]
    trees = [ast.walk(ast.parse(path.read_text())) for path in sources]
    own = {node.name for tree in trees for node in tree if isinstance(node, ast.ClassDef)}
    public = {name.rpartition(".")[2] for name in shown(chapters)}
    words = {name for name in own - public if re.search("[a-z][A-Z]", name)}  # others are words of English, too
    for name, page in chapters.items():
        types = (
            r'<div class="doc-signature.*?</div>|<pre.*?</pre>|<code><.*?</code>|<p class="doc doc-class-bases">.*?</p>'
        )
        text = re.sub(types, "", page, flags=re.S)
        text = html.unescape(re.sub("<[^>]+>", "", text))
        assert set(re.findall(r"\w+", text)) & words == set(), name
        assert re.findall(r"\b\w+/\w+\.py\b", text) == [], name


def test_each_page_has_the_repository_and_the_version(site):
    for page in ("index.html", "trainers/lightning.html"):
        text = (site / page).read_text()
        (link,) = re.findall(r'<a href="([^"]+)"[^>]*class="md-source">', text.partition("<main")[0])[:1]
        assert link == address()
        assert f">conceptloader {cl.__version__}</div>" in text


def test_search_works_from_a_folder(site):
    from selenium.webdriver.support.ui import WebDriverWait

    from tests.view.browser import start_browser

    with start_browser() as browser:
        browser.get((site / "trainers" / "lightning.html").as_uri())
        browser.execute_script("document.querySelector('label[for=__search]').click()")
        browser.find_element("css selector", "input.md-search__input").send_keys("feistel")
        links = "css selector", "a.md-search-result__link"
        found = WebDriverWait(browser, 30, 0.2).until(lambda _: browser.find_elements(*links))
        assert any("order.html" in str(one.get_attribute("href")) for one in found)
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert [name for name in loaded if not name.startswith("file:")] == []


def test_nothing_comes_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="(\w+:|//)|<link[^>]+href="(https?:|//)', page.read_text())
        assert not loaded, page
