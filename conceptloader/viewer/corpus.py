"""What the viewer shows of a whole corpus: from some of its windows, or from all of them if they are few."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

import numpy as np

from conceptloader.blend.mask import ALWAYS
from conceptloader.errors import ConfigError
from conceptloader.format.read.values import Spans
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.format.tools.stats import TrackCounts, count_spans, count_track, percentiles, track_stats
from conceptloader.format.tools.verify import verify
from conceptloader.trace.concepts import concept_windows
from conceptloader.trace.where import Where
from conceptloader.viewer.source import Looked, Query, Source

SMALL = 2_000_000  # tokens and documents of a corpus that is counted as a whole
SOME = 400  # windows or documents that stand for the others
MOST_NAMES, MOST_HITS = 200, 50
_SECONDS = 0.15  # of reading for an answer that is of some windows
_CHUNK = 1 << 16  # tokens that are looked at first
Some = Iterable[tuple[Spans, int]]
"""Spans of some windows, and how many tokens each has."""


def concepts(looked: Looked, query: Query) -> dict[str, Any]:
    """Concepts of a track `t` whose name or number has `q` in it, the most frequent of some windows first."""
    source, track = _track(looked, query)
    names = looked.vocabulary(source, track)
    found, read = counted(looked, source, track)
    whole = small(source)
    counts, wanted = dict(found.tokens), query.text("q", "").lower()
    known = sorted(counts) if names is None else range(len(names))
    hits = [
        c for c in known if not wanted or wanted in (str(c) if names is None else names[c].lower()) or wanted == str(c)
    ]
    first = sorted(hits, key=lambda c: counts.get(c, 0), reverse=True)[:MOST_NAMES]
    shares = {c: counts.get(c, 0) / max(1, read) if whole or c in counts else None for c in first}  # None: not sampled
    listed = [{"c": c, "name": None if names is None else names[c], "share": share} for c, share in shares.items()]
    return {"d": source.name, "t": track, "tracks": source.concept_tracks, "found": len(hits), "concepts": listed,
            "not_seen": sum(c not in counts for c in hits), "read": read, "whole": whole,
            "tokens": source.dataset.num_tokens}  # fmt: skip


def concept(looked: Looked, query: Query) -> dict[str, Any]:
    """Windows whose inputs have a concept `c`, from window `from` on: as many as one answer holds.

    `next` is where the following one continues. By the concept index if there is one, or else by reading the track.
    """
    source, track, number = asked_concept(looked, query)
    names = looked.vocabulary(source, track)
    first = window = query.number("from", 0, source.count, "window")
    until = time.monotonic() + _SECONDS
    hits: list[dict[str, Any]] = []
    for found in concept_windows(source, Where("concept", name=track, concept=number), first, _CHUNK):
        windows, rows = np.unique(found.windows, return_inverse=True)
        inputs = zip(windows.tolist(), np.bincount(rows, found.inputs).astype(int).tolist(), strict=True)
        hits += [{"i": i, "tokens": tokens} for i, tokens in inputs if tokens]
        window = found.next
        if len(hits) >= MOST_HITS or time.monotonic() >= until:
            break
    if len(hits) > MOST_HITS:
        hits, window = hits[:MOST_HITS], hits[MOST_HITS]["i"]
    return {"d": source.name, "t": track, "c": number, "name": None if names is None else names[number], "hits": hits,
            "from": first, "next": window if window < source.count else None, "count": source.count}  # fmt: skip


def asked_concept(looked: Looked, query: Query) -> tuple[Source, str, int]:
    """The dataset, track and concept `c` that are asked for."""
    source, track = _track(looked, query)
    names = looked.vocabulary(source, track)
    return source, track, query.number("c", stop=1 << 32 if names is None else len(names), what="concept")


def small(source: Source) -> bool:
    """Whether the dataset is counted as a whole."""
    return max(source.dataset.num_tokens, source.dataset.num_documents) <= SMALL


def counted(looked: Looked, source: Source, track: str, some: Some | None = None) -> tuple[TrackCounts, int]:
    """Counts of all spans if the dataset is small, which are kept, or else of some windows; and of how many tokens."""
    if not small(source):
        return _sampled(_some(source, track) if some is None else some)
    counts = looked.once((source.dataset.path, track, "counts"), lambda: count_track(source.dataset, track))
    return counts, source.dataset.num_tokens


def _sampled(some: Some) -> tuple[TrackCounts, int]:
    """Counts of some windows, at whose ends spans are clipped, and how many tokens these have."""
    counts, read = TrackCounts(), 0
    for spans, tokens in some:
        codec = spans.codec if isinstance(spans.codec, ConceptsCodec) else None
        count_spans(counts, spans.end - spans.start, spans.records, codec)
        read += tokens
    return counts, read


def _some(source: Source, track: str) -> Iterator[tuple[Spans, int]]:
    """Spans and tokens of windows here and there, the same ones each time; of all windows if they are few."""
    until = time.monotonic() + _SECONDS
    windows = random.Random(0).sample(range(source.count), min(source.count, SOME))
    for start, stop in map(source.token_range, windows):
        stop = min(stop, start + source.seq_len)
        yield source.dataset.spans(track, start, stop), stop - start
        if time.monotonic() > until:
            return


def _track(looked: Looked, query: Query) -> tuple[Source, str]:
    source = looked.source(query)
    known = source.concept_tracks
    if not known:
        raise ConfigError(source.name, "no track of concepts", "a track of concepts", "look at its windows")
    track = query.text("t", "concepts" if "concepts" in known else known[0])
    if track not in known:
        raise ConfigError("track", repr(track), f"one of {', '.join(known)}", "choose one of these")
    return source, track


def stats(looked: Looked, query: Query) -> dict[str, Any]:
    """Lengths of documents and spans, frequencies of concepts and which of them meet: counted, or of some windows."""
    source = looked.source(query)
    dataset, whole, tracks = source.dataset, small(source), {}
    if whole:
        lengths = Counter(n for some in dataset.document_lengths() for n in some.tolist())
    else:
        chosen = random.Random(0).sample(range(dataset.num_documents), min(dataset.num_documents, SOME))
        lengths = Counter(stop - start for start, stop in map(dataset.document_range, chosen))
    for track in source.readable:
        of_concepts = track in source.concept_tracks
        some = [*_some(source, track)] if of_concepts else None
        counts, read = counted(looked, source, track, some)
        found = track_stats(counts, looked.vocabulary(source, track) if of_concepts else None, read)
        found["concepts"] = found["concepts"][:MOST_NAMES]
        found["pairs"] = [] if some is None else _pairs(looked.vocabulary(source, track), some)
        tracks[track] = found
    return {"d": source.name, "whole": whole, "tokens": dataset.num_tokens, "documents": dataset.num_documents,
            "document_lengths": percentiles(lengths), "tracks": tracks}  # fmt: skip


def _pairs(names: list[str] | None, some: Some) -> list[dict[str, Any]]:
    """The concepts that most often stand at the same tokens of some windows."""
    tokens: Counter[tuple[int, int]] = Counter()
    for spans, _ in some:
        for record, length in zip(spans.decode(), (spans.end - spans.start).tolist(), strict=True):
            for pair in combinations(sorted(set(record.tolist()))[:12], 2):
                tokens[pair] += length
    return [
        {"names": [str(c) if names is None else names[c] for c in pair], "ids": pair, "tokens": n}
        for pair, n in tokens.most_common(12)
    ]


def check(looked: Looked, query: Query) -> dict[str, Any]:
    """What a quick `verify` of the dataset finds: sizes and samples of all files."""
    source = looked.source(query)
    started = time.monotonic()
    problems = verify(source.dataset.path, roots=source.dataset.files.roots.given, write_checksums=False, threads=2)
    listed = [
        {"message": str(one), "tokens": one.tokens, "windows": one.tokens and source.reading(*one.tokens)}
        for one in problems
    ]
    seconds, shards = time.monotonic() - started, source.dataset.num_shards
    return {"d": source.name, "problems": listed, "seconds": seconds, "shards": shards}


def damage(looked: Looked, query: Query) -> dict[str, Any]:
    """The ranges of all datasets that are never read, with the windows that they remove from the training."""
    ranges = [
        {"d": source.name, "tokens": tokens, "windows": source.reading(*tokens)}
        for source in looked.sources.values()
        for tokens in source.view.mask.ranges(ALWAYS)
    ]
    return {"excluded": ranges}
