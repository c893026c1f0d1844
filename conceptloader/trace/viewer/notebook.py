"""What a notebook shows: datasets, blends and loaders as self-contained HTML."""

from typing import Any

from conceptloader.base.terminal import counted, masked
from conceptloader.config import Blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.loader.batch.loader import BaseLoader
from conceptloader.order.mixture import Mixture
from conceptloader.trace.ranges import whole
from conceptloader.trace.run import Run
from conceptloader.trace.viewer.render import table, visible, window_html
from conceptloader.trace.viewer.windows import Reader, Samples

_COLUMNS = 8  # phases of a mixture that are shown


class Page:
    """Some HTML, as a notebook shows it; str() is the HTML."""

    def __init__(self, *parts: str) -> None:
        self._html = "".join(parts)

    def _repr_html_(self) -> str:
        return f"<div>{self._html}</div>"

    __str__ = _repr_html_


def show(thing: Any, i: int = 0, *, tokenizer: str | None = None, seq_len: int = 512) -> Page:
    """An object for a notebook: a dataset with window `i`, or document `i` where these are its samples.

    Of a blend or loader the mixture and sample `i` are shown, of a loader the sample `i` after those that it has given.
    seq_len: of the windows of a dataset; tokenizer: as for `conceptloader inspect`. Batches: `conceptloader.decode`.

    Raises ConfigError for anything else, IndexError if there is no number `i`.
    """
    if isinstance(thing, Dataset):
        if thing.mode == "document":
            place = thing.document_range(range(thing.num_documents)[i])
        else:
            windows = thing.windows(max(1, min(seq_len, thing.num_tokens - 1)), tracks=[])
            place = windows.token_range(range(len(windows))[i])
        title = f"<p>tokens {place[0]:,} to {place[1]:,}</p>"
        return Page(facts(thing), title, window_html(Reader(thing, tokenizer).read([whole(*place)])))
    blend = getattr(thing, "blend", thing)
    if not isinstance(blend, Blend):
        raise ConfigError("show", str(type(thing).__name__), "a dataset, a blend or a loader")
    number = i + getattr(thing, "consumed_samples", 0)
    if isinstance(thing, BaseLoader) and thing.run.num_samples in range(number + 1):
        return Page(_mixture(blend.order))
    window = Samples(Run(blend=blend), tokenizer).read(number)
    title = f"<p>sample {number:,} of {visible(window.dataset)}{', which is not read' * (not window.ids)}</p>"
    return Page(_mixture(blend.order), title, window_html(window))


def facts(dataset: Dataset) -> str:
    """What a dataset holds."""
    tokenizer = dataset.tokenizer.name if dataset.tokenizer else "unknown"
    numbers = {"token": dataset.num_tokens, "document": dataset.num_documents, "shard": dataset.num_shards}
    counts = ", ".join(counted(number, noun) for noun, number in numbers.items())
    tracks = [(name, track.codec, dataset.records(name)) for name, track in sorted(dataset.tracks.items())]
    title = f"<p><b>{visible(masked(dataset.path))}</b><br/>{counts}; tokenizer {visible(tokenizer)}</p>"
    return title + (table(("track", "codec", "records"), tracks) if tracks else "")


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
