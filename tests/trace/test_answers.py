"""All that can be asked about a run, against walks through its samples: windows, documents and packs of shards, views
and views of views; blends, phases, skips, quarantine, exclusions; restarts. With and without an index."""

import contextlib
import logging
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conceptloader.errors import ConfigError
from conceptloader.index.build import build_index
from conceptloader.index.reader import ConceptIndex
from conceptloader.trace import (
    Run,
    excluded_since,
    exposure,
    exposure_by,
    locate_concept,
    locate_document,
    locate_where,
    parse_where,
    trace_sample,
    trace_step,
    trace_steps,
)
from tests.oracle.corpora import write_all
from tests.oracle.samples import meaning
from tests.oracle.test_oracle import configurations
from tests.scale import SOAK, scaled
from tests.trace.walk import EXPRESSIONS, Walk, concepts_of, excluding_at_once, histories, holds

TRACKS = "concepts", "scored"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def make(seed: int) -> Path:
        folder = write_all(tmp_path_factory.mktemp(f"seed-{seed}-"), seed)
        for name in ("plain", "more", "joined", "documents") if seed % 2 else ():
            build_index(folder / name, "concepts")
        return folder

    return lru_cache(None)(make)


@pytest.mark.timeout(7200 if SOAK else 600)
@settings(
    max_examples=scaled(20, 5_000),
    derandomize=not SOAK,
    database=None,
    print_blob=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_answers_are_those_of_a_walk(data: st.DataObject, corpora: Any, monkeypatch_chunks: Any) -> None:
    logging.getLogger("conceptloader").setLevel(logging.ERROR)
    folder = corpora(data.draw(st.integers(0, scaled(3, 300)), "corpora"))
    config = data.draw(configurations(folder).flatmap(excluding_at_once), "config")
    walk = Walk(folder, config, data.draw(histories(config["seq_len"]), "starts"))
    with monkeypatch_chunks(data.draw(st.sampled_from([5, 1 << 17]), "at once")):
        check_samples(walk)
        check_steps(walk)
        check_exposure(walk, data.draw(st.integers(0, walk.steps), "until"))
        for _ in range(3):
            check_document(walk, data.draw)
        check_concepts(walk, data.draw(EXPRESSIONS, "where"), data.draw(st.integers(0, 8), "concept"))


@pytest.fixture(scope="module")
def monkeypatch_chunks() -> Any:
    """Look up so many samples and ranges at once."""
    from conceptloader.trace import bulk, concepts, ranges

    @contextlib.contextmanager
    def patched(size: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bulk, "_SAMPLES", 2 * size + 1)
            patch.setattr(ranges, "_RANGES", size)
            patch.setattr(concepts, "_CHUNK_TOKENS", size)
            patch.setattr(ConceptIndex, "chunk", size)
            yield

    return patched


def check_samples(walk: Walk) -> None:
    """What single samples say."""
    for t in range(0, walk.count, 3):
        found, (name, epoch, window) = trace_sample(walk.run, t), walk.oracle.locate(t)
        data, wanted = walk.data[name], walk.oracle.sample(t)
        assert (found.dataset, found.epoch, found.window, found.places) == (name, epoch, window, walk.places.get(t, []))
        shown = [(one.document, *one.tokens, one.inputs, one.labels) for one in found.documents]
        assert sorted(shown) == sorted(walk.held[t])
        for one in found.documents:
            assert one.id == (data.ids[one.document] or None if one.document >= 0 else None)
            assert one.source_document == (walk.source_of(name, one.document) if data.runs else None)
        if walk.held[t]:
            assert found.tokens == (min(one.start for one in walk.held[t]), max(one.end for one in walk.held[t]))
        for track, spans in wanted.spans.items():
            if track in TRACKS and track in data.spans:
                mine = sorted(found.spans[track], key=lambda span: span.start) if walk.held[t] else []
                assert [(s.start, s.end, s.begins_before, s.ends_after) for s in mine] == [
                    (s.start, s.end, s.begins_before, s.ends_after) for s in spans
                ]
                assert [s.names for s in mine] == [
                    [f"concept-{k}" for k in meaning(data.codecs[track], s.record)[0]] for s in spans
                ]


def check_steps(walk: Walk) -> None:
    """The table, and the samples of a step."""
    if not walk.steps:
        return
    of_token = {name: {t: concepts_of(data, t) for t in TRACKS} for name, data in walk.data.items()}
    expected = []
    for step in range(walk.steps):
        samples = range(*walk.run.steps.range_of(step))
        assert step % 5 or [one.sample for one in trace_step(walk.run, step)] == list(samples)
        for t in samples:
            name, epoch, window = walk.oracle.locate(t)
            places = [place for place in walk.places[t] if place.step == step]
            fixed = {**places[0]._asdict(), "sample": t, "dataset": name, "epoch": epoch, "window": window}
            if not walk.held[t]:
                none = dict.fromkeys(("document", "id", "start", "end"))
                expected.append({**fixed, **none, "inputs": 0, "concepts": [], "scored": []})
            for one in sorted(walk.held[t], key=lambda held: held.start):
                size = one.inputs[1] - one.inputs[0] if one.inputs else 0
                row = {**fixed, "start": one.start, "end": one.end, "inputs": size}
                row |= {"document": None, "id": None}
                if one.document >= 0:
                    row |= {"document": one.document, "id": walk.data[name].ids[one.document] or None}
                for track in TRACKS:
                    ids = of_token[name][track][one.start : one.start + size]
                    row[track] = sorted({k for found in ids for k in found})
                expected.append(row)
    found = [row for batch in trace_steps(walk.run, 0, walk.steps) for row in batch.to_pylist()]
    tracks = [track for track in TRACKS if track in (found or [{}])[0]]
    for row, wanted in zip(found, expected, strict=True):
        name, document, views = wanted["dataset"], wanted["document"], any(data.runs for data in walk.data.values())
        source = walk.source_of(name, document) if views and document is not None else None
        assert row.pop("source_document", None) == source
        assert row == {key: value for key, value in wanted.items() if key not in TRACKS or key in tracks}
    middle = walk.steps // 2
    rows = [row for batch in trace_steps(walk.run, middle, middle + 1) for row in batch.to_pylist()]
    assert len(rows) == sum(row["step"] == middle for row in expected)


def check_exposure(walk: Walk, until: int) -> None:
    """What was seen until a step, or in so many samples of a run without steps."""
    trained = [t for step in range(until) for t in range(*walk.run.steps.range_of(step))]
    steps = [step for step in range(until) for _ in range(*walk.run.steps.range_of(step))]
    compare_exposure(walk, exposure(walk.run, until=until), trained, steps)
    alone = Run(blend=walk.run.blend)
    compare_exposure(walk, exposure(alone, num_samples=walk.count), list(range(walk.count)), None)


def compare_exposure(walk: Walk, found: Any, samples: list[int], steps: list[int] | None) -> None:
    drawn, tokens, seen = Counter[str](), Counter[str](), Counter[tuple[str, int]]()
    first: dict[tuple[str, int], int] = {}
    of_concept: dict[tuple[str, int], int] = defaultdict(int)
    for k, t in enumerate(samples):
        name = walk.name(t)
        drawn[name] += 1
        for one in walk.held[t]:
            size = one.inputs[1] - one.inputs[0] if one.inputs else 0
            tokens[name] += size
            seen[name, one.document] += size
            first.setdefault((name, one.document), k)
    for row in found.sources().to_pylist():
        assert (row["samples"], row["tokens"]) == (drawn[row["dataset"]], tokens[row["dataset"]]), row
        assert row["epochs"] == (row["tokens"] / row["size"] if row["size"] else 0)
    with_table = {name for name, data in walk.data.items() if data.documents}
    marks = [2, 5, 9]
    rows = [row for row in found.documents(checkpoints=marks).to_pylist() if row["dataset"] in with_table]
    assert {(row["dataset"], row["document"]) for row in rows} >= {key for key in first if key[0] in with_table}
    for row in rows:
        key = row["dataset"], row["document"]
        data = walk.data[key[0]]
        assert (row["id"] or "", row["tokens"]) == (
            data.ids[key[1]],
            data.documents[key[1]][1] - data.documents[key[1]][0],
        )
        assert (row["seen"], row["epochs"]) == (seen[key], seen[key] / max(1, row["tokens"])), row
        k = first.get(key)
        assert row["first_sample"] == (None if k is None else samples[k]), row
        step = None if k is None or steps is None else steps[k]
        assert row["first_step"] == step
        assert row["first_checkpoint"] == (None if step is None else next((at for at in marks if at > step), None))
    begun = Counter(
        (walk.name(t), walk.data[walk.name(t)].ids[one.document] or None)
        for t in samples
        for one in walk.held[t]
        if one.inputs and one.inputs[0] == 0 and one.document >= 0
    )
    by_id: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (name, document), size in seen.items():
        one = by_id[name, walk.data[name].ids[document] or None if document >= 0 else None]
        one[0] += size > 0 and document >= 0
        one[2] += size
    for key, count in begun.items():
        by_id[key][1] += count
    for name, count in drawn.items():  # what begins in no document, such as samples that read nothing
        by_id[name, None][1] += count - sum(one[1] for key, one in by_id.items() if key[0] == name)
    if with_table:
        rows = exposure_by(found, ["source", "id"]).to_pylist()
        sums = {(row["dataset"], row["id"]): [row["documents"], row["samples"], row["tokens"]] for row in rows}
        assert {key: one for key, one in sums.items() if any(one)} == {k: one for k, one in by_id.items() if any(one)}
        sources = {row["dataset"]: row for row in found.sources().to_pylist()}
        for by in (["source", "id"], ["source", "share"]):
            rows = exposure_by(found, by).to_pylist()
            for what in ("samples", "tokens", "size"):
                for name, row in sources.items():
                    assert sum(one[what] for one in rows if one["dataset"] == name) == row[what]
    having = {name: concepts_of(data, "concepts") for name, data in walk.data.items() if "concepts" in data.spans}
    for t in samples:
        for token, is_input, _ in walk.seen_tokens(t) if walk.name(t) in having else ():
            for concept in having[walk.name(t)][token] if is_input else ():
                of_concept[walk.name(t), concept] += 1
    if not having:
        with pytest.raises(ConfigError):
            found.concepts()
        return
    for row in found.concepts().to_pylist():
        assert row["seen"] == of_concept.pop((row["dataset"], row["concept"]), 0), row
        assert row["name"] == f"concept-{row['concept']}"
    assert not of_concept


def check_document(walk: Walk, draw: st.DrawFn) -> None:
    """When any of them is read, by number and by id, and since when one is left out."""
    names = [name for name, data in walk.data.items() if data.documents]
    if not names:
        return
    name = draw(st.sampled_from(sorted(names)))
    data, number = walk.data[name], draw(st.integers(0, len(walk.data[name].documents) - 1))
    start, end = data.documents[number]
    expected = []
    for t in range(walk.count):
        if walk.name(t) == name:
            _, epoch, window = walk.oracle.locate(t)
            places = walk.places.get(t, [])
            expected += [
                (t, epoch, window, one.inputs, one.labels, places) for one in walk.held[t] if one.document == number
            ]
    found = locate_document(walk.run, number, walk.count, name)
    shown = [(s.sample, s.epoch, s.window, s.inputs, s.labels, walk.places.get(s.sample, [])) for s in found]
    if start < end:  # an empty document is a sample of its own, or in none
        key = lambda one: (one[0], one[3] or one[4])  # noqa: E731
        assert sorted(shown, key=key) == sorted(expected, key=key)
    if data.ids[number] and list(data.ids).count(data.ids[number]) == 1:
        assert locate_document(walk.run, data.ids[number], walk.count, name) == found
    tokens = set(range(start, end))
    taken = [(at, out) for take, at, out in walk.oracle.holes[name] if take == "own"]
    since = min((at for at, out in [*walk.oracle.out[name], *taken] if out & tokens), default=None)
    assert start == end or excluded_since(walk.run, number, name) == ({} if since is None else {(name, number): since})


def check_concepts(walk: Walk, text: str, concept: int) -> None:
    """When tokens are read of which an expression holds."""
    having = {name: data for name, data in walk.data.items() if set(TRACKS) <= set(data.spans)}
    if not having:
        return
    where, of_token = parse_where(text), {n: {t: concepts_of(d, t) for t in TRACKS} for n, d in having.items()}
    for asked, found in (
        (where, locate_where(walk.run, where, walk.count)),
        (parse_where(f"concepts:concept-{concept}"), locate_concept(walk.run, "concepts", concept, walk.count)),
    ):
        expected = {}
        for t in range(walk.count):
            if (name := walk.name(t)) in having:
                counts = [0, 0]
                for token, *sides in walk.seen_tokens(t):
                    if holds(asked, {track: of_token[name][track][token] for track in TRACKS}):
                        counts = [n + side for n, side in zip(counts, sides, strict=True)]
                if any(counts):
                    expected[t] = (*counts, *walk.oracle.locate(t), walk.places.get(t, []))
        rows = {s.sample: (s.inputs, s.labels, s.dataset, s.epoch, s.window, s.places[:99]) for s in found}
        assert {t: (*row[:5], walk.places.get(t, [])) for t, row in rows.items()} == expected
