"""Shared by the tests of the format."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import conceptloader as cl
from tests.format.model import Corpus, Document, Shard
from tests.unsynced import no_waiting_for_the_disk

__all__ = ["no_waiting_for_the_disk"]


def small_corpus() -> Corpus:
    """Three shards, one of them empty; two tracks, one with shared records, gaps, an empty document, ids."""
    shared = {"concepts": [(7, 8), (9,)], "source": []}
    first = [
        Document(
            [10, 11, 12, 13, 14, 15],
            {"concepts": [(0, 2, 0), (2, 4, (1, 2, 3)), (5, 6, 1)], "source": [(0, 6, (1,))]},
            "a",
        ),
        Document([], {}, "b"),
        Document([20, 21, 22], {"concepts": [(1, 3, 0)]}, "ü"),
    ]
    third = [Document(list(range(30, 45)), {"concepts": [(0, 15, (4,))], "source": [(3, 9, (2,)), (9, 15, (3,))]}, "c")]
    empty = {"concepts": [], "source": []}
    return Corpus(["concepts", "source"], [Shard(shared, first), Shard(dict(empty), []), Shard(dict(empty), third)])


@pytest.fixture(params=["dense", "spans"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[cl.Dataset]:
    """The small corpus in either encoding."""
    with small_corpus().write(tmp_path / "ds", request.param) as ds:
        yield ds
