"""The pages of `inspect --html` and `trace --html`: what they say and refuse; nothing of a corpus runs in them."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main, page
from conceptloader.trace import open_run, trace_sample, trace_step
from conceptloader.trace.viewer import show
from tests.corpora.records import write_rows
from tests.view.conftest import SEQ_LEN, build
from tests.view.reading import plain, tables, windows

MARKS = "\u202e\u2066\u200b\u2028\x1b[31m\x9b\x07\x7f\ufeff\U000e0041"
ATTACK = '"\'><script>window.hit=1</script><img src=x onerror="window.hit=2"><a href="javascript:window.hit=3">x</a>'
EVIL = f"{ATTACK}</title></style></pre></script><!--]]>{{{{7*7}}}}${{window.hit=4}}{MARKS}"


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def made(tmp_path, words):
    assert main([*words.split(), "--html", str(tmp_path / "page.html")]) == 0
    return tmp_path / "page.html"


def text_of(tokens):
    return bytes(token for token in tokens if token < 256).decode()


def test_a_step(tmp_path, folder, capsys):
    """The samples of trace, and what a loader trains of them."""
    found = made(tmp_path, "trace run.yaml --run-log checkpoints --step 25")
    assert capsys.readouterr().out == f"{found}: 8 of 8 windows\n"
    run = open_run("run.yaml", "checkpoints")
    samples = trace_step(run, 25)
    head, *rows = tables(found)["Samples"]
    assert head[:7] == ("sample", "step", "micro batch", "rank", "slot", "dataset", "window")
    assert [row[:8] for row in rows] == [
        tuple(map(str, (one.sample, *one.places[0], one.dataset, one.window, one.epoch))) for one in samples
    ]
    assert [row[8] for row in rows] == [", ".join(str(part.id) for part in one.documents) for one in samples]
    clauses = [sum(s.end - s.start for s in one.spans["concepts"] if "clause" in (s.names or ())) for one in samples]
    assert [re.findall(r"clause (\d+)", row[9]) for row in rows] == [[str(n)] for n in clauses]
    with cl.make_dataloader("run.yaml", micro_batch_size=8) as loader:
        loader.load_state_dict(loader.state_dict_at(200))
        batch = next(iter(loader))["input_ids"].tolist()
    shown = windows(found)
    assert [*shown.values()] == [text_of(tokens) for tokens in batch]
    assert next(iter(shown)).startswith("sample 200; step 25, micro batch 0, rank 0, slot 0; ")
    mixture = plain(found.read_text().partition("<h2>Mixture")[2].partition("<h2>")[0])
    counts = run.blend.order.counts(208)
    assert f"sample 0step 25books {counts[0] / 208:.1%} \xa0 web {counts[1] / 208:.1%}" in mixture.replace(
        "&nbsp;", "\xa0"
    )
    assert "weights from sample 160 on: books 0.5, web 0.5" in mixture


def test_no_window_begins_after_4_mib(tmp_path, capsys):
    """As docs/runs.md says; and the title says how many there are."""
    write_rows(tmp_path / "long.jsonl", [{"text": "a" * (1 << 17)}] * 18)
    cl.build(tmp_path / "long.jsonl", tmp_path / "long", tokenizer="bytes")
    text = made(tmp_path, f"inspect {tmp_path / 'long'} --random 18 --seq-len 131072").read_text()
    articles = re.findall("<article.*?</article>", text, re.S)
    assert sum(map(len, articles[:-1])) <= 4 << 20 < sum(map(len, articles))
    assert f"{len(articles)} of 18 windows" in capsys.readouterr().out


def test_a_mixture_is_of_whole_blocks(tmp_path):
    """Within a block the datasets are in any order."""
    text = made(tmp_path, "trace run.yaml --global-batch-size 8 --step 44").read_text()
    heights = re.findall(r"V([0-9.]+)H", re.findall(r'd="(M0 [^"]*)', text)[0])
    assert len(set(heights)) < 12
    assert "0" not in heights[: len(heights) // 2]  # there, and back at 0


def test_a_pack_and_what_is_excluded(tmp_path):
    found = made(tmp_path, "trace packs.yaml --sample 3")
    with cl.make_dataloader("packs.yaml", micro_batch_size=4) as loader:
        batch = next(iter(loader))
    ((title, text),) = windows(found).items()
    assert (title.split(";")[0], ", pack " in title) == ("sample 3", True)
    assert text == text_of(batch["input_ids"][3].tolist())
    run = open_run("run.yaml")
    excluded = next(n for n in range(400) if trace_sample(run, n).tokens is None)
    assert [*windows(made(tmp_path, f"trace run.yaml --sample {excluded}")).values()] == [""]


def test_windows_and_documents_of_a_dataset(tmp_path, monkeypatch):
    books = cl.open_dataset("books")

    def shown(words):
        return windows(made(tmp_path, f"inspect books {words}"))

    assert shown(f"--window 3 --seq-len {SEQ_LEN}") == {"window 3: 65 tokens": text_of(books.tokens(192, 257).tolist())}
    (start, stop), name = books.document_range(7), "document books-7"
    text = text_of(books.tokens(start, stop).tolist())
    assert shown("--document books-7") == {f"{name}: {stop - start} tokens": text}
    assert [*shown(f"--tokens {start}:{stop}").values()] == [*shown("--document-number 7").values()] == [text]
    assert [*map(len, (shown("--random 5 --seq-len 64"), shown("--random 4 --documents")))] == [5, 4]
    monkeypatch.setattr(page, "_TOKENS", 20)
    assert shown("--document books-7") == {f"{name}: {stop - start} tokens, of which the first 20 are shown": text[:20]}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose dataset, concepts, documents and texts are code, in a folder of such a name."""
    folder = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=window.hit=5>\u202e"
    folder.mkdir()
    text = f"{EVIL} and more"
    spans = [{"start": 0, "end": len(text), "concepts": [EVIL]}]
    build(folder, "ds", [{"id": EVIL + str(k), "text": text, "spans": spans} for k in range(20)], [EVIL, "plain"])
    config = {"seq_len": 128, "datasets": {EVIL.replace("@", ""): {"path": "ds"}}, "tracks": {"concepts": {}}}
    (folder / EVIL.replace("/", "")).write_text(yaml.safe_dump(config))
    return folder


