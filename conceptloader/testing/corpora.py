"""Small made-up datasets, for tests of loaders, models and trainers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from conceptloader.format.spec.layout import MANIFEST
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.write.build import create_writer
from conceptloader.format.write.finalize import finalize

ConceptSpan = tuple[int, int, list[int]]


@dataclass(frozen=True, kw_only=True)
class RawDocument:
    """tokens: ids, the last one usually eos. spans: for each track (start, end, concept ids), in order, disjoint."""

    id: str
    tokens: list[int]
    spans: Mapping[str, list[ConceptSpan]] = field(default_factory=dict)


def random_documents(
    count: int,
    *,
    seed: int = 0,
    vocab_size: int = 1000,
    mean_length: int = 100,
    tracks: Mapping[str, int] | None = None,
    prefix: str = "doc",
) -> list[RawDocument]:
    """`count` documents of geometrically distributed length, ids "doc-0", "doc-1", ...; each ends in eos, token 0.

    Args:
        count: Number of documents.
        seed: Of the random numbers.
        vocab_size: Tokens are ids below it.
        mean_length: Tokens of a document, on average.
        tracks: Name -> number of concepts; default one track, "concepts", of 20. Spans cover about half of the tokens
            and carry 0 to 3 concepts.
        prefix: Of the ids.
    """
    rng = np.random.default_rng(seed)
    tracks = {"concepts": 20} if tracks is None else tracks
    documents = []
    for number in range(count):
        length = int(rng.geometric(1 / mean_length))
        tokens = [*rng.integers(1, vocab_size, length - 1).tolist(), 0]
        spans = {name: _random_spans(rng, length, concepts) for name, concepts in sorted(tracks.items())}
        documents.append(RawDocument(id=f"{prefix}-{number}", tokens=tokens, spans=spans))
    return documents


def _random_spans(rng: np.random.Generator, length: int, concepts: int) -> list[ConceptSpan]:
    borders = np.unique(rng.integers(0, length + 1, max(2, length // 8))).tolist()
    return [
        (start, end, sorted(set(rng.integers(0, concepts, int(rng.integers(4))).tolist())))
        for start, end in zip(borders[::2], borders[1::2], strict=False)
    ]


def write_dataset(
    path: str | os.PathLike[str],
    documents: Sequence[RawDocument],
    *,
    mode: str | None = None,
    vocab_size: int = 1000,
    shards: int = 1,
    encoding: str = "auto",
    vocabularies: Mapping[str, Sequence[str]] | None = None,
    tokenizer: Tokenizer | None = None,
) -> str:
    """Write documents as a dataset of `shards` shards of about equally many; returns its path.

    Args:
        path: A new directory.
        documents: Documents in order.
        mode: "document", or by default a stream.
        vocab_size: Of the tokenizer that the manifest names, unless `tokenizer` says otherwise.
        shards: Number of shards.
        encoding: Of all tracks.
        vocabularies: Track -> names of its concepts; default "concept-0", "concept-1", ...
        tokenizer: The tokenizer that the manifest names; default one called "synthetic", in which 0 is eos.
    """
    tracks = {}
    for name in sorted({name for document in documents for name in document.spans}):
        used = {concept for d in documents for _, _, ids in d.spans.get(name, ()) for concept in ids}
        vocabulary = (vocabularies or {}).get(name) or [f"concept-{k}" for k in range(max(used, default=-1) + 1)]
        tracks[name] = TrackOptions(encoding=encoding, vocabulary=vocabulary)
    options = BuildOptions(
        mode=mode or ("stream-with-metadata" if tracks else "token-stream"),
        tokenizer=tokenizer or Tokenizer(name="synthetic", vocab_size=vocab_size, eos_id=0),
        tracks=tracks,
    )
    plan = [[len(documents) * k // shards for k in (shard, shard + 1)] for shard in range(shards)]
    build = create_writer(path, options, plan=plan)
    for shard, (low, high) in enumerate(plan):
        with build.shard(shard) as writer:
            for document in documents[low:high]:
                writer.add_document(document.tokens, document.spans, id=document.id)
    finalize(build.path)
    return build.path


def sample_corpus(path: str | os.PathLike[str] = "data/corpus", *, documents: int = 400) -> str:
    """Write a small corpus of English text for trying things out; returns its path.

    Tokens are UTF-8 bytes and 256 ends a document (tokenizer "bytes"). Documents are called "tin-0", "tin-1", ...; the
    track "concepts" has a span over each color, with the concepts "color" and the color itself. A dataset that is
    already at `path` stays as it is, so that a script may call this each time it starts.

    Args:
        path: The directory; its parents are made.
        documents: Number of documents, of 40 to 200 tokens each.
    """
    path = os.fspath(path)
    if os.path.exists(os.path.join(path, MANIFEST)):
        return path
    names = ["color", "red", "green", "blue"]
    made = []
    for number in range(documents):
        tokens: list[int] = []
        spans: list[ConceptSpan] = []
        for sentence in range(1 + number % 4):
            color = names[1 + (number + sentence) % 3]
            tokens += f"Paint number {number} is ".encode()
            spans.append((len(tokens), len(tokens) + len(color), [0, names.index(color)]))
            tokens += f"{color}, as it says on the tin. ".encode()
        made.append(RawDocument(id=f"tin-{number}", tokens=[*tokens, 256], spans={"concepts": spans}))
    if parent := os.path.dirname(path):
        os.makedirs(parent, exist_ok=True)
    return write_dataset(
        path, made, tokenizer=Tokenizer(name="bytes", vocab_size=257, eos_id=256), vocabularies={"concepts": names}
    )
