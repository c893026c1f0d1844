"""`inspect --html` and `trace --html`: one page that needs no server, no network and no other file."""

import argparse
import contextlib
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

from conceptloader.base.terminal import masked, printable
from conceptloader.base.version import __version__
from conceptloader.cli.output import Output
from conceptloader.cli.window import describe, sample_lines, weights_line
from conceptloader.errors import ReadError, ResumeError
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.progress.found import locate_state
from conceptloader.storage.durable import write_file
from conceptloader.trace import Run, SampleTrace, trace_sample
from conceptloader.trace.ranges import whole
from conceptloader.trace.seen import ranges_of_steps
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
    """Write the page of `trace --html`: of --step, --steps or --sample."""
    if arguments.sample is not None:
        title, unit, first, stop = f"Sample {arguments.sample:,}", "sample", run.begin, arguments.sample + 1
        ranges = [(stop - 1, stop, run.at(stop - 1))]
    else:
        unit, (first, stop) = "step", arguments.steps or (arguments.step, arguments.step + 1)
        title = f"Steps {first:,} to {stop - 1:,}" if arguments.steps else f"Step {first:,}"
        run.at_step(first)  # raises where there is none
        stop = min(stop, run.steps.launches[-1].plan.stop_step or stop)
        ranges = [(low, high, era) for low, high, _, era in ranges_of_steps(run, first, stop)]
    if arguments.step is not None:  # with the mixture up to it
        first = run.steps.launches[0].start.step
    x = sorted({first + (stop - first) * k // _POINTS for k in range(_POINTS + 1)})
    ats = [at if unit == "sample" else run.steps.range_of(at)[0] for at in x]
    # Within a block the datasets are in any order: their shares are those of whole ones, but for the ends.
    counts = [run.drawn.counts(at if at in (ats[0], ats[-1]) else max(ats[0], _block_of(run, at))) for at in ats]
    ends = f"{unit} {first:,}", f"{unit} {stop - 1:,}"
    weights = [weights_line(one) for low, high, era in ranges for one in era.segments_in(low, high)]
    listed = [*weights[:_NAMES], *([f"{_NAMES} of {len(weights):,} are listed"] if len(weights) > _NAMES else [])]
    mixture = "<h2>Mixture</h2>" + mixture_html(run.drawn.names, x, counts, ends)
    listed += [] if arguments.run_log is None else [_trained(run, arguments.run_log)]
    mixture += f'<p class="note">{"<br>".join(map(visible, listed))}</p>'

    every = (sample for low, high, _ in ranges for sample in range(low, high))
    found = [trace_sample(run, sample) for sample in islice(every, _SAMPLES)]
    samples = Samples(run)
    articles = _bounded(_sample(samples.read(one.sample), one) for one in found)
    total = sum(high - low for low, high, _ in ranges)
    head = "sample", "step", "micro batch", "rank", "slot", "dataset", "window", "epoch", "documents", "concepts"
    rows = [_row(one, k < len(articles)) for k, one in enumerate(found)]
    shown = f'<h2>Samples: {len(rows):,} of {total:,}</h2><div class="rows" tabindex="0">{table(head, rows)}</div>'
    name = os.path.basename(os.path.abspath(arguments.config or arguments.run_log))
    _save(f"{title} of {name}", [mixture, shown], articles, total, arguments.html, output)


def _block_of(run: Run, sample: int) -> int:
    """The sample with which the block of a sample begins; blocks begin again with each change of weights."""
    start = max((one.at for one in run.blend.order.segments if one.at <= sample), default=0)
    return sample - (sample - start) % run.blend.config.block


def _trained(run: Run, log: str) -> str:
    """What was trained: by the newest checkpoint next to the run log, or else what the last launch began with."""
    start, found = run.steps.launches[-1].start, None
    folder = log if os.path.isdir(log) else os.path.dirname(os.path.abspath(log))
    for one in sorted(os.scandir(folder), key=lambda entry: entry.stat().st_mtime, reverse=True)[:_NAMES]:
        with contextlib.suppress(ResumeError, ReadError):
            found = one.name, locate_state(one.path)[1].consumed
            break
    launched = f"{len(run.steps.launches)} launches that count, the last one at step {start.step:,}"
    if found is None or found[1] < start.consumed:
        return f"trained: {start.consumed:,} samples before the last launch, and what followed; {launched}"
    end = "" if run.steps.launches[-1].plan.stop is None else f" of {run.steps.launches[-1].plan.stop:,}"
    place = run.places(found[1] - 1) if found[1] else []
    step = f", to the end of step {place[-1].step:,}" if place else ""
    return f"trained: {found[1]:,}{end} samples{step}, by {found[0]}; {launched}"


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
