"""What notebooks show: HTML that is well-formed, the data in it, tables and figures."""

from xml.etree import ElementTree

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.trace.viewer import show
from tests.raises import raises


def text(html):
    """What is read in it. Raises ParseError if it is not well-formed."""
    return "".join(ElementTree.fromstring(html.replace("&nbsp;", " ")).itertext())


def stored(dataset, start, stop):
    return bytes(t for t in dataset.tokens(start, stop).tolist() if t < 256).decode()


@pytest.fixture(scope="module")
def books(folder):
    return cl.open_dataset(folder / "books")


def test_datasets_and_their_windows(books):
    dataset = books
    shown = text(dataset._repr_html_())
    assert f"{dataset.num_tokens:,} tokens, 60 documents, 1 shard; tokenizer bytes" in shown
    assert stored(dataset, 0, 513) in shown
    assert stored(dataset, 192, 257) in text(str(dataset.show(3, seq_len=64)))
    for wrong in (10**9, -(10**9)):
        with pytest.raises(IndexError):
            dataset.show(wrong)
    with raises(ConfigError, found="int"):
        show(3)


def test_blends_and_loaders_show_the_mixture_and_a_sample(folder):
    blend = cl.open_blend(folder / "run.yaml")

    def sample(n):
        index, _, window = blend.order.sample(n)
        name = blend.order.names[index]
        return f"sample {n} of {name}", stored(blend.datasets[name], 64 * window, 64 * window + 64)

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
    assert "which is not read" in text(str(blend.show(quarantined)))
