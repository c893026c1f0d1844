"""A corpus that wants to be more than text: nothing of it runs, and what cannot be seen is shown."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import conceptloader as cl
from conceptloader.trace import open_run
from conceptloader.viewer import show
from conceptloader.viewer.source import Looked
from tests.view.browser import Browser
from tests.view.conftest import build, log_start

MARKS = "\u202e\u2066\u200b\u2028\x1b[31m\x9b\x07\x7f\ufeff\U000e0041"
ATTACK = '"\'><script>window.hit=1</script><img src=x onerror="window.hit=2"><a href="javascript:window.hit=3">x</a>'
EVIL = f"{ATTACK}</title></style></textarea>{{{{7*7}}}}${{window.hit=4}}{MARKS}"
VIEWS = [
    "overview", "window?i=0", "window?i=1", "document?n=0", "concepts", "concepts?q=script", "concept?c=0", "stats",
    "mixture", "step?n=0", "damage", f"window?d={EVIL}", f"{EVIL}", f"concepts?q={EVIL}", f"document?id={EVIL}",
]  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose dataset, tracks' concepts, documents and texts are all of that kind, in a folder of that name."""
    folder = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=window.hit=5>\u202e"
    folder.mkdir()
    text = f"{EVIL} and more"
    rows = [{"id": EVIL, "text": text, "spans": [{"start": 0, "end": len(text), "concepts": [EVIL]}]}] * 20
    build(folder, "ds", rows, [EVIL, "plain"])
    name = EVIL.replace("@", "")
    config = {"seq_len": 128, "datasets": {name: {"path": "ds"}}, "tracks": {"concepts": {}}}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    (folder / "log").mkdir()
    log_start(folder / "run.yaml", folder / "log")
    return folder


@pytest.fixture(scope="module")
def page(hostile: Path, serve: Callable[[Looked], str]) -> str:
    log = str(hostile / "log")
    return serve(Looked(title=hostile.name, run=open_run(hostile / "run.yaml", log), log=log))


FOREIGN = """
const known = new Set(["A", "ARTICLE", "ASIDE", "B", "BDI", "BUTTON", "DD", "DIV", "DL", "DT", "FIGCAPTION", "FIGURE",
  "FORM", "H1", "H2", "H3", "INPUT", "LABEL", "LI", "MAIN", "OPTION", "P", "SECTION", "SELECT", "SPAN", "TABLE",
  "TBODY", "TD", "TH", "THEAD", "TR", "UL", "svg", "rect", "line", "polygon", "title"]);
const all = [...document.querySelectorAll("main, main *")];
return [window.hit, all.filter((one) => !known.has(one.tagName)).map((one) => one.outerHTML),
  all.flatMap((one) => [...one.attributes]).filter((one) => one.name.startsWith("on")).length,
  [...document.querySelectorAll("a[href]")].filter((one) => !one.getAttribute("href").startsWith("#")).length,
  document.scripts.length];
"""


@pytest.mark.slow
@pytest.mark.browser
def test_nothing_of_it_runs_and_all_of_it_is_shown(page: str, browser: Browser) -> None:
    browser.complaints()
    browser.open(page)
    for view in VIEWS:
        browser.run("location.hash = arguments[0]", view)
        browser.wait()
        assert browser.run(FOREIGN) == [None, [], 0, 0, 1], view
        raw = browser.run("return document.body.innerText")
        assert not set(MARKS) - set("[31m") & set(raw), (view, ascii(raw))
    assert browser.complaints() == [], "no Content-Security-Policy had to step in"


@pytest.mark.browser
def test_marks_are_named(page: str, browser: Browser) -> None:
    text = browser.open(f"{page}#document?n=0").one(".legend li").text
    assert text.startswith("\"'><script>window.hit=1</script><img src=x")
    assert "U+202E" in text
    assert "U+001B[31m" in text
    assert "U+E0041" in text


def test_answers_are_data_and_the_page_is_closed_to_others(page: str) -> None:
    with urllib.request.urlopen(f"{page}api/window?i=0") as answer:
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        policy = answer.headers["Content-Security-Policy"]
        body = answer.read()
    assert json.loads(body)["documents"][0]["id"] == EVIL
    assert body.isascii()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_notebook_shows_it_as_text(hostile: Path) -> None:
    html = str(show(cl.open_dataset(hostile / "ds")))
    assert "<script" not in html
    assert "<img" not in html
    assert "javascript:" in html
    assert html.replace("\n", "").replace("\t", "").isprintable()
