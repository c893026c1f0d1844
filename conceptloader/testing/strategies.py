"""Hypothesis strategies for what a loader is made of. Needs the hypothesis package."""

from math import prod

from hypothesis import strategies as st

from conceptloader.order.mixture import Mixture
from conceptloader.order.phases import Phase
from conceptloader.order.skips import Skip
from conceptloader.testing.corpora import RawDocument, random_documents
from conceptloader.testing.oracle import Layout


def layouts(
    max_dp_size: int = 8, max_micro_batch_size: int = 4, max_micro_batches: int = 3
) -> st.SearchStrategy[Layout]:
    """Ways to spread a run over ranks and micro batches."""
    sizes = st.tuples(*(st.integers(1, most) for most in (max_dp_size, max_micro_batch_size, max_micro_batches)))
    return sizes.map(lambda s: Layout(dp_size=s[0], micro_batch_size=s[1], global_batch_size=prod(s)))


@st.composite
def mixtures(
    draw: st.DrawFn,
    max_datasets: int = 5,
    max_size: int = 1000,
    max_start: int = 2000,
    max_skips: int = 2,
) -> Mixture:
    """Mixtures of 1 to `max_datasets` datasets of up to `max_size` windows, with phases and skips below `max_start`."""
    sizes = draw(st.lists(st.integers(1, max_size) | st.integers(1, 60), min_size=1, max_size=max_datasets))
    names = draw(st.permutations([f"dataset-{k}" for k in range(len(sizes))]))
    weights = st.dictionaries(st.sampled_from(names), st.integers(1, 1000) | st.floats(0.01, 10), min_size=1)
    starts = draw(st.sets(st.integers(1, max_start), max_size=3))
    skips = st.builds(lambda at, count: Skip(at=at, count=count), st.integers(0, max_start), st.integers(1, 100))
    phases = [Phase(start=start, weights=draw(weights)) for start in [0, *sorted(starts)]]
    return Mixture(
        sizes=sizes,
        names=names,
        phases=phases,
        skips=draw(st.lists(skips, max_size=max_skips)),
        seed=draw(st.integers(-5, 1 << 64)),
        block=draw(st.sampled_from([1, 2, 7, 64])),
    )


def documents(max_count: int = 20, max_mean_length: int = 60) -> st.SearchStrategy[list[RawDocument]]:
    """Documents with spans of one track, "concepts", for write_dataset."""
    return st.builds(
        random_documents,
        st.integers(1, max_count),
        seed=st.integers(0, 1 << 32),
        mean_length=st.integers(1, max_mean_length),
    )
