"""10^12 tokens, in sparse files: every view reads about what it shows."""

import json
from typing import Any

import pytest

import conceptloader as cl
from conceptloader.testing import sparse_dataset
from conceptloader.viewer.pages import PAGES
from conceptloader.viewer.source import Looked, Query, alone
from tests.view.browser import Browser

TOKENS = 1_000_000_000


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Looked:
    folder = tmp_path_factory.mktemp("huge")
    sparse_dataset(folder, shards=1000, tokens_per_shard=TOKENS)
    return alone(cl.open_dataset(folder), 4096)


ASKED: list[tuple[str, dict[str, int]]] = [
    ("about", {}),
    ("window", {"i": 200_000_000}),
    ("window", {"i": 900_000_000_000, "s": 1}),
    ("document", {"n": 999}),
    ("document", {"n": 500, "from": TOKENS - 1000}),
    ("stats", {}),
    ("damage", {}),
]


def test_an_answer_reads_little(huge: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = huge.sources.values()
    sizes: list[int] = []
    read = source.dataset.files.read

    def counted(kind: str, shard: int, offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(kind, shard, offset, size)

    monkeypatch.setattr(source.dataset.files, "read", counted)
    for name, values in ASKED:
        sizes.clear()
        answer = PAGES[name](huge, Query({key: str(value) for key, value in values.items()}))
        assert len(json.dumps(answer)) < 200_000
        assert len(sizes) < 900, name  # 400 documents for the statistics, two reads each
        assert sum(sizes) < 100_000


@pytest.mark.browser
def test_a_window_in_the_midst(huge: Looked, serve: Any, browser: Browser) -> None:
    page = serve(huge)
    browser.open(f"{page}#window?i=200000001")
    assert "of 244,140,624" in browser.main
    assert "Start with --tokenizer to see text." in browser.main
    assert browser.texts(".document") == ["... document 819"]
    assert len(browser.all("[data-k]")) == 4097
    assert "1,000,000,000,000" in browser.open(page).main
