"""What a notebook shows: datasets, windows, batches and mixtures as self-contained HTML."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from conceptloader.base.terminal import counted, printable
from conceptloader.batch.loader import BaseLoader
from conceptloader.blend import Blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset, DocumentView, Windows
from conceptloader.order.mixture import Mixture
from conceptloader.order.sequential import Sequential
from conceptloader.trace.run import Run
from conceptloader.viewer.source import Looked, Query, Source, alone
from conceptloader.viewer.windows import describe, nested, pieces

_ROWS = 4  # samples of a batch that are written out
_COLUMNS = 8  # phases of a mixture that are shown
_LINES = 6  # levels of spans below the text
_TEXT = "font:13px/1.5 monospace;white-space:pre-wrap;overflow-wrap:anywhere;max-width:70em;margin:.4em 0"


class Page:
    """Some HTML, as a notebook shows it; str() is the HTML."""

    def __init__(self, *parts: str) -> None:
        self._html = "".join(parts)

    def _repr_html_(self) -> str:
        return f"<div>{self._html}</div>"

    __str__ = _repr_html_


def show(thing: Any, i: int = 0, *, dataset: Dataset | None = None, **options: Any) -> Page:
    """An object for a notebook: a dataset, windows or documents, each with number `i` of them; a mixture; a batch.

    Of a blend or loader the mixture and sample `i` are shown, of a loader the sample `i` after those that it has given.
    A window has a picture of its tokens: its documents, and below them its spans in the colours of their concepts.
    A batch is a dict of tensors, which notebooks print as such; with its dataset, the first samples are shown
    as text with their spans. seq_len: of the windows of a dataset, by default 512; tokenizer: as for
    `conceptloader viewer`.

    Raises ConfigError for anything else, IndexError if there is no number `i`.
    """
    if isinstance(thing, Dataset):
        looked = alone(thing, options.get("seq_len", 512), options.get("tokenizer"))
        return Page(_facts(thing), _text(looked, looked.source(Query({})), i))
    if isinstance(thing, (Windows, DocumentView)):
        number = range(len(thing))[i]
        start, stop = thing.token_range(number) if isinstance(thing, Windows) else thing.dataset.document_range(number)
        looked = alone(thing.dataset, stop - start, options.get("tokenizer"))
        title = f"<p>{number:,} of {len(thing):,} of {visible(repr(thing.dataset))}</p>"
        return Page(title, _range(looked, looked.source(Query({})), start, stop))
    blend = getattr(thing, "blend", thing)
    if isinstance(blend, Blend):
        number = i + getattr(thing, "consumed_samples", 0)
        ended = isinstance(thing, BaseLoader) and thing.run.num_samples in range(number + 1)
        return Page(_mixture(blend.order), "" if ended else _sample(blend, number, options.get("tokenizer")))
    if isinstance(thing, (Mixture, Sequential)):
        return Page(_mixture(thing))
    batch = getattr(thing, "batch", thing)
    if isinstance(batch, Mapping) and "input_ids" in batch:
        return Page(_tensors(batch), "" if dataset is None else _samples(batch, dataset, options.get("tokenizer")))
    raise ConfigError("show", str(type(thing).__name__), "a dataset, windows, a blend, a loader, a mixture or a batch")


def visible(text: str) -> str:
    """Text of a corpus as HTML that is this text and nothing else, controls and marks of direction as escapes."""
    return escape(printable(text, keep="\n\t"))


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [[f"{cell:,}" if isinstance(cell, int) else visible(str(cell)) for cell in row] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    return f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{body}</tbody></table>"


def _facts(dataset: Dataset) -> str:
    tokenizer = dataset.tokenizer.name if dataset.tokenizer else "unknown"
    numbers = {"token": dataset.num_tokens, "document": dataset.num_documents, "shard": dataset.num_shards}
    counts = ", ".join(counted(number, noun) for noun, number in numbers.items())
    tracks = [
        (name, track.codec, int(dataset.manifest.shards.tracks[name].records.sum()))
        for name, track in sorted(dataset.tracks.items())
    ]
    title = f"<p><b>{visible(dataset.path)}</b><br/>{counts}; tokenizer {visible(tokenizer)}</p>"
    return title + (_table(("track", "codec", "records"), tracks) if tracks else "")


def _text(looked: Looked, source: Source, i: int) -> str:
    number = range(source.count)[i]
    kind = "document" if source.by_document else f"window of {source.seq_len:,} tokens"
    return f"<p>{kind}, {number:,} of {source.count:,}</p>" + _range(looked, source, *source.token_range(number))


def _sample(blend: Blend, number: int, tokenizer: str | None) -> str:
    """What sample `number` of a run reads, each of its parts."""
    run = Run(blend=blend)
    index, epoch, window = blend.order.sample(number)
    member = run.members[index]
    title = f"<p>sample {number:,}: {window:,} of {visible(run.name(index))}, epoch {epoch}</p>"
    if member is None:
        return title
    looked = alone(member.dataset, 512, tokenizer)
    parts = member.parts(window, number)
    if not parts:
        return title + "<p>Excluded: it is not read.</p>"
    return title + "".join(_range(looked, looked.source(Query({})), part.start, part.stop) for part in parts)


def _range(looked: Looked, source: Source, start: int, stop: int) -> str:
    found = describe(looked, source, start, stop)
    texts = found["pieces"] or [f"{token} " for token in found["ids"]]
    return _marked(texts, found["spans"], found["documents"])


def _marked(texts: Sequence[str], spans: Sequence[Mapping[str, Any]], documents: Sequence[Mapping[str, Any]]) -> str:
    """A picture of the tokens; their texts, with a line below for each span and one before a document; a legend."""
    begun = {document["start"] for document in documents if not document["before"]}
    ends = {0, len(texts), *begun, *(span[end] for span in spans for end in ("s", "e"))}
    borders = sorted(ends & set(range(len(texts) + 1)))
    depth = min(_LINES, 1 + max((span["level"] for span in spans), default=-1))
    hues = _hues(spans)
    drawn = [(span, hues[_key(span)]) for span in spans if span["level"] < _LINES]
    parts = []
    for start, stop in pairwise(borders):
        here = [(span["level"], hue) for span, hue in drawn if span["s"] <= start < span["e"]]
        lines = [
            f"linear-gradient({_colour(hue)} 0 0) 0 calc(100% - {3 * (depth - 1 - level)}px)/100% 2px no-repeat"
            for level, hue in here
        ]
        tint = f"hsl({here[-1][1]} 65% 50%/.15)" if here else "none"
        style = f"padding-bottom:{1 + 3 * depth}px;background:{','.join([*lines, tint])}"
        style += ";border-left:3px double;padding-left:2px" * (start in begun)
        parts.append(f'<span style="{style}">{visible("".join(texts[start:stop]))}</span>')
    names = {_key(span): span["n"] for span in spans}
    legend = [
        f'<span style="border-bottom:2px solid {_colour(hues[key])}">{visible(name)}</span>'
        for key, name in names.items()
    ]
    text = f'<div dir="auto" style="{_TEXT};line-height:calc(1.5em + {3 * depth}px)">{"".join(parts)}</div>'
    return _picture(len(texts), drawn, documents) + text + f'<p style="font-size:90%">{" &nbsp; ".join(legend)}</p>'


def _picture(
    tokens: int, spans: Sequence[tuple[Mapping[str, Any], int]], documents: Sequence[Mapping[str, Any]]
) -> str:
    """Tokens from left to right: a bar for each document, and below them the spans, a row for each level."""
    stops = [*(document["start"] for document in documents[1:]), tokens]
    bars = [
        (document["start"], stop, 0, f'fill="currentColor" opacity="{(0.35, 0.15)[k % 2]}"', _title(document))
        for k, (document, stop) in enumerate(zip(documents, stops, strict=False))
    ]
    bars += [
        (span["s"], span["e"], 1 + span["level"], f'fill="{_colour(hue)}"', f"{span['n']} [{span['s']}, {span['e']})")
        for span, hue in spans
    ]
    rows = 1 + max((row for _, _, row, _, _ in bars), default=-1)
    shapes = "".join(
        f'<rect x="{start}" y="{9 * row}" width="{stop - start}" height="7" {look}><title>{visible(name)}</title>'
        "</rect>"
        for start, stop, row, look, name in bars
    )
    size = f'viewBox="0 0 {tokens} {9 * rows}" height="{9 * rows}" preserveAspectRatio="none"'
    return f'<svg {size} style="display:block;width:100%;max-width:70em" role="img">{shapes}</svg>'


def _title(document: Mapping[str, Any]) -> str:
    return str(document["id"] or (f"document {document['n']}" if document["n"] >= 0 else "documents are unknown"))


def _key(span: Mapping[str, Any]) -> tuple[str, Any]:
    return span["t"], span["c"] if isinstance(span["c"], int) else ""


def _hues(spans: Sequence[Mapping[str, Any]]) -> dict[tuple[str, Any], int]:
    """A hue for each concept, its own one unless that is too near to one with more tokens, as the page has it."""
    tokens: Counter[tuple[str, Any]] = Counter()
    for span in spans:
        tokens[_key(span)] += span["e"] - span["s"]
    found: dict[tuple[str, Any], int] = {}
    for key, _ in tokens.most_common():
        number = key[1] if isinstance(key[1], int) else sum(map(ord, key[0]))
        hues = [round(number * 137.508 + 225 + 47 * k) % 360 for k in range(16)]
        far = (hue for hue in hues if all(24 <= (hue - one) % 360 <= 336 for one in found.values()))
        found[key] = next(far, hues[-1])
    return found


def _colour(hue: int) -> str:
    return f"hsl({hue} 55% 52%)"


def _mixture(order: Mixture | Sequential) -> str:
    phases = order.phases if isinstance(order, Mixture) else []
    rows: list[tuple[object, ...]] = [(name, size) for name, size in zip(order.names, order.sizes, strict=True)]
    head = ["dataset", "windows"]
    for phase in phases[:: -(-len(phases) // _COLUMNS) or 1]:
        total = sum(phase.weights.values())
        shares = {name: f"{phase.weights[name] / total:.1%}" if name in phase.weights else "-" for name in order.names}
        head.append(f"weight from sample {phase.start:,}")
        rows = [(*row, shares[name]) for row, name in zip(rows, order.names, strict=True)]
    kind = f"seed {order.seed}, blocks of {order.block}" if isinstance(order, Mixture) else "one after the other"
    return f"<p>{type(order).__name__} of {len(rows):,} datasets, {kind}</p>" + _table(head, rows)


def _tensors(batch: Mapping[str, Any]) -> str:
    rows = [
        (name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        if hasattr(value, "shape")
        else (name, "", value)
        for name, value in batch.items()
    ]
    return _table(("tensor", "shape", "type or value"), rows)


def _samples(batch: Mapping[str, Any], dataset: Dataset, tokenizer: str | None) -> str:
    """The first samples as text, with the spans that the batch itself has (of padded tracks)."""
    looked = alone(dataset, 512, tokenizer)
    source = looked.source(Query({}))
    decode = looked.decoder(source)
    tracks = [name for name in source.concept_tracks if f"{name}_num_spans" in batch and f"{name}_ids" in batch]
    shown = []
    for row, ids in enumerate(np.asarray(batch["input_ids"])[:_ROWS].tolist()):
        spans = []
        for track in tracks:
            vocabulary = looked.vocabulary(source, track)
            ranges, concepts, counts = (
                np.asarray(batch[f"{track}_{kind}"])[row] for kind in ("spans", "ids", "counts")
            )
            for k in range(int(batch[f"{track}_num_spans"][row])):
                for c in concepts[k, : counts[k]].tolist():
                    name = str(c) if vocabulary is None else vocabulary[c]
                    spans.append({"t": track, "c": c, "n": name, "s": int(ranges[k, 0]), "e": int(ranges[k, 1])})
        texts = [f"{token} " for token in ids] if decode is None else pieces(decode, ids)
        shown.append(f"<p>sample {row}</p>" + _marked(texts, nested(spans), ()))
    return "".join(shown)
