"""What a dataset has, counted: lengths of documents and spans, tokens of concepts."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.terminal import counted, masked, printable
from conceptloader.format.read.bulk import whole_spans
from conceptloader.format.read.concepts import concept_pairs
from conceptloader.format.read.dataset import Dataset

_CHUNK = 1 << 20
_PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)


@dataclass
class _Counts:
    """lengths: spans by length in tokens; per concept id: spans and tokens; covered: tokens in any span."""

    lengths: Counter[int] = field(default_factory=Counter)
    spans: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    covered: int = 0


def dataset_stats(dataset: Dataset, tracks: list[str] | None = None) -> dict[str, Any]:
    """Counts of a dataset as JSON values. Memory grows with the number of concepts and of distinct lengths only."""
    documents: Counter[int] = Counter()
    for some in dataset.document_lengths():
        _add(documents, some)
    result: dict[str, Any] = {
        "dataset": masked(dataset.path),
        "tokens": dataset.num_tokens,
        "documents": dataset.num_documents,
        "shards": dataset.num_shards,
        "document_lengths": _percentiles(documents),
        "tracks": {},
    }
    for track in dataset.chosen_tracks(tracks):
        result["tracks"][track] = _track_stats(dataset, track)
    return result


def _track_stats(dataset: Dataset, track: str) -> dict[str, Any]:
    found, tokens = _Counts(), dataset.num_tokens
    names, concepts = dataset.vocabulary(track), dataset.tracks[track].codec == "concepts"
    for shard, cut in dataset.by_shard(0, dataset.num_tokens):
        for first, end in zip(cut.first.tolist(), cut.end.tolist(), strict=True):
            for level in dataset.levels[track]:
                for start, stop, _ in whole_spans(dataset.files, shard, level, first, end, _CHUNK):
                    _add(found.lengths, stop - start)
            place = dataset, track, shard, first, end
            found.covered += sum(int((b - a).sum()) for _, a, b in concept_pairs(*place, any_concept=True))
            for ids, start, stop in concept_pairs(*place) if concepts else ():
                _count(found, ids, stop - start)
    ranked = sorted(found.tokens, key=lambda concept: (-found.tokens[concept], concept))
    return {
        "spans": found.lengths.total(),
        "span_lengths": _percentiles(found.lengths),
        "tokens_in_spans": found.covered / max(1, tokens),
        "concepts_used": len(found.spans),
        "concepts": [
            {
                "id": concept,
                "name": names[concept] if names else None,
                "spans": found.spans[concept],
                "tokens": found.tokens[concept],
                "share_of_tokens": found.tokens[concept] / max(1, tokens),
            }
            for concept in ranked
        ],
    }


def _percentiles(lengths: Mapping[int, int]) -> dict[str, int]:
    """Exact percentiles (nearest rank) of a histogram length -> count; empty without values."""
    values = sorted(lengths)
    if not values:
        return {}
    ends = np.cumsum([lengths[value] for value in values])
    ranks = [max(1, -(-int(ends[-1]) * p // 100)) for p in _PERCENTILES]
    return {str(p): values[int(np.searchsorted(ends, rank))] for p, rank in zip(_PERCENTILES, ranks, strict=True)}


def _count(found: _Counts, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    """Add concepts and the lengths of the spans that carry them."""
    values, inverse, spans = np.unique(ids, return_inverse=True, return_counts=True)
    tokens = np.zeros(len(values), np.int64)
    np.add.at(tokens, inverse, lengths)
    found.spans.update(dict(zip(values.tolist(), spans.tolist(), strict=True)))
    found.tokens.update(dict(zip(values.tolist(), tokens.tolist(), strict=True)))


def _add(counter: Counter[int], values: NDArray[np.int64]) -> None:
    found, counts = np.unique(values, return_counts=True)
    counter.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def heading(value: Mapping[str, Any]) -> Iterator[str]:
    """The first lines about a dataset, of what `dataset_stats` gives."""
    counts = ", ".join(counted(value[f"{noun}s"], noun) for noun in ("token", "document", "shard"))
    yield f"{value['dataset']}: {counts}"
    yield f"document lengths  {percentile_line(value['document_lengths'])}"


def name_of(concept: Mapping[str, Any]) -> str:
    """Of one of the concepts that `dataset_stats` gives, for people."""
    return printable(concept["name"], 40) if concept["name"] else str(concept["id"])


def percentile_line(found: Mapping[str, int]) -> str:
    """Percentiles as text."""
    return "  ".join(f"p{p} {length:,}" for p, length in found.items()) or "none"
