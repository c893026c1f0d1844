"""Nested and crossing spans, `overlap: levels`: every command and key takes a track with all of its levels."""

import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.__main__ import main
from conceptloader.format.read.index import index_directory
from conceptloader.format.tools.stats import dataset_stats
from conceptloader.format.write.track import TrackWriter
from conceptloader.trace import Run, locate_where, query, trace_sample
from conceptloader.trace.index import build_index
from conceptloader.trace.ranges import whole
from conceptloader.trace.viewer.windows import Reader
from tests.corpora.records import build
from tests.raises import raises

NAMES = ["ORG", "PERSON", "PLACE"]
SEQ_LEN, LENGTH, COUNT = 50, 99, 50


class Nested(NamedTuple):
    """spans: tokens [start, end) of the dataset, and the concepts; on: of each concept, which tokens carry it."""

    path: str
    spans: list[tuple[int, int, list[str]]]
    on: dict[str, np.ndarray]

    @property
    def config(self):
        data = {"a": {"path": self.path}}
        return {"seq_len": SEQ_LEN, "order": "sequential", "datasets": data, "tracks": {"concepts": {}}}

    def inside(self, low, high):
        """The spans that touch tokens [low, high), cut to these and relative to them."""
        found = ((max(a, low) - low, min(b, high) - low, names) for a, b, names in self.spans)
        return sorted(one for one in found if one[0] < one[1])


@pytest.fixture(scope="module", params=["spans", "dense"])
def nested(request, tmp_path_factory):
    directory, draw = tmp_path_factory.mktemp("nested"), random.Random(1)
    lines, spans = [], []
    for k in range(COUNT):
        found = [
            (a, min(LENGTH, a + draw.randrange(1, 30)), draw.sample(NAMES, draw.randrange(1, 3)))
            for a in (draw.randrange(LENGTH) for _ in range(draw.randrange(7)))
        ]
        depth = np.zeros(LENGTH, int)
        for at, (a, b, _) in enumerate(found):  # at most three over each other
            if depth[a:b].max() < 3:
                depth[a:b] += 1
            else:
                found[at] = (0, 0, [])
        found = sorted(one for one in found if one[0] < one[1])
        said = [{"start": a, "end": b, "concepts": names} for a, b, names in found]
        text = "".join(draw.choice("abcdefgh ") for _ in range(LENGTH))
        lines.append(json.dumps({"id": f"d{k}", "text": text, "spans": said}))
        spans += [(a + k * (LENGTH + 1), b + k * (LENGTH + 1), names) for a, b, names in found]
    (directory / "c.jsonl").write_text("\n".join(lines), encoding="utf-8")
    path = str(directory / "ds")
    usual = TrackWriter.encoding
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrackWriter, "encoding", lambda *arguments: (usual(*arguments), request.param)[1])
        more = {"vocabulary": {"concepts": NAMES}, "overlap": "levels"}
        build([directory / "c.jsonl"], Path(path), shard_input_bytes=8000, **more)
    with cl.open_dataset(path) as dataset:
        assert {*dataset.manifest.shards.tracks["concepts"].encoding} == {request.param}
    on = {name: np.zeros(COUNT * (LENGTH + 1), bool) for name in NAMES}
    for a, b, names in spans:
        for name in names:
            on[name][a:b] = True
    return Nested(path, spans, on)


def batches(config):
    """(the first token of its window, batch) of each sample of an epoch."""
    with cl.make_dataloader(config, micro_batch_size=1) as loader:
        for k, batch in enumerate(loader):
            yield k * SEQ_LEN, batch


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    """Spans cross the borders between what is read at a time."""
    monkeypatch.setattr("conceptloader.format.read.concepts._CHUNK_TOKENS", 64)


def make_index(path, wanted):
    shutil.rmtree(index_directory(path, "concepts"), ignore_errors=True)
    if wanted:
        build_index(path)


def test_a_user_names_the_track(nested):
    with cl.open_dataset(nested.path) as dataset:
        assert {"concepts", "concepts_level2", "concepts_level3"} == dataset.manifest.tracks.keys()
        assert list(dataset.tracks) == dataset.concept_tracks == ["concepts"]
        low, high = 130, 771
        spans = dataset.spans("concepts", low, high)
        found = zip(spans.start.tolist(), spans.end.tolist(), spans.decode(), strict=True)
        assert sorted((a, b, [NAMES[c] for c in ids]) for a, b, ids in found) == nested.inside(low, high)
        read = dataset.read(low, high, ["concepts"])["concepts"]
        assert (read.start.tolist(), read.end.tolist()) == (spans.start.tolist(), spans.end.tolist())
    with raises(cl.errors.ConfigError, found="concepts_level2"):
        cl.open_blend({**nested.config, "tracks": {"concepts_level2": {}}})


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_batches_have_every_level(nested, layout):
    for low, batch in batches({**nested.config, "tracks": {"concepts": {"layout": layout}}}):
        found = []
        for track in ("concepts", "concepts_level2", "concepts_level3"):
            for k in range(int(batch[f"{track}_num_spans"][0])):
                if layout == "padded":
                    ids = batch[f"{track}_ids"][0, k, : batch[f"{track}_counts"][0, k]]
                else:
                    ids = batch[f"{track}_values"][slice(*batch[f"{track}_offsets"][k : k + 2])]
                found.append((*batch[f"{track}_spans"][0, k].tolist(), [NAMES[c] for c in ids]))
        assert sorted(found) == nested.inside(low, low + SEQ_LEN)
    (decoded,) = cl.decode(batch, cl.open_blend(nested.config))
    each = [(a, b, name) for a, b, names in nested.inside(low, low + SEQ_LEN) for name in names]
    assert sorted((span.start, span.end, span.name) for span in decoded.spans) == sorted(each)


