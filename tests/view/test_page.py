"""A real browser clicks through the page and reads what is on it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from selenium.webdriver.common.keys import Keys

import conceptloader as cl
from conceptloader.trace import locate_document, open_run, trace_step
from conceptloader.viewer.source import Looked, alone
from conceptloader.viewer.windows import describe
from tests.view.browser import Browser
from tests.view.conftest import SAMPLES, SEQ_LEN, document

pytestmark = pytest.mark.browser

VIEWS = {
    "": "At step 12, 96 samples done: the last checkpoint (latest.txt).",
    "overview": "",  # its tokens
    "window?d=web&i=7": "When this window is seen",
    "document?d=books&id=books-3": "When this document is seen",
    "search?d=web&q=bird": "In 50 documents of 0 to",
    "concepts?d=web": "3 concepts",
    "concept?d=web&c=1": "animal in web, track concepts",
    "mixture": "Share of each dataset over the run",
    "step?n=3": "Samples 24 to 31 on 2 ranks",
    "window?n=25": "sample 25, epoch 0",
    "stats?d=books": "All documents and spans were counted.",
    "damage": "200 to 260",
}


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> None:
    """A window as on a desk, and a console that says nothing of what was before."""
    browser.resize(1280, 860)
    browser.complaints()


def text_of(dataset: cl.Dataset, start: int, stop: int) -> str:
    return bytes(t for t in dataset.tokens(start, stop).tolist() if t < 256).decode()


def test_every_view_has_an_address_and_fits_a_telephone(page: str, browser: Browser, looked: Looked) -> None:
    tokens = f"{looked.sources['web'].dataset.num_tokens:,}"
    for view, expected in VIEWS.items():
        browser.resize(1280, 860)
        assert (expected or tokens) in browser.open(f"{page}#{view}").main
        papers = []
        for dark in (False, True):
            browser.resize(390, 800, dark)
            assert browser.run("return document.documentElement.scrollWidth") == 390, view
            papers.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
        light, dark_paper = (sum(map(int, paper[4:-1].split(","))) for paper in papers)
        assert dark_paper < 3 * 64 < light
    assert browser.complaints() == []


def test_a_window_is_its_text_with_its_spans(page: str, browser: Browser, looked: Looked) -> None:
    source = looked.sources["web"]
    start, stop = source.token_range(7)
    browser.open(f"{page}#window?d=web&i=7")
    assert text_of_page(browser) == text_of(source.dataset, start, stop)
    sample = source.dataset.read(start, stop, ["concepts"])["concepts"]
    covered = [False] * (stop - start)
    for a, b in zip(sample.start.tolist(), sample.end.tolist(), strict=True):
        covered[a:b] = [True] * (b - a)
    assert painted(browser) == covered
    numbers = source.dataset.documents_in(start, stop).ids.tolist()
    assert [one.removeprefix("... ") for one in browser.texts(".document")] == [f"web-{n}" for n in numbers]


def text_of_page(browser: Browser) -> str:
    return str(browser.run("return [...document.querySelectorAll('[data-k]')].map((one) => one.textContent).join('')"))


def painted(browser: Browser) -> list[bool]:
    """Which tokens have a colour."""
    script = "return [...document.querySelectorAll('[data-k]')].map((one) => one.style.background !== '')"
    return list(browser.run(script))


def test_the_legend_filters_and_the_address_keeps_it(page: str, browser: Browser, looked: Looked) -> None:
    source = looked.sources["books"]
    window = next(
        i for i in range(source.count) if {"clause", "animal"} <= named(source.dataset, *source.token_range(i))
    )
    browser.open(f"{page}#window?d=books&i={window}")
    assert browser.texts(".legend li a") == ["clause", "animal"]
    everything = painted(browser)
    browser.all(".legend input")[0].click()
    only_animals = painted(browser)
    assert 0 < sum(only_animals) < sum(everything)
    assert "hide=concepts%3A0" in browser.place
    browser.open(browser.driver.current_url)
    assert painted(browser) == only_animals
    assert [box.is_selected() for box in browser.all(".legend input")] == [False, True]
    browser.press("n")
    assert not any(painted(browser))
    browser.press("a")
    assert painted(browser) == everything
    token = browser.all("[data-k]")[only_animals.index(True)]
    browser.run("arguments[0].dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))", token)
    assert browser.texts(".detail .label") == ["clause", "animal"]


def test_keys_go_from_span_to_span(page: str, browser: Browser, looked: Looked) -> None:
    """Without a pointer: to the starts of the spans that are shown, in both directions, and no further."""
    browser.open(f"{page}#window?d=books&i=0")
    source = looked.sources["books"]
    spans = describe(looked, source, *source.token_range(0))["spans"]
    starts = sorted({span["s"] for span in spans})
    assert len(starts) > 2
    told = [browser.press(".").one(".text .at").get_attribute("data-k") for _ in range(len(starts) + 1)]
    assert told == [str(k) for k in [*starts, starts[-1]]]
    assert browser.press(",").one(".text .at").get_attribute("data-k") == str(starts[-2])
    assert browser.texts(".detail .label") == [one["n"] for one in spans if one["s"] <= starts[-2] < one["e"]]
    browser.press("n", ".")  # none is shown
    assert len(browser.all(".text .at")) == 1
    assert browser.one(".text .at").get_attribute("data-k") == str(starts[-2])


def named(dataset: cl.Dataset, start: int, stop: int) -> set[str]:
    names = dataset.vocabulary("concepts") or []
    return {names[c] for record in dataset.spans("concepts", start, stop).decode() for c in record.tolist()}


def test_keys(page: str, browser: Browser, looked: Looked) -> None:
    browser.open(f"{page}#window?d=web&i=5").press(Keys.ARROW_RIGHT)
    assert browser.place == "window?d=web&i=6"
    browser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    browser.press("/")
    assert browser.run("return document.activeElement.value") in ("4", "5")
    browser.run("document.activeElement.blur()")
    browser.press("r")
    assert browser.place.startswith("window?d=web&i=")
    for number, view in enumerate(
        ["overview", "window", "document", "concepts", "stats", "mixture", "step", "damage"], 1
    ):
        browser.press(str(number))
        assert browser.place.startswith(view)
        assert len(browser.all("nav a[aria-current]")) == 1
    browser.press("?")
    assert "previous, next" in browser.one("dialog").text
    browser.open(f"{page}#window?d=web").fill("window", "11")
    assert browser.place == "window?d=web&i=11"
    browser.one("option", "books").click()
    browser.wait()
    assert browser.place == "window?d=books"


def test_a_step_is_what_the_ranks_train(page: str, browser: Browser, looked: Looked) -> None:
    browser.open(f"{page}#step?n=12")
    expected = trace_step(looked.run, 12)
    shown = [row.text.split() for row in browser.all("main tbody tr")]
    assert sorted((int(row[0]), int(row[1]), row[3], int(row[4])) for row in shown) == [
        (one.sample, one.places[0].dp_rank, one.dataset, one.window) for one in expected
    ]
    ids = {part.id for one in expected for part in one.documents}
    assert ids == {word for row in shown for word in row[6:]}
    assert len(browser.all(".cell")) == 8
    browser.one("option", "1").click()
    browser.wait()
    assert {row.text.split()[1] for row in browser.all("main tbody tr")} == {"1"}
    browser.click("a.button", "next")
    assert browser.place == "step?n=13&rank=1"


def test_when_a_document_is_seen(page: str, browser: Browser, looked: Looked) -> None:
    number = looked.sources["books"].dataset.find_document("books-3")[0]
    browser.open(f"{page}#document?d=books&n={number}")
    assert text_of_page(browser) == document("books", 3)["text"]
    seen = locate_document(looked.run, number, SAMPLES, "books")
    assert f"\n{len(seen)} times in {SAMPLES} samples" in browser.main
    assert len(browser.all(".tick")) == len(seen)
    assert [line.split(",")[0] for line in browser.texts(".times li")] == [f"sample {one.sample}" for one in seen[:12]]
    browser.click(".times a", f"step {seen[0].places[0].step}")
    assert browser.place == f"step?n={seen[0].places[0].step}"


def test_concepts_are_found_and_lead_to_their_windows(page: str, browser: Browser, looked: Looked) -> None:
    browser.open(f"{page}#concepts?d=books").fill("search", "ANI")
    assert browser.texts(".bar .name") == ["animal"]
    browser.click(".bar a", "animal")
    source = looked.sources["books"]
    holding = [i for i in range(source.count) if "animal" in named(source.dataset, *inputs(source, i))]
    assert [int(text) for text in browser.texts(".card .tools a:not(.button)")] == holding[:50]
    browser.click(".card .tools a", str(holding[3]))
    assert "animal" in browser.texts(".legend li a")


def inputs(source: object, window: int) -> tuple[int, int]:
    start, stop = source.token_range(window)  # type: ignore[attr-defined]
    return start, stop - 1


def test_the_mixture_is_that_of_the_order(page: str, browser: Browser, looked: Looked) -> None:
    browser.open(f"{page}#mixture")
    rows = [row.text.split() for row in browser.all("main tbody tr")]
    counts = looked.run.blend.order.counts(SAMPLES)
    assert [int(row[-2]) for row in rows] == counts
    assert [row[2:6] for row in rows] == [["25.0", "%", "50.0", "%"], ["75.0", "%", "50.0", "%"]]
    sizes = looked.run.blend.order.sizes
    assert [row[-1] for row in rows] == [f"{n / size:.2f}" for n, size in zip(counts, sizes, strict=True)]
    assert [len(browser.all(mark)) for mark in (".phase", ".now", ".area")] == [1, 1, 2]
    browser.fill("samples", "100")
    assert sum(int(row.text.split()[-2]) for row in browser.all("main tbody tr")) == 100
    assert browser.all(".phase") == []


def test_a_mixture_that_learns_with_its_losses(
    folder: Path, serve: Callable[[Looked], str], browser: Browser, tmp_path: Path
) -> None:
    config = yaml.safe_load((folder / "run.yaml").read_text())
    config |= {"phases": [], "exclude": [], "mixing": {"odm": {}}}
    for entry in config["datasets"].values():
        entry |= {"weight": 1, "path": str(folder / entry["path"])}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    names = list(config["datasets"])
    with cl.batches(tmp_path / "run.yaml", micro_batch_size=4) as loader:
        loader.log_start(tmp_path, 0)
        for step, _ in zip(range(300), loader, strict=False):
            loader.observe({name: 2 + k - step / 300 for k, name in enumerate(names)})
    run = open_run(tmp_path / "run.yaml", tmp_path)
    assert len(run.phases) > 200
    browser.open(f"{serve(Looked(title='learns', run=run, samples=1200))}#mixture")
    assert "Loss of each dataset, where weights were set" in browser.main
    assert len(browser.all(".loss")) == len(names)
    assert browser.all(".phase") == [], "there are too many"
    assert len(browser.all("main th")) < 14
    assert browser.complaints() == []


def test_quarantine_and_a_check_of_the_files(page: str, browser: Browser, looked: Looked) -> None:
    browser.open(f"{page}#damage")
    first = (200 - 1) // SEQ_LEN
    assert f"{first} to {259 // SEQ_LEN}" in browser.main
    browser.click("button", "Check web")
    assert "No problems: sizes and spot checksums of 1 shard" in browser.main
    browser.click("main tbody a", str(first))
    assert "Excluded: it keeps its position in the order, and is not read." in browser.main


BAD = {
    "window?d=web&i=99999": "window: found '99999', expected a number from 0 to",
    "window?d=web&i=-1": "window: found '-1'",
    "window?d=nobody": "dataset: found an unknown dataset 'nobody'",
    "step?n=x": "step: found 'x'",
    "step?n=1&rank=2": "rank: found '2', expected a number from 0 to 1",
    "document?d=web&id=nobody": "document: found no 'nobody' in web",
    "concept?d=web&c=3": "concept: found '3', expected a number from 0 to 2",
    "concepts?d=web&t=none": "track: found 'none', expected one of concepts",
    "seen": "there is no page seen",
    "__proto__": "there is no page __proto__",
}


def test_bad_input_is_shown_and_the_page_lives_on(page: str, browser: Browser) -> None:
    browser.open(page)
    for view, message in BAD.items():
        browser.run("location.hash = arguments[0]", view)
        assert message in browser.wait().one("[role=alert]").text
    assert "Share of each dataset" in browser.click("nav a", "Mixture").main


def test_a_file_that_vanishes(folder: Path, serve: Callable[[Looked], str], browser: Browser, tmp_path: Path) -> None:
    shutil.copytree(folder / "web", tmp_path / "web")
    dataset = cl.open_dataset(tmp_path / "web")
    page = serve(alone(dataset, SEQ_LEN))
    file, away = next(tmp_path.glob("web/*.stream.bin")), tmp_path / "away"
    file.rename(away)
    assert "stream.bin" in browser.open(f"{page}#window?i=3").one("[role=alert]").text
    assert "stream.bin" in browser.click("nav a", "Integrity").click("button", "Check web").one(".problem").text
    away.rename(file)
    browser.click("nav a", "Windows")
    assert text_of_page(browser) == text_of(dataset, 0, SEQ_LEN + 1)
    assert browser.texts("nav a") == ["Overview", "Windows", "Documents", "Concepts", "Statistics", "Integrity"]
    browser.fill("tokens", "20")
    assert text_of_page(browser) == text_of(dataset, 0, 21)
    dataset.close()
