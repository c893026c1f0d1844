"""What a notebook shows: datasets, windows, batches and mixtures as self-contained HTML."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conceptloader.base.terminal import counted, masked
from conceptloader.config import Blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset, DocumentView, Windows
from conceptloader.loader.batch.loader import BaseLoader
from conceptloader.order.mixture import Mixture
from conceptloader.trace.run import Run
from conceptloader.trace.viewer.render import table, visible, window_html
from conceptloader.trace.viewer.windows import Reader, Span, Window, nested

_ROWS = 4  # samples of a batch that are written out
_COLUMNS = 8  # phases of a mixture that are shown


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
    `conceptloader inspect`.

    Raises ConfigError for anything else, IndexError if there is no number `i`.
    """
    tokenizer = options.get("tokenizer")
    if isinstance(thing, Dataset):
        if thing.mode == "document":
            shown: Windows | DocumentView = thing.documents([])
        else:
            shown = thing.windows(max(1, min(options.get("seq_len", 512), thing.num_tokens - 1)), tracks=[])
        return Page(facts(thing), _one_of(shown, i, tokenizer))
    if isinstance(thing, (Windows, DocumentView)):
        return Page(_one_of(thing, i, tokenizer))
    blend = getattr(thing, "blend", thing)
    if isinstance(blend, Blend):
        number = i + getattr(thing, "consumed_samples", 0)
        ended = isinstance(thing, BaseLoader) and thing.run.num_samples in range(number + 1)
        return Page(_mixture(blend.order), "" if ended else _sample(blend, number, tokenizer))
    if isinstance(thing, Mixture):
        return Page(_mixture(thing))
    batch = getattr(thing, "batch", thing)
    if isinstance(batch, Mapping) and "input_ids" in batch:
        return Page(_tensors(batch), "" if dataset is None else _samples(batch, Reader(dataset, tokenizer)))
    raise ConfigError("show", str(type(thing).__name__), "a dataset, windows, a blend, a loader, a mixture or a batch")


def facts(dataset: Dataset) -> str:
    """What a dataset holds."""
    tokenizer = dataset.tokenizer.name if dataset.tokenizer else "unknown"
    numbers = {"token": dataset.num_tokens, "document": dataset.num_documents, "shard": dataset.num_shards}
    counts = ", ".join(counted(number, noun) for noun, number in numbers.items())
    tracks = [(name, track.codec, dataset.records(name)) for name, track in sorted(dataset.tracks.items())]
    title = f"<p><b>{visible(masked(dataset.path))}</b><br/>{counts}; tokenizer {visible(tokenizer)}</p>"
    return title + (table(("track", "codec", "records"), tracks) if tracks else "")


def _one_of(things: Windows | DocumentView, i: int, tokenizer: str | None) -> str:
    number, dataset = range(len(things))[i], things.dataset
    if isinstance(things, Windows):
        kind, (start, stop) = "window", things.token_range(number)
    else:
        kind, (start, stop) = "document", dataset.document_range(number)
    title = f"{kind} {number:,} of {len(things):,} of {visible(repr(dataset))}"
    return f"<p>{title}</p>" + window_html(Reader(dataset, tokenizer).read([(start, stop, 0)]))


def _sample(blend: Blend, number: int, tokenizer: str | None) -> str:
    """What sample `number` of a run reads."""
    run = Run(blend=blend)
    index, epoch, window = blend.order.sample(number)
    member = run.members[index]
    title = f"<p>sample {number:,}: {window:,} of {visible(run.name(index))}, epoch {epoch}</p>"
    if member is None:
        return title
    parts = member.parts(window, number)
    if not parts:
        return title + "<p>Excluded: it is not read.</p>"
    ranges = [(part.start, part.start + part.inputs, part.place) for part in parts]
    return title + window_html(Reader(member.dataset, tokenizer).read(ranges))


def _mixture(order: Mixture) -> str:
    phases = order.segments if order.num_samples is None else []
    rows: list[tuple[object, ...]] = [(name, size) for name, size in zip(order.names, order.sizes, strict=True)]
    head = ["dataset", "windows"]
    for phase in phases[:: -(-len(phases) // _COLUMNS) or 1]:
        total = sum(phase.weights.values())
        shares = {name: f"{phase.weights[name] / total:.1%}" if name in phase.weights else "-" for name in order.names}
        head.append(f"weight from sample {phase.at:,}")
        rows = [(*row, shares[name]) for row, name in zip(rows, order.names, strict=True)]
    kind = f"seed {order.seed}, blocks of {order.block}" if order.num_samples is None else "one after the other"
    return f"<p>{type(order).__name__} of {len(rows):,} datasets, {kind}</p>" + table(head, rows)


def _tensors(batch: Mapping[str, Any]) -> str:
    rows = [
        (name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        if hasattr(value, "shape")
        else (name, "", value)
        for name, value in batch.items()
    ]
    return table(("tensor", "shape", "type or value"), rows)


def _samples(batch: Mapping[str, Any], reader: Reader) -> str:
    """The first samples as text, with the spans that the batch itself has (of padded tracks)."""
    each = [(level, names) for name, names in reader.names.items() for level in reader.dataset.levels[name]]
    tracks = [one for one in each if f"{one[0]}_num_spans" in batch and f"{one[0]}_ids" in batch]
    shown = []
    for row, ids in enumerate(np.asarray(batch["input_ids"])[:_ROWS].tolist()):
        spans = []
        for track, names in tracks:
            ranges, concepts, counts = (
                np.asarray(batch[f"{track}_{kind}"])[row] for kind in ("spans", "ids", "counts")
            )
            for k in range(int(batch[f"{track}_num_spans"][row])):
                start, end = ranges[k].tolist()
                for c in concepts[k, : counts[k]].tolist():
                    spans.append(Span(start, end, track, c, str(c) if names is None else names[c]))
        shown.append(f"<p>sample {row}</p>" + window_html(Window(reader.texts(ids), spans=nested(spans))))
    return "".join(shown)
