"""The corpus that tests of single things in the format use."""

from tests.corpora.drawn import Corpus, Document, Shard


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
