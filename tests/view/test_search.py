"""Search of the text, and spans of a concept in their context: compared with plain loops over the datasets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.viewer import search
from conceptloader.viewer.pages import PAGES
from conceptloader.viewer.source import Looked, Query, alone
from tests.corpora.records import write_rows
from tests.raises import raises
from tests.view.browser import Browser
from tests.view.test_answers import ask
from tests.view.test_page import text_of


def documents(dataset: cl.Dataset) -> list[str]:
    return [text_of(dataset, *dataset.document_range(n)) for n in range(dataset.num_documents)]


@pytest.mark.parametrize("wanted", ["bird", "BLUE bird", ".", "nowhere"])
def test_a_search_finds_every_document(wanted: str, looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_HITS", 7)
    dataset = looked.sources["web"].dataset
    expected = [n for n, text in enumerate(documents(dataset)) if wanted.lower() in text.lower()]
    found: list[int] = []
    first: int | None = 0
    while first is not None:
        answer = ask(looked, "search", d="web", q=wanted, **{"from": first})
        assert answer["from"] == first
        for hit in answer["hits"]:
            text = documents(dataset)[hit["n"]]
            assert hit["before"] + hit["match"] + hit["after"] in text
            assert hit["match"].lower() == wanted.lower()
            assert hit["id"] == dataset.document_id(hit["n"])
        found += [hit["n"] for hit in answer["hits"]]
        assert answer["next"] is None or answer["next"] > first
        first = answer["next"]
    assert found == expected


def test_a_search_that_takes_long_says_where_it_is(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_SECONDS", -1)
    answer = ask(looked, "search", d="books", q="nowhere", **{"from": 7})
    assert (answer["hits"], answer["next"]) == ([], 8)  # time was over before the first, but each answer goes on


def test_what_cannot_be_searched(tmp_path: Path) -> None:
    tokens = tmp_path / "in.jsonl"
    tokens.write_text(json.dumps({"tokens": [1, 2, 3, 4]}) + "\n")
    cl.build(tokens, tmp_path / "ds", vocab_size=9, append_eos=False)
    with cl.open_dataset(tmp_path / "ds") as dataset:
        with raises(ConfigError, "ds", "no copy of its tokenizer"):
            PAGES["search"](alone(dataset, 2), Query({"q": "a"}))
        with raises(ConfigError, "q"):
            PAGES["search"](alone(dataset, 2), Query({}))


def test_random_spans_are_spans_of_the_concept(looked: Looked) -> None:
    answer = ask(looked, "contexts", d="web", c=1)
    assert answer["strongest"] == []
    assert len(answer["random"]) == 8
    texts = "".join(documents(looked.sources["web"].dataset))
    for one in answer["random"]:
        assert one["match"] == "bird"
        around = re.sub("\\W+", " ", one["before"][-10:] + one["match"])
        assert around in re.sub("\\W+", " ", texts)


@pytest.fixture
def scored(tmp_path: Path) -> Looked:
    """A hundred documents of one window each, in which a span has the document's number as its score."""
    text = "a word here "
    rows = [
        {"id": f"d{k}", "text": text, "spans": [{"start": 2, "end": 6, "concepts": [0], "scores": [k]}]}
        for k in range(100)
    ]
    write_rows(tmp_path / "in.jsonl", rows)
    words = ["--tokenizer", "bytes", "--scores", "concepts=f4", "--workers", "1", "--no-eos", "--quiet"]
    assert main(["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "ds"), *words]) == 0
    return alone(cl.open_dataset(tmp_path / "ds"), 12)


def test_the_strongest_spans_come_first(scored: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_SECONDS", 60)
    answer: dict[str, Any] = ask(scored, "contexts", c=0)
    assert answer["found"] == 99  # the last window lacks a label
    assert [one["score"] for one in answer["strongest"]] == [98, 97, 96, 95, 94, 93, 92, 91]
    assert [one["i"] for one in answer["strongest"]] == [98, 97, 96, 95, 94, 93, 92, 91]
    assert {one["match"] for one in answer["strongest"] + answer["random"]} == {"word"}
    assert len({one["i"] for one in answer["random"]}) == 8


@pytest.mark.browser
def test_the_page_searches(page: str, browser: Browser, looked: Looked) -> None:
    browser.resize(1280, 860)
    browser.open(f"{page}#document?d=books")
    field = browser.one("input[type=search]")
    field.send_keys("Bird\n")
    browser.wait()
    assert "search?d=books&q=Bird" in browser.place
    expected = [n for n, text in enumerate(documents(looked.sources["books"].dataset)) if "bird" in text]
    assert browser.texts(".contexts a") == [f"books-{n}" for n in expected[:50]]
    assert {one.lower() for one in browser.texts(".found")} == {"bird"}
    browser.press(Keys.ARROW_RIGHT)
    assert browser.texts(".contexts a") == [f"books-{n}" for n in expected[50:]]
    assert "All documents were read." in browser.main
    browser.click(".contexts a", f"books-{expected[51]}")
    assert f"document?d=books&n={expected[51]}" in browser.place
    assert browser.complaints() == []


@pytest.mark.browser
def test_the_page_reads_on_until_something_is_found(
    tmp_path: Path, browser: Browser, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"d{k}", "text": "a needle" if k in (11, 14) else "some hay"} for k in range(20)]
    write_rows(tmp_path / "in.jsonl", rows)
    assert main(["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "ds"), "--tokenizer", "bytes", "-q"]) == 0
    monkeypatch.setattr(search, "_SECONDS", -1)  # a document per answer
    browser.open(f"{serve(alone(cl.open_dataset(tmp_path / 'ds'), 8))}#search?q=needle")
    assert browser.texts(".contexts a") == ["d11"]
    assert "In 1 document of 0 to 11" in browser.main
    browser.click(".button", "Continue")
    assert browser.texts(".contexts a") == ["d14"]
    browser.click(".button", "Continue")
    assert "In 0 documents of 15 to 19" in browser.main
    assert "All documents were read." in browser.main
    assert browser.complaints() == []


@pytest.mark.browser
def test_a_concept_is_shown_in_its_context(page: str, browser: Browser) -> None:
    browser.open(f"{page}#concept?d=web&c=1")
    assert browser.texts(".sides .found") == ["bird"] * 8
    browser.click(".sides a")
    assert "window?d=web&i=" in browser.place
    assert browser.complaints() == []


@pytest.mark.browser
def test_concepts_of_a_window_have_colours_of_their_own(tmp_path: Path, browser: Browser, serve: Any) -> None:
    """Ids whose own colours are the same, or nearly: 0, 360 / gcd steps apart."""
    ids = [0, 144, 233, 377, 610, 987]
    text = " ".join(f"w{k}" for k in range(len(ids)))
    spans = [{"start": 3 * k, "end": 3 * k + 2, "concepts": [c]} for k, c in enumerate(ids)]
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": text + " end", "spans": spans}) + "\n")
    assert main(["build", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "ds"), "--tokenizer", "bytes", "-q"]) == 0
    browser.open(f"{serve(alone(cl.open_dataset(tmp_path / 'ds'), 18))}#window?i=0")
    script = "return [...document.querySelectorAll('.legend .swatch')].map((one) => one.style.getPropertyValue('--h'))"
    hues = sorted(map(int, browser.run(script)))
    assert len(hues) == len(ids)
    gaps = [b - a for a, b in zip(hues, [*hues[1:], hues[0] + 360], strict=True)]
    assert min(gaps) >= 24


def test_a_concept_that_is_nowhere_is_not_searched_for_long(scored: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    real = search.concept_windows

    def counted(*arguments: Any) -> Any:
        for found in real(*arguments):
            looks.append(found)
            yield found

    monkeypatch.setattr(search, "concept_windows", counted)
    monkeypatch.setattr(search, "_SECONDS", -1)
    assert ask(scored, "contexts", c=7)["random"] == []
    assert len(looks) == 1