@pytest.mark.parametrize("indexed", [False, True])
def test_exclude_leaves_no_token_of_a_concept(nested, indexed, tmp_path):
    make_index(nested.path, indexed)
    name, file = "PERSON", str(tmp_path / "ranges.txt")
    assert main(["subset", nested.path, "--spans", f"'{name}' in concepts", "--ranges", file, "--quiet"]) == 0
    for take in ("own", "sample"):
        entry = {"at": 0, "dataset": "a", "token_file": file, "take": take}
        for low, batch in batches({**nested.config, "exclude": [entry]}):
            on = nested.on[name][low : low + SEQ_LEN + 1]
            loss = ~(on[1:] | on[:-1]) if take == "own" else np.full(SEQ_LEN, not on.any())
            assert (batch["loss_mask"][0].numpy() == loss).all()


def test_a_loss_weight_is_that_of_the_innermost_span(nested, tmp_path):
    expected, rows = np.ones(COUNT * (LENGTH + 1)), []
    for k in range(COUNT):
        for start, end, value in ((k % 20, 60, 2), (20, 45, 0.25), (30, 40, 3), (70, 75, 0)):
            rows.append({"document": k, "start": start, "end": end, "value": value})
            expected[k * (LENGTH + 1) + start : k * (LENGTH + 1) + end] = value
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows[::-1]), encoding="utf-8")
    how = {"codec": "numpy", "parameters": {"dtype": "f4"}, "overlap": "levels", "span_unit": "token"}
    cl.annotate(nested.path, [tmp_path / "rows.jsonl"], tmp_path / "ds", track="weight", **how)
    more = {"datasets": {"a": {"path": str(tmp_path / "ds")}}, "allowed_roots": ["/"]}
    given = {"loss_weight": {"name": "weight", "outside": 1}}
    for low, batch in batches({**nested.config, **more, "outputs": given}):
        assert batch["loss_weight"][0].tolist() == expected[low + 1 : low + SEQ_LEN + 1].tolist()


def test_subsets(nested, tmp_path):
    on = nested.on
    both = (on["PERSON"] & ~on["ORG"]).reshape(COUNT, -1)
    text = "'PERSON' in concepts and 'ORG' not in concepts"
    assert main(["subset", nested.path, "--out", f"{tmp_path}/spans", "--spans", text, "--quiet"]) == 0
    assert cl.open_dataset(tmp_path / "spans", ["/"]).num_tokens == both.sum()
    some = [f"d{k}" for k in np.flatnonzero(on["PLACE"].reshape(COUNT, -1).any(1))]
    for where in ("'PLACE' in concepts", "list_contains(concepts, 'PLACE')"):
        out = tmp_path / str(len(where))
        assert main(["subset", nested.path, "--out", str(out), "--where", where, "--quiet"]) == 0
        with cl.open_dataset(out, ["/"]) as view:
            assert [view.document_id(k) for k in range(view.num_documents)] == some
    assert cl.verify(tmp_path / "spans", full=True, roots=["/"]) == []


@pytest.mark.parametrize("indexed", [False, True])
def test_what_a_run_saw(nested, indexed):
    make_index(nested.path, indexed)
    run = Run(blend=cl.open_blend(nested.config))
    count = run.blend.order.sizes[0]
    for name, on in nested.on.items():
        seen = {one.window: one.inputs for one in locate_where(run, f"'{name}' in concepts", count)}
        expected = {k: int(on[k * SEQ_LEN : (k + 1) * SEQ_LEN].sum()) for k in range(count)}
        touched = [k for k in range(count) if on[k * SEQ_LEN : (k + 1) * SEQ_LEN + 1].any()]
        assert seen == {k: expected[k] for k in touched}
    text = "select name, sum(stop - start) as tokens, sum(seen) as seen from spans group by all"
    table = query(run, text, samples=count).to_pylist()
    assert {row["name"]: row["tokens"] for row in table} == {name: on.sum() for name, on in nested.on.items()}
    whole = {name: on[: count * SEQ_LEN].sum() for name, on in nested.on.items()}
    assert {row["name"]: row["seen"] for row in table} == whole


def test_traces_and_pages(nested, capsys):
    run = Run(blend=cl.open_blend(nested.config))
    for k in range(0, run.blend.order.sizes[0], 17):
        low, high = k * SEQ_LEN, (k + 1) * SEQ_LEN
        traced = trace_sample(run, k).spans["concepts"]
        assert sorted((one.start, one.end, one.names) for one in traced) == nested.inside(low, high)
        shown = Reader(run.members[0].dataset).read([whole(low, high)], ["concepts"]).spans
        each = [(a, b, [name]) for a, b, names in nested.inside(low, high) for name in names]
        assert sorted((one.start, one.end, [one.name]) for one in shown) == sorted(each)
        capsys.readouterr()
        assert main(["inspect", nested.path, "--tokens", f"{low}:{high}", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)["samples"][0]["spans"]
        assert sorted((s["start"], s["end"], s["names"]) for s in said["concepts"]) == nested.inside(low, high)
    assert main(["inspect", nested.path, "--json"]) == 0
    of_all = json.loads(capsys.readouterr().out)["tracks"]
    assert list(of_all) == ["concepts"]
    with cl.open_dataset(nested.path) as dataset:
        stats = dataset_stats(dataset)["tracks"]["concepts"]
    assert {one["name"]: one["tokens"] for one in stats["concepts"]} == {k: on.sum() for k, on in nested.on.items()}
    covered = np.logical_or.reduce([*nested.on.values()])
    assert (stats["spans"], stats["tokens_in_spans"]) == (len(nested.spans), covered.mean())