class Tags(HTMLParser):
    """Names of all tags, and all attributes that could run or load something."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.acting = Counter(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.acting += [one for one in attributes if one[0].startswith("on") or one[0] in ("src", "href", "action")]


def test_nothing_of_a_corpus_runs(hostile, tmp_path):
    """In pages and in notebooks: it is text, and what cannot be seen is shown."""
    config = str(hostile / EVIL.replace("/", ""))
    for words in (
        ["inspect", str(hostile / "ds"), "--random", "3"],
        ["inspect", str(hostile / "ds"), "--document", f"{EVIL}3"],
        ["trace", config, "--global-batch-size", "12", "--step", "0"],
    ):
        assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
        text = (tmp_path / "page.html").read_text()
        found = Tags(text)
        assert (found.tags["script"], found.tags["img"], found.tags["style"]) == (1, 0, 1)
        assert [one for one in found.acting if not re.fullmatch(r"#s\d+", str(one[1]))] == []
        assert text.replace("\n", "").replace("\t", "").isprintable()
        assert "http" not in re.sub("http-equiv", "", text)
        assert "window.hit=1" in text
    notebook = str(show(cl.open_dataset(hostile / "ds")))
    assert not {"script", "img", "a"} & Tags(notebook).tags.keys()
    assert notebook.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.browser
@pytest.mark.slow
def test_in_a_browser(hostile, tmp_path):
    """Wide, narrow and dark; rows sort and filter; the console says nothing, and nothing ran."""
    from selenium.webdriver.common.keys import Keys

    from tests.view.browser import resize, start_browser

    config = str(hostile / EVIL.replace("/", ""))
    words = ["trace", config, "--global-batch-size", "16", "--step", "62"]
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
    with start_browser() as browser:
        papers = []
        for width, dark in ((1280, False), (390, False), (390, True)):
            resize(browser, width, 800, dark)
            browser.get((tmp_path / "page.html").as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") == width
            papers.append(
                browser.execute_script("return getComputedStyle(document.querySelector('header')).backgroundColor")
            )
        light, _, dark_paper = (sum(map(int, re.findall(r"\d+", paper)[:3])) for paper in papers)
        assert dark_paper < 3 * 64 < light
        rows = "return [...document.querySelectorAll('.rows')[0].querySelectorAll('tbody tr')].filter((row) => "
        rows += "row.checkVisibility()).map((row) => row.cells[0].textContent)"
        sample, *_ = browser.find_elements("css selector", ".rows th button")
        for expected in (range(992, 1008), range(1007, 991, -1)):
            sample.click()  # 992 comes before 1,036
            assert browser.execute_script(rows) == [f"{n:,}" for n in expected]
        box = browser.find_element("css selector", "input")
        box.send_keys("Sample 1001;")
        visible = "return [...document.querySelectorAll('article')].filter((one) => one.checkVisibility()).length"
        assert (browser.execute_script(rows), browser.execute_script(visible)) == ([], 1)
        assert browser.find_element("css selector", "output").text == f"1 of {16 + 16}"
        box.send_keys(Keys.CONTROL, "a", Keys.DELETE)
        assert browser.execute_script(visible) == 16
        assert browser.execute_script("return [window.hit, document.scripts.length]") == [None, 1]
        assert browser.get_log("browser") == []
