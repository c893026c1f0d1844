"""`inspect --html` and `trace --html`: one page that needs no server, no network and no other file."""

import argparse
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from conceptloader.base.terminal import masked, printable
from conceptloader.base.version import __version__
from conceptloader.cli.output import Output
from conceptloader.cli.window import describe, sample_lines, weights_line
from conceptloader.format.read.dataset import Dataset
from conceptloader.storage.durable import write_file
from conceptloader.trace import Run, SampleTrace, trace_sample
from conceptloader.trace.ranges import whole
from conceptloader.trace.viewer.notebook import facts
from conceptloader.trace.viewer.render import Html, mixture_html, table, visible, window_html
from conceptloader.trace.viewer.windows import Reader, Samples, Window

_SIZE = 4 << 20  # characters of windows, after which no other begins
_TOKENS = 1 << 17  # of a window
_SAMPLES = 2000  # in their table
_POINTS, _NAMES = 60, 8  # of the picture of a mixture; names in a cell, weights that are listed


def save_windows(
    dataset: Dataset, places: Sequence[tuple[str, int, int]], arguments: argparse.Namespace, output: Output
) -> None:
    """Write the page of `inspect --html`. places: (title, start, stop) of windows."""
    reader = Reader(dataset, arguments.tokenizer)

    def article(title: str, start: int, stop: int) -> str:
        end = min(stop, start + _TOKENS)
        cut = f", of which the first {_TOKENS:,} are shown" * (end < stop)
        _, lines = describe(dataset, start, end, reader.tokenizer, arguments.column)
        return _article(f"{title}: {stop - start:,} tokens{cut}", reader.read([whole(start, end)]), lines)

    articles = _bounded(article(*place) for place in places)
    _save(os.path.basename(dataset.path.rstrip("/")), [facts(dataset)], articles, len(places), arguments.html, output)


def save_run(run: Run, arguments: argparse.Namespace, output: Output) -> None:
    """Write the page of `trace --html`: of --step or --sample."""
    if arguments.step is None:
        title, first, stop = f"Sample {arguments.sample:,}", arguments.sample, arguments.sample + 1
        era = run.at(first)
    else:
        title, (first, stop) = f"Step {arguments.step:,}", run.steps.range_of(arguments.step)
        era = run.at_step(arguments.step)
    order, begin = era.blend.order, era.first
    # Within a block the datasets are in any order: shares are those of whole ones, but for the ends.
    inner = (_block_of(era, begin + (stop - begin) * k // _POINTS) for k in range(1, _POINTS))
    x = sorted({begin, *(at for at in inner if at > begin), stop})
    counts = [order.counts(at) for at in x]
    weights = [weights_line(one) for one in era.segments_in(first, stop)]
    listed = [*weights[:_NAMES], *([f"{_NAMES} of {len(weights):,} are listed"] if len(weights) > _NAMES else [])]
    mixture = "<h2>Mixture</h2>" + mixture_html(order.names, x, counts, (f"sample {begin:,}", title.lower()))
    mixture += f'<p class="note">{"<br>".join(map(visible, listed))}</p>'

    found = [trace_sample(era, sample) for sample in range(first, min(stop, first + _SAMPLES))]
    samples, total = Samples(era), stop - first
    articles = _bounded(_sample(samples.read(one.sample), one) for one in found)
    head = "sample", "step", "micro batch", "rank", "slot", "dataset", "window", "epoch", "documents", "concepts"
    rows = [_row(one, k < len(articles)) for k, one in enumerate(found)]
    shown = f'<h2>Samples: {len(rows):,} of {total:,}</h2><div class="rows" tabindex="0">{table(head, rows)}</div>'
    name = os.path.basename(os.path.abspath(arguments.config or arguments.run_log))
    _save(f"{title} of {name}", [mixture, shown], articles, total, arguments.html, output)


def _block_of(run: Run, sample: int) -> int:
    """The sample with which the block of a sample begins; blocks begin again with each change of weights."""
    start = max((one.at for one in run.blend.order.segments if one.at <= sample), default=0)
    return sample - (sample - start) % run.blend.config.block


def _row(one: SampleTrace, linked: bool) -> list[object]:
    tokens: Counter[str] = Counter()
    for span in (span for spans in one.spans.values() for span in spans):
        for name in span.names or [str(span.record)]:
            tokens[name] += span.end - span.start
    documents = [part.id or f"number {part.document}" for part in one.documents]
    concepts = [f"{name} {count:,}" for name, count in tokens.most_common()]
    sample = Html(f'<a href="#s{one.sample}">{one.sample:,}</a>') if linked else one.sample
    place = one.places[-1] if one.places else [""] * 4
    return [sample, *place, one.dataset, one.window, one.epoch, _listed(documents), _listed(concepts)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(printable(name, 40) for name in names[:_NAMES]) + more


def _sample(window: Window, one: SampleTrace) -> str:
    title, *lines = sample_lines(one)
    return _article(title, window, lines, f"s{one.sample}")


def _article(title: str, window: Window, lines: Iterable[str], name: str = "") -> str:
    scores = [f"{span.track}: {span}" for span in window.spans if span.score is not None]
    text = visible("\n".join(map(printable, [*lines, *scores])))
    details = f"<details><summary>documents and spans as text</summary><pre>{text}</pre></details>"
    return f'<article id="{name}"><h3>{visible(title)}</h3>{window_html(window)}{details}</article>'


def _bounded(articles: Iterable[str]) -> list[str]:
    """As many of them as a page has room for."""
    found, size = [], 0
    for one in articles:
        found.append(one)
        size += len(one)
        if size > _SIZE:
            break
    return found


def _save(title: str, parts: Sequence[str], articles: Sequence[str], total: int, path: str, output: Output) -> None:
    """Write a page, atomically. total: how many windows there would be."""
    style, script = (Path(__file__).with_name(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    # All text is escaped; should that ever fail, nothing but this script runs, and nothing is loaded.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    name, shown = visible(masked(title)), f"{len(articles):,} of {total:,}"
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title><style>{style}</style></head>
<body><header><h1>{name}</h1><output></output><input type="search" placeholder="Filter" aria-label="Filter"></header>
<main>{"".join(parts)}<h2>Windows: {shown}</h2>{"".join(articles)}</main>
<footer>conceptloader {__version__}</footer><script>{script}</script></body></html>
"""
    write_file(os.path.abspath(path), page.encode())
    output.result({"path": path, "windows": len(articles), "of": total}, [f"{path}: {shown} windows"])
