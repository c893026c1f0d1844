"""All that can be asked about a run, against walks through its samples: windows, documents and packs of shards, views
and views of views; blends, phases, skips, quarantine, exclusions; restarts. With and without an index."""

import contextlib
import logging
from collections import Counter, defaultdict
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conceptloader.format.read.index import ConceptIndex
from conceptloader.trace import Run, locate_documents, locate_where, query, trace_sample, trace_step
from conceptloader.trace.index import build_index
from tests.oracle.corpora import write_all
from tests.oracle.samples import meaning
from tests.oracle.test_oracle import configurations
from tests.scale import SOAK, scaled
from tests.trace.walk import EXPRESSIONS, Walk, carries, concepts_of, excluding_at_once, histories

TRACKS = "concepts", "scored"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    def make(seed):
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
def test_answers_are_those_of_a_walk(data, corpora, monkeypatch_chunks):
    logging.getLogger("conceptloader").setLevel(logging.ERROR)
    folder = corpora(data.draw(st.integers(0, scaled(5, 300)), "corpora"))
    config = data.draw(configurations(folder).flatmap(excluding_at_once), "config")
    walk = Walk(folder, config, data.draw(histories(config["seq_len"]), "starts"))
    with monkeypatch_chunks(data.draw(st.sampled_from([5, 1 << 17]), "at once"), data.draw(st.booleans(), "walk")):
        check_samples(walk)
        check_steps(walk)
        check_exposure(walk, data.draw(st.integers(0, walk.steps), "until"))
        for _ in range(3):
            check_document(walk, data.draw)
        check_concepts(walk, data.draw(EXPRESSIONS, "where"), data.draw(st.integers(0, 8), "concept"))


@pytest.fixture(scope="module")
def monkeypatch_chunks():
    """Look up so many samples and ranges at once."""
    from conceptloader.trace import concepts, ranges, seen, tables

    @contextlib.contextmanager
    def patched(size, walk):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(seen, "_WALK", 8 * walk)
            for module in (seen, tables):
                patch.setattr(module, "_SAMPLES", 2 * size + 1)
            patch.setattr(ranges, "_RANGES", size)
            patch.setattr(concepts, "_CHUNK_TOKENS", size)
            patch.setattr(ConceptIndex, "chunk", size)
            yield

    return patched


def check_samples(walk):
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


def check_steps(walk):
    """The tables of samples and of what is in them, and the samples of a step."""
    if not walk.steps:
        return
    of_token = {name: {t: concepts_of(data, t) for t in TRACKS} for name, data in walk.data.items()}
    expected, samples = [], []
    for step in range(walk.steps):
        some = range(*walk.run.steps.range_of(step))
        assert step % 5 or [one.sample for one in trace_step(walk.run, step)] == list(some)
        for t in some:
            name, epoch, window = walk.oracle.locate(t)
            (place,) = (place for place in walk.places[t] if place.step == step)
            fixed = {"step": step, "rank": place.dp_rank, "micro_batch": place.micro_batch, "row": place.slot}
            fixed |= {"sample": t, "dataset": name, "epoch": epoch, "window": window}
            samples.append(fixed)
            for one in walk.held[t]:
                size = one.inputs[1] - one.inputs[0] if one.inputs else 0
                row = {**fixed, "start": one.start, "stop": one.end, "inputs": size}
                row |= {"document": None, "id": None, "source_document": None}
                if one.document >= 0:
                    row |= {"document": one.document, "id": walk.data[name].ids[one.document] or None}
                    if walk.data[name].runs:
                        row["source_document"] = walk.source_of(name, one.document)
                for track in TRACKS:
                    ids = {k for found in of_token[name][track][one.start : one.start + size] for k in found}
                    has = track in walk.data[name].spans
                    row[track] = [f"concept-{k}" for k in sorted(ids)] if has else None
                expected.append(row)
    steps = 0, walk.steps
    assert query(walk.run, "from samples order by step, sample", steps=steps).to_pylist() == samples
    found = query(walk.run, "from parts", steps=steps).to_pylist()
    key = lambda row: (row["step"], row["sample"], row["start"])  # noqa: E731
    tracks = [track for track in TRACKS if track in (found or [{}])[0]]
    expected = [{k: v for k, v in row.items() if k not in TRACKS or k in tracks} for row in sorted(expected, key=key)]
    assert sorted(found, key=key) == expected
    middle = walk.steps // 2
    counted = query(walk.run, "select count(*) as rows from parts", steps=(middle, middle + 1)).to_pylist()
    assert counted == [{"rows": sum(row["step"] == middle for row in expected)}]


def check_exposure(walk, until):
    """What was seen until a step, or in so many samples of a run without steps."""
    trained = [t for step in range(until) for t in range(*walk.run.steps.range_of(step))]
    steps = [step for step in range(until) for _ in range(*walk.run.steps.range_of(step))]
    if until:
        compare_exposure(walk, lambda text: query(walk.run, text, steps=(0, until)).to_pylist(), trained, steps)
    alone = Run(blend=walk.run.blend)
    every = list(range(walk.count))
    compare_exposure(walk, lambda text: query(alone, text, samples=walk.count).to_pylist(), every, None)


