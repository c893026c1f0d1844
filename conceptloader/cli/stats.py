"""conceptloader stats"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.terminal import masked, printable
from conceptloader.cli.arguments import add_dataset, positive
from conceptloader.cli.output import Output, as_drawn, new_figure, save_picture, table
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.codecs import ConceptsCodec

DESCRIPTION = """\
Read all documents and spans of a dataset (but no token) and count: lengths of documents and spans (percentiles), and
for each concept its spans, and the share of all tokens that it covers. Text, JSON, or a picture.

With --packing only: what packs of documents would be like (docs/packing.md), for each choice of --seq-len and --bins:
how many, how full, what share of the documents does not fit whole into one, and what share windows would cut.

  conceptloader stats data/corpus --top 30 --picture corpus.png
  conceptloader stats data/corpus --packing --seq-len 2048 4096 --bins 16 64 256 --picture packing.png
"""

_CHUNK = 1 << 20
_PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser)
    parser.add_argument("--track", action="append", metavar="TRACK", help="default: all")
    parser.add_argument("--top", type=positive, default=20, metavar="N", help="concepts to show as text (default: 20)")
    parser.add_argument("--picture", metavar="FILE", help="also draw the counts (.png, .svg, .pdf)")
    parser.add_argument("--packing", action="store_true", help="what packs of documents would be like, and no more")
    parser.add_argument("--seq-len", type=positive, nargs="+", default=[2048, 4096, 8192], metavar="S")
    parser.add_argument("--bins", type=positive, nargs="+", default=[16, 64, 256], metavar="K")


def run(arguments: argparse.Namespace, output: Output) -> None:
    with open_dataset(arguments.dataset, arguments.root) as dataset:
        if arguments.packing:
            from conceptloader.cli.packing import draw_packing, packing_lines, packing_stats

            choices = packing_stats(dataset, arguments.seq_len, arguments.bins)
            if arguments.picture is not None:
                draw_packing(choices, arguments.picture)
            output.result({"dataset": dataset.path, "packing": choices}, packing_lines(choices))
            return
        value = dataset_stats(dataset, arguments.track)
    if arguments.picture is not None:
        save_picture(figure_of(value, arguments.top), arguments.picture)
    output.result(value, _lines(value, arguments.top))


@dataclass
class TrackCounts:
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
        "document_lengths": percentiles(documents),
        "tracks": {},
    }
    for track in dataset.chosen_tracks(tracks):
        names = dataset.vocabulary(track) if dataset.tracks[track].codec == "concepts" else None
        result["tracks"][track] = track_stats(count_track(dataset, track), names, dataset.num_tokens)
    return result


def count_track(dataset: Dataset, track: str) -> TrackCounts:
    """All spans of a track, counted."""
    found, codec = TrackCounts(), dataset.codec(track)
    for shard, first, end, _ in dataset.parts(0, dataset.num_tokens):
        for start, stop, numbers in dataset.reader.whole_runs(shard, track, first, end, _CHUNK):
            records = dataset.reader.records(shard, track, numbers)
            count_spans(found, stop - start, records, codec if isinstance(codec, ConceptsCodec) else None)
    return found


def track_stats(found: TrackCounts, names: list[str] | None, tokens: int) -> dict[str, Any]:
    """Counts of a track as JSON values. names: of its concepts; tokens: that were looked at, in spans or not."""
    ranked = sorted(found.tokens, key=lambda concept: (-found.tokens[concept], concept))
    return {
        "spans": found.lengths.total(),
        "span_lengths": percentiles(found.lengths),
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


def percentiles(lengths: Mapping[int, int]) -> dict[str, int]:
    """Exact percentiles (nearest rank) of a histogram length -> count; empty without values."""
    values = sorted(lengths)
    if not values:
        return {}
    ends = np.cumsum([lengths[value] for value in values])
    ranks = [max(1, -(-int(ends[-1]) * p // 100)) for p in _PERCENTILES]
    return {str(p): values[int(np.searchsorted(ends, rank))] for p, rank in zip(_PERCENTILES, ranks, strict=True)}


def count_spans(
    found: TrackCounts, lengths: NDArray[np.int64], records: Sequence[memoryview], codec: ConceptsCodec | None
) -> None:
    """Add spans: their lengths, int64 [n], and the record of each; codec: None unless these are lists of concepts."""
    _add(found.lengths, lengths)
    found.covered += int(lengths.sum())
    if codec is None or not records:
        return
    sizes = np.array([len(record) for record in records])
    ids = codec.all_ids(b"".join(records), sizes)
    span = np.repeat(np.arange(len(records)), sizes // codec.item)
    pairs = np.sort(span << 32 | ids)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # a concept counts once in a span
    values, inverse, spans = np.unique(pairs & 0xFFFFFFFF, return_inverse=True, return_counts=True)
    tokens = np.zeros(len(values), np.int64)
    np.add.at(tokens, inverse, lengths[pairs >> 32])
    found.spans.update(dict(zip(values.tolist(), spans.tolist(), strict=True)))
    found.tokens.update(dict(zip(values.tolist(), tokens.tolist(), strict=True)))


def _add(counter: Counter[int], values: NDArray[np.int64]) -> None:
    found, counts = np.unique(values, return_counts=True)
    counter.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def _lines(value: Mapping[str, Any], top: int) -> Iterator[str]:
    yield f"{value['dataset']}: {value['tokens']:,} tokens, {value['documents']:,} documents, {value['shards']} shards"
    yield f"document lengths  {_percentile_line(value['document_lengths'])}"
    for track, found in value["tracks"].items():
        yield ""
        yield f"track {track}: {found['spans']:,} spans over {found['tokens_in_spans']:.1%} of the tokens"
        yield f"span lengths  {_percentile_line(found['span_lengths'])}"
        rows = [
            (_name(concept), concept["spans"], concept["tokens"], f"{concept['share_of_tokens']:7.2%}")
            for concept in found["concepts"][:top]
        ]
        if rows:
            yield from table(rows, ("concept", "spans", "tokens", "share"))
        if len(found["concepts"]) > top:
            yield f"... and {len(found['concepts']) - top:,} more concepts (--top, or --json for all)"


def _name(concept: Mapping[str, Any]) -> str:
    return printable(concept["name"], 40) if concept["name"] else str(concept["id"])


def _percentile_line(found: Mapping[str, int]) -> str:
    return "  ".join(f"p{p} {length:,}" for p, length in found.items()) or "none"


def figure_of(value: Mapping[str, Any], top: int) -> Any:
    """A matplotlib Figure, one row per track: lengths of spans, and the concepts that cover most tokens."""
    rows = [(track, found) for track, found in value["tracks"].items() if found["spans"]]
    with new_figure(3 + 3 * len(rows)) as figure:
        axes = figure.subplots(1 + len(rows), 2, squeeze=False)
        _draw_percentiles(axes[0][0], value["document_lengths"], "tokens per document")
        axes[0][1].axis("off")
        axes[0][1].text(0, 0.5, as_drawn("\n".join(list(_lines(value, 0))[:2])), wrap=True)
        for (track, found), (left, right) in zip(rows, axes[1:], strict=True):
            title = as_drawn(track)
            _draw_percentiles(left, found["span_lengths"], f"{title}: tokens per span")
            shown = found["concepts"][:top][::-1]
            if not shown:
                right.axis("off")
                continue
            bars = range(len(shown))  # not by name, since names may be equal once they are cut
            right.barh(bars, [100 * c["share_of_tokens"] for c in shown])
            right.set_yticks(bars, [as_drawn(_name(c)) for c in shown])
            right.set_title(f"{title}: % of tokens under a concept")
    return figure


def _draw_percentiles(axes: Any, found: Mapping[str, int], title: str) -> None:
    axes.plot(list(map(int, found)), list(found.values()), marker="o")
    axes.set_yscale("symlog")
    axes.set_xlabel("percentile")
    axes.set_title(title)
