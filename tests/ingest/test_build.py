"""Records in, dataset out: every format, any plan, any number of workers."""

import numpy as np

import conceptloader as cl
from conceptloader.ingest.build.plan import default_shard_bytes
from conceptloader.ingest.records.inputs import Source
from tests.cli.test_sessions import shown
from tests.corpora.records import build, content, write_rows

KINDS = ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")


def corpus(count=60):
    rng = np.random.default_rng(5)
    result = []
    for i in range(count):
        text = "".join(rng.choice(list("abc €\n"), rng.integers(0, 50)))
        cuts = sorted(rng.integers(0, len(text) + 1, 6).tolist())
        found = [
            {"start": a, "end": b, "concepts": ["animal"]} for a, b in zip(cuts[::2], cuts[1::2], strict=True) if a < b
        ]
        topics = [{"start": 0, "end": len(text), "concepts": [i]}]
        metadata = {"source": "web", "n": i}
        result.append({"id": f"d{i}", "text": text, "spans": found, "spans_topic": topics, "metadata": metadata})
    return result


def test_workers_do_not_matter(tmp_path):
    found = corpus()
    inputs = [write_rows(tmp_path / f"in.{kind}", found) for kind in KINDS]
    build(inputs[:1], tmp_path / "one")
    results = []
    for workers in (1, 3):
        out = tmp_path / f"out{workers}"
        summary = build(inputs, out, workers=workers, shard_input_bytes=1500)
        assert summary.documents == 4 * len(found)
        assert summary.shards > 5
        assert summary.tokens == cl.open_dataset(out).num_tokens
        assert [dict(track.parameters) for track in cl.open_dataset(out).tracks.values()] == 3 * [{}]  # as ever
        results.append(content(out))
    assert results[0] == results[1]
    assert shown(str(tmp_path / "out1")) == shown(str(tmp_path / "one")) * 4


def test_shards_of_a_large_corpus():
    """About 64 of them; the sizes are rounded up, so that there is no small one more."""
    for sizes, wanted in (([1], 64 << 20), ([4 << 30, 1], (64 << 20) + 1), ([1 << 60], 16 << 30)):
        made = [Source(path="x", name="x", compression=None, row_groups=None, size=n, sample="") for n in sizes]
        assert default_shard_bytes(made) == wanted
