"""The JSON API of the page: the names of all answers, and those about a run. No state is kept between requests.

Open windows.py next, then corpus.py.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from conceptloader.base.strict import plain
from conceptloader.base.version import __version__
from conceptloader.errors import ConceptloaderError
from conceptloader.trace.run import Run
from conceptloader.trace.samples import trace_sample
from conceptloader.viewer import corpus, search, windows
from conceptloader.viewer.source import Looked, Query, Source

POINTS = 96  # of the drawn mixture
MOST_SAMPLES = 4096  # of a step that are listed
MOST_TRACED = 48  # of a step whose documents and concepts are read
MOST_SEEN, MOST_WINDOWS = 300, 3_000  # times in an answer, windows that are looked up


def about(looked: Looked, query: Query) -> dict[str, Any]:
    """What is looked at; the page asks once."""
    sources = []
    for source in looked.sources.values():
        dataset, shards = source.dataset, source.dataset.manifest.shards.tracks
        tracks = [
            (name, track.codec, int(shards[name].records.sum()), track.vocabulary and track.vocabulary.count)
            for name, track in sorted(dataset.tracks.items())
        ]
        sources.append({
            "name": source.name, "path": dataset.path, "mode": dataset.mode, "tokens": dataset.num_tokens,
            "documents": dataset.num_documents, "shards": dataset.num_shards, "tracks": tracks,
            "concept_tracks": source.concept_tracks, "seq_len": source.seq_len, "count": source.count,
            "tokenizer": dataset.tokenizer.name if dataset.tokenizer else None,
        })  # fmt: skip
    return {"title": looked.title, "version": __version__, "run": _about_run(looked), "sources": sources}


def _about_run(looked: Looked) -> dict[str, Any] | None:
    if looked.alone:
        return None
    run = looked.run
    starts = [] if run.history is None else [segment.start for segment in run.history.segments]
    position = looked.position()
    return {
        "seed": run.blend.spec.seed, "order": run.blend.spec.order, "horizon": looked.horizon,
        "said": looked.samples is not None, "steps": run.history is not None,
        "position": position and dict(zip(("step", "sample", "how"), position, strict=True)),
        "starts": [(s.step, s.consumed, s.batch, s.micro_batch_size, s.dp_size, s.time, s.data_stage) for s in starts],
    }  # fmt: skip


def mixture(looked: Looked, query: Query) -> dict[str, Any]:
    """Samples by dataset over the run, by arithmetic: `x`, and the number that each dataset gave before each x."""
    run = looked.asked_run()
    samples = max(1, query.number("n", looked.horizon, what="samples"))
    if run.blend.spec.order == "sequential":
        samples = min(samples, sum(run.blend.order.sizes))
    x, drawn = sorted({samples * k // POINTS for k in range(POINTS + 1)}), run.drawn
    counts = np.array([drawn.counts(at) for at in x]).T.tolist()
    limits = dict(zip(run.blend.order.names, getattr(run.blend.order, "max_epochs", ()), strict=False))
    members = [
        {"name": name, "windows": size, "counts": counts[k], "epochs": counts[k][-1] / max(1, size),
         "limit": limits.get(name),
         "there": name in looked.sources}
        for k, (name, size) in enumerate(zip(drawn.names, drawn.sizes, strict=True))
    ]  # fmt: skip
    phases = _phases(run, x)
    skips = [{"at": skip.at, "count": skip.count} for skip in run.blend.spec.skips]
    return {"samples": samples, "x": x, "members": members, "phases": phases, "skips": skips}


def _phases(run: Run, x: list[int]) -> list[dict[str, Any]]:
    """Those in force at some of the samples x; of weights that were set live, with reason and losses."""
    eras = [(at, run.at(max(at, run.begin))) for at in x]
    found = {(id(era.blend), one.phase.start): one for at, era in eras for one in era.phases_in(at, at + 1)}
    return [{**plain(one.phase), "why": one.why, "losses": dict(one.losses)} for one in found.values()]


def step(looked: Looked, query: Query) -> dict[str, Any]:
    """The samples of step `n` by rank, of rank `rank` only; what is in the first of them."""
    run = looked.asked_run()
    position = looked.position()
    present = position[0] if position else 0
    end = run.steps.segments[-1].plan.stop_step
    number = query.number("n", present if end is None else min(present, end - 1), what="step")
    plan, era = run.steps.segment(number).plan, run.at_step(number)
    first, stop = run.steps.range_of(number)
    ranks = [query.number("rank", stop=plan.partition.dp_size)] if "rank" in query else range(plan.partition.dp_size)
    shares = ((rank, k, row) for rank in ranks for k, row in enumerate(plan.micro_batches(number, rank)))
    samples: list[dict[str, Any]] = []
    for rank, micro_batch, row in shares:
        if len(samples) >= MOST_SAMPLES:
            break
        columns = (part.tolist() for part in (row, *era.blend.order.sample_many(row)))
        samples += [
            {"sample": at, "rank": rank, "micro_batch": micro_batch, "d": era.name(k), "k": k, "epoch": epoch, "i": i}
            for at, k, epoch, i in zip(*columns, strict=True)
        ]
    return {"n": number, "range": [first, stop], "ranks": plan.partition.dp_size, "rank": query.text("rank", ""),
            "samples": samples,
            "in_all": (stop - first) * len(ranks) // plan.partition.dp_size,
            **_contents(looked, era, [one["sample"] for one in samples[:MOST_TRACED]])}  # fmt: skip


def _contents(looked: Looked, run: Run, samples: list[int]) -> dict[str, Any]:
    """Documents of some samples, and tokens of their concepts. Read errors are listed by sample."""
    documents: dict[str, list[Any]] = {}
    tokens: Counter[tuple[str, int, str]] = Counter()
    problems: list[dict[str, Any]] = []
    for sample in samples:
        try:
            found = trace_sample(run, sample)
        except ConceptloaderError as error:
            problems.append({"sample": sample, "message": str(error)})
            continue
        documents[str(sample)] = [[part.document, part.id] for part in found.documents]
        source = looked.sources.get(found.dataset)  # an earlier launch may have read others
        for track in set(found.spans).intersection(source.concept_tracks if source else ()):
            for span in found.spans[track]:
                for c, name in zip(span.record, span.names or map(str, span.record), strict=True):
                    tokens[track, c, name] += span.end - span.start
    concepts = [{"t": t, "c": c, "name": name, "tokens": n} for (t, c, name), n in tokens.most_common(24)]
    return {"documents": documents, "traced": len(samples), "problems": problems, "concepts": concepts}


def seen(looked: Looked, query: Query) -> dict[str, Any]:
    """When the windows `i` (comma-separated), or those of document `n`, are read until sample `until`, in order."""
    run, source = looked.asked_run(), looked.source(query)
    until = max(1, query.number("until", looked.horizon, what="samples"))
    windows: Sequence[int]
    if "n" in query:
        windows = source.windows_of(query.number("n", stop=source.dataset.num_documents, what="document"))
    else:
        windows = [Query({"i": i}).number("i", stop=source.count, what="window") for i in query.text("i").split(",")]
    times: list[dict[str, Any]] = []
    epochs = _epochs(run, source, windows[:MOST_WINDOWS], until)
    while len(times) < MOST_SEEN and (one := next(epochs, None)) is not None:  # which follow each other
        era, index, epoch, read = one
        found = ((era.blend.order.index_of_window(index, epoch, window), window) for window in read)
        for sample, window in sorted((at, w) for at, w in found if at is not None and era.first <= at < until):
            if sample < era.stop and era.member(index).is_read(window, sample):
                places = [place._asdict() for place in era.places(sample)]
                times.append({"sample": sample, "places": places, "epoch": epoch, "window": window})
    more = len(windows) > MOST_WINDOWS or next(epochs, None) is not None
    return {"until": until, "more": more, "seen": times}


def _epochs(
    run: Run, source: Source, windows: Sequence[int], until: int
) -> Iterator[tuple[Run, int, int, Sequence[int]]]:
    """(run of one order, index of the member, epoch, windows that are read) of a source, in the order of the run."""
    for era in run.eras(0, until):
        for index, member in enumerate(era.members):
            if member is not None and (era.name(index), member.view.member) == (source.name, source.view.member):
                read = [window for window in windows if member.is_read(window, era.first)]
                for epoch in era.epochs(index, until) if read else ():
                    yield era, index, epoch, read


_ANSWERS = (
    about, windows.window, windows.document, search.search, corpus.concepts, corpus.concept, search.contexts, mixture,
    step, seen, corpus.stats, corpus.damage, corpus.check,
)  # fmt: skip
PAGES: Mapping[str, Callable[[Looked, Query], dict[str, Any]]] = {answer.__name__: answer for answer in _ANSWERS}