def compare_exposure(walk, ask, samples, steps):
    drawn, tokens, seen = Counter(), Counter(), Counter()
    first = {}
    of_concept = defaultdict(int)
    for k, t in enumerate(samples):
        name = walk.name(t)
        drawn[name] += 1
        for one in walk.held[t]:
            size = one.inputs[1] - one.inputs[0] if one.inputs else 0
            tokens[name] += size
            seen[name, one.document] += size
            first.setdefault((name, one.document), k)
    sources = {row["dataset"]: row for row in ask("from datasets")}
    for name, row in sources.items():
        assert (row["samples"], row["tokens"]) == (drawn[name], tokens[name]), row
        assert row["epochs"] == (row["tokens"] / row["size"] if row["size"] else 0)
    begun = Counter(
        (walk.name(t), one.document)
        for t in samples
        for one in walk.held[t]
        if one.inputs and one.inputs[0] == 0 and one.document >= 0
    )
    with_table = {name for name, data in walk.data.items() if data.documents}
    if with_table:
        rows = ask("select dataset, document, id, tokens, seen, samples, first_sample, first_step from documents")
        known = [row for row in rows if row["document"] is not None]
        assert len(known) == sum(len(walk.data[name].documents) for name in with_table)
        for row in known:
            key = row["dataset"], row["document"]
            data, k = walk.data[key[0]], first.get(key)
            start, end = data.documents[key[1]]
            assert (row["id"] or "", row["tokens"]) == (data.ids[key[1]], end - start)
            assert (row["seen"], row["samples"]) == (seen[key], begun[key]), row
            assert row["first_sample"] == (None if k is None else samples[k]), row
            assert row["first_step"] == (None if k is None or steps is None else steps[k])
        sums = "sum(samples) as samples, sum(seen) as tokens, sum(size) as size"  # also of what is in no document
        rows = ask(f"select dataset, {sums} from documents group by all")
        for row in rows:
            assert {**sources[row["dataset"]], **row} == sources[row["dataset"]]
    having = {name: concepts_of(data, "concepts") for name, data in walk.data.items() if "concepts" in data.spans}
    for t in samples:
        for token, is_input, _ in walk.seen_tokens(t) if walk.name(t) in having else ():
            for concept in having[walk.name(t)][token] if is_input else ():
                of_concept[walk.name(t), concept] += 1
    text = "select dataset, concept, name, sum(seen) as seen from spans where track = 'concepts' group by all"
    for row in ask(text):
        assert row["seen"] == of_concept.pop((row["dataset"], row["concept"]), 0), row
        assert row["name"] == f"concept-{row['concept']}"
    assert not of_concept


def check_document(walk, draw):
    """When any of them is read, by number and by id."""
    names = [name for name, data in walk.data.items() if data.documents]
    if not names:
        return
    name = draw(st.sampled_from(sorted(names)))
    data, number = walk.data[name], draw(st.integers(0, len(walk.data[name].documents) - 1))
    expected = []
    for t in range(walk.count):
        _, epoch, window = walk.oracle.locate(t)
        parts = [one for one in walk.held[t] if walk.name(t) == name and one.document == number]
        if parts:
            sides = zip(*(one[3:] for one in parts), strict=True)
            inputs, labels = (sum(b - a for a, b in filter(None, side)) for side in sides)
            expected += [(t, epoch, window, inputs, labels, walk.places.get(t, []))]
    found = list(locate_documents(walk.run, [number], walk.count, name))
    shown = [(s.sample, s.epoch, s.window, s.inputs, s.labels, walk.places.get(s.sample, [])) for s in found]
    assert shown == expected
    if data.ids[number] and list(data.ids).count(data.ids[number]) == 1:
        assert list(locate_documents(walk.run, [data.ids[number]], walk.count, name)) == found


def check_concepts(walk, asked, concept):
    """When tokens are read of which an expression holds."""
    having = {name: data for name, data in walk.data.items() if set(TRACKS) <= set(data.spans)}
    if not having:
        return
    of_token = {n: {t: concepts_of(d, t) for t in TRACKS} for n, d in having.items()}
    for text, holds in (asked, carries(concept)):
        found = locate_where(walk.run, text, walk.count)
        expected = {}
        for t in range(walk.count):
            if (name := walk.name(t)) in having:
                counts = [0, 0]
                for token, *sides in walk.seen_tokens(t):
                    if holds({track: of_token[name][track][token] for track in TRACKS}):
                        counts = [n + side for n, side in zip(counts, sides, strict=True)]
                if any(counts):
                    expected[t] = (*counts, *walk.oracle.locate(t), walk.places.get(t, []))
        rows = {s.sample: (s.inputs, s.labels, s.dataset, s.epoch, s.window, s.places[:99]) for s in found}
        assert {t: (*row[:5], walk.places.get(t, [])) for t, row in rows.items()} == expected
