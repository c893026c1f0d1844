"""What notebooks show: HTML that is well-formed, the data in it, tables and figures."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.order.mixture import sequential
from conceptloader.viewer import plot_mixture, plot_stats, plots, show
from conceptloader.viewer.render import hues_of
from conceptloader.viewer.windows import Span
from tests.raises import raises


def text(html: str) -> str:
    """What is read in it. Raises ParseError if it is not well-formed."""
    return "".join(ElementTree.fromstring(html.replace("&nbsp;", " ")).itertext())


def stored(dataset: cl.Dataset, start: int, stop: int) -> str:
    return bytes(t for t in dataset.tokens(start, stop).tolist() if t < 256).decode()


@pytest.fixture(scope="module")
def books(folder: Path) -> cl.Dataset:
    return cl.open_dataset(folder / "books")


def test_datasets_and_their_windows(books: cl.Dataset) -> None:
    dataset = books
    shown = text(dataset._repr_html_())
    assert f"{dataset.num_tokens:,} tokens, 60 documents, 1 shard; tokenizer bytes" in shown
    assert stored(dataset, 0, 513) in shown
    assert stored(dataset, 192, 257) in text(str(dataset.show(3, seq_len=64)))
    windows = dataset.windows(32)
    assert stored(dataset, 160, 193) in text(str(windows.show(5)))
    assert stored(dataset, *windows.token_range(len(windows) - 1)) in text(str(windows.show(-1)))
    assert stored(dataset, *dataset.document_range(7)) in text(str(dataset.documents().show(7)))
    assert text(str(dataset.documents().show(3))).endswith("clause   animal")
    for wrong in (10**9, -(10**9)):
        with pytest.raises(IndexError):
            dataset.show(wrong)
        with pytest.raises(IndexError):
            windows.show(wrong)
    with raises(ConfigError, found="int"):
        show(3)


def test_nothing_else_has_to_be_imported(books: cl.Dataset, checkout: Path) -> None:
    """In a process of its own, where nobody has imported what draws."""
    script = f"import conceptloader as cl\nprint(cl.open_dataset({books.path!r})._repr_html_())"
    done = subprocess.run([sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=True)
    assert "60 documents" in text(done.stdout)


def test_lines_of_spans(books: cl.Dataset) -> None:
    html = str(books.documents().show(0))
    spans = [
        (one.text or "", one.get("style") or "")
        for one in ElementTree.fromstring(html.replace("&nbsp;", " ")).iter("span")
    ]
    assert [words.strip() for words, style in spans if style.count("linear-gradient") == 2] == ["bird"]


def picture(html: str) -> list[tuple[str, int, int, int]]:
    """(title, first token, end, row) of what is drawn."""
    (drawn,) = ElementTree.fromstring(html.replace("&nbsp;", " ")).iter("svg")
    return [
        (one[0].text or "", x := int(one.get("x") or 0), x + int(one.get("width") or 0), int(one.get("y") or 0) // 9)
        for one in drawn.iter("rect")
    ]


def test_a_window_has_a_picture_of_documents_and_spans(books: cl.Dataset) -> None:
    dataset = books
    windows, seen = dataset.windows(64), set()
    for n in range(8):
        shown = picture(str(windows.show(n)))
        sample = dataset.read(64 * n, 64 * n + 65, ["concepts"], documents=True)
        documents = [bar for bar in shown if bar[3] == 0]
        assert [name for name, *_ in documents] == [f"books-{k}" for k in sample["documents"].ids.tolist()]
        starts = [max(0, at - 64 * n) for at in sample["documents"].first.tolist()]
        assert [(start, stop) for _, start, stop, _ in documents] == list(pairwise([*starts, 65]))
        spans = [bar for bar in shown if bar[3] > 0]
        ranges = zip(sample["concepts"].start.tolist(), sample["concepts"].end.tolist(), strict=True)
        covered = {k for _, start, stop, _ in spans for k in range(start, stop)}
        assert covered == {k for start, stop in ranges for k in range(start, stop)}
        seen |= {(name.split()[0], row) for name, *_, row in spans}
    assert seen == {("clause", 1), ("animal", 2)}
    html = str(windows.show(3))
    begun = dataset.read(192, 257, documents=True)["documents"].first >= 192
    assert html.count("border-left") == begun.sum() > 0
    assert not re.search(r"https?:|url\(|src=|href=", html)


def test_concepts_of_a_picture_have_colours_of_their_own() -> None:
    """Ids whose own colours are the same, or nearly."""
    spans = [Span(k, k + 1, "a", c, "") for k, c in enumerate([0, 144, 233, 377, 610, 987])]
    hues = sorted(hues_of(spans).values())
    assert min((b - a) % 360 for a, b in pairwise([*hues, hues[0] + 360])) >= 24


def test_blends_and_loaders_show_the_mixture_and_a_sample(folder: Path) -> None:
    blend = cl.open_blend(folder / "run.yaml")

    def sample(n: int) -> tuple[str, str]:
        index, epoch, window = blend.order.sample(n)
        name = blend.order.names[index]
        return f"sample {n}: {window:,} of {name}, epoch {epoch}", stored(
            blend.datasets[name], 64 * window, 64 * window + 64
        )

    assert all(one in text(blend._repr_html_()) for one in ("Mixture of 2 datasets", *sample(0)))
    assert all(one in text(str(blend.show(9))) for one in sample(9))
    with cl.make_dataloader(folder / "run.yaml", micro_batch_size=4, num_samples=8) as loader:
        for n in (0, 4):
            assert all(one in text(loader._repr_html_()) for one in sample(n))
            next(iter(loader))
        shown = text(loader._repr_html_())  # at its end
        assert "Mixture of 2 datasets" in shown
        assert "sample 8" not in shown
    quarantined = next(n for n in range(400) if blend.order.sample(n)[::2] == (1, 3))
    assert "Excluded: it is not read" in text(str(blend.show(quarantined)))


def test_blends_of_packs_show_what_is_in_a_pack(folder: Path) -> None:
    config = {"seq_len": 512, "datasets": {"books": {"path": str(folder / "books")}}, "packing": {"bins": 8}}
    shown = str(cl.open_blend(config).show())
    assert shown.count("<title>books-") > 1


def test_mixtures(folder: Path) -> None:
    shown = text(cl.open_blend(folder / "run.yaml").order._repr_html_())
    assert "Mixture of 2 datasets, seed 1234, blocks of 64" in shown
    assert "weight from sample 160" in shown
    assert "75.0%" in shown
    phases = [
        cl.Segment(at=0, weights={"a": 1}),
        *(cl.Segment(at=9 + k, weights={"a": 6 - k, "b": 1}, ramp=k > 0) for k in range(6)),
        cl.Segment(at=15, weights={"b": 1}, ramp=True),
    ]
    shown = text(cl.Mixture([5, 5], names=["a", "b"], segments=phases)._repr_html_())
    assert re.findall(r"weight from sample (\d+)", shown) == ["0", "9", "10", "11", "12", "13", "14", "15"]
    assert "a5100.0%85.7%83.3%80.0%75.0%66.7%50.0%-" in re.sub(r"\s+", "", shown)
    many = [cl.Segment(at=k, weights={"a": 1}) for k in range(100)]
    assert text(cl.Mixture([5], names=["a"], segments=many)._repr_html_()).count("weight from sample") == 8
    assert "2 datasets, one after the other" in text(sequential([3, 4], ["a", "b"])._repr_html_())


def test_batches(folder: Path) -> None:
    with cl.make_dataloader(folder / "run.yaml", micro_batch_size=2) as loader:
        batch, datasets = next(iter(loader)), loader.blend.datasets
    shown = text(str(show(batch)))
    assert "input_ids(2, 64)int64" in shown
    dataset = datasets[sorted(datasets)[int(batch["dataset_id"][0])]]
    shown = text(str(show(batch, dataset=dataset)))
    first = bytes(t for t in batch["input_ids"][0].tolist() if t < 256).decode()
    assert first in shown
    assert "clause" in shown
    rows = cl.SampleDataset(folder / "run.yaml").__getitems__([0, 1])
    assert "input_ids(2, 64)" in text(rows._repr_html_())


def test_tables(folder: Path) -> None:
    dataset = cl.open_dataset(folder / "web")
    window = dataset.windows(64)[4]
    spans = window["concepts"]
    table = spans.to_arrow(dataset.vocabulary("concepts"))
    assert table.column("start").to_pylist() == spans.start.tolist()
    assert table.column("concepts").to_pylist() == [record.tolist() for record in spans.decode()]
    names = ["clause", "animal", "plant"]
    assert table.column("names").to_pylist() == [[names[c] for c in record] for record in spans.decode()]
    assert spans.to_arrow().column_names == ["start", "end", "begins_before", "ends_after", "concepts"]
    assert window["documents"].to_arrow().column("document").to_pylist() == window["documents"].ids.tolist()
    documents = dataset.documents().to_arrow()
    assert documents.column("id").to_pylist() == [f"web-{k}" for k in range(90)]
    assert documents.column("stop").to_pylist()[-1] == dataset.num_tokens
    assert dataset.documents().to_arrow(5, 7).column("document").to_pylist() == [5, 6]
    assert dataset.spans("concepts", 0, 0).to_arrow().num_rows == 0
    assert dataset.spans("concepts", 0, 0).to_arrow(names).num_rows == 0


def test_figures(folder: Path, books: cl.Dataset, tmp_path: Path) -> None:
    order = cl.open_blend(folder / "run.yaml").order
    figure = plot_mixture(order, 400, position=96)
    above, below = figure.axes
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["books", "web"]
    ends = [line.get_ydata()[-1] for line in below.lines[:2]]
    assert np.allclose(ends, np.array(order.counts(400)) / order.sizes)
    figure.savefig(tmp_path / "mixture.png")
    figure = plot_stats(books, top=2)
    assert [tick.get_text() for tick in figure.axes[3].get_yticklabels()] == ["animal", "clause"]
    figure.savefig(tmp_path / "stats.png")


def test_figures_draw_names_as_they_are(books: cl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dollar signs are no mathematics, equal names are no equal concepts, and _x is in the legend."""
    concepts = [{"id": k, "name": name, "spans": 1, "tokens": 1, "share_of_tokens": 0.1 * (k + 1)} for k, name in
                enumerate(["$x^{$", "a" * 40 + "b", "a" * 40 + "c"])]  # fmt: skip
    track = {"spans": 3, "span_lengths": {"50": 1}, "tokens_in_spans": 0.5, "concepts": concepts}
    value = {"dataset": "$d^{$", "tokens": 9, "documents": 1, "shards": 1, "document_lengths": {"50": 9}}
    monkeypatch.setattr(plots, "dataset_stats", lambda _: {**value, "tracks": {"$t^{$": track}})
    figure = plot_stats(books)
    figure.savefig(tmp_path / "stats.png")
    bars = figure.axes[3]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([30, 20, 10])
    assert len({bar.get_y() for bar in bars.patches}) == 3
    figure = plot_mixture(cl.Mixture(sizes=[9, 9], names=["_x", "$y^{$"], weights=[1, 1]), 100)
    figure.savefig(tmp_path / "mixture.png")
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["_x", r"\$y^{\$"]
