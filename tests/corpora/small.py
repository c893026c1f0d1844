"""The corpora that tests of single things use."""

import conceptloader as cl
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.drawn import Corpus, Document, Shard


def written(path, *shards, **options):
    """A dataset of shards of documents. A document: what `add_document` takes; tracks: what `TrackOptions` takes."""
    tracks = {name: cl.writing.TrackOptions(**track) for name, track in options.pop("tracks", {}).items()}
    build = cl.writing.create_writer(path, cl.writing.BuildOptions(tracks=tracks, **options), plan=range(len(shards)))
    for number, documents in enumerate(shards):
        with build.shard(number) as writer:
            for document in documents:
                writer.add_document(*document)
    cl.writing.finalize(path)
    return path


def random_datasets(folder, names, count=60, **keys):
    """Datasets of random documents, as a configuration has them, with more keys of each."""
    return {
        name: {"path": str(write_dataset(folder / name, random_documents(count, seed=k, prefix=name))), **keys}
        for k, name in enumerate(names)
    }


def small_corpus():
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
