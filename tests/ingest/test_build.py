"""Records in, dataset out: every format, any plan, any number of workers."""

import numpy as np

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.cli.test_sessions import shown
from tests.corpora.records import build, content, write_rows
from tests.raises import raises

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


def test_directories_and_moved_inputs_and_a_second_run(tmp_path):
    found = corpus(10)
    for place in ("a", "b"):
        (tmp_path / place / "deep").mkdir(parents=True)
        write_rows(tmp_path / place / "2.jsonl", found[5:])
        write_rows(tmp_path / place / "deep" / "3.jsonl", found)
        write_rows(tmp_path / place / "1.jsonl", found[:5])
        (tmp_path / place / "notes.txt").write_text("not data")
        build([tmp_path / place], tmp_path / f"out-{place}")
    assert content(tmp_path / "out-a") == content(tmp_path / "out-b")
    with cl.open_dataset(tmp_path / "out-a") as ds:
        assert [ds.document_id(k) for k in range(20)] == [row["id"] for row in found * 2]
    before = content(tmp_path / "out-b")
    assert build([tmp_path / "b"], tmp_path / "out-b").kept_shards == 1
    others = {"no_eos": True}, {"vocabulary": {"concepts": ["animal", "other"]}}
    for more in others:
        with raises(ConfigError, found="a complete dataset of other", fix="nothing was changed"):
            build([tmp_path / "b"], tmp_path / "out-b", **more)
    assert content(tmp_path / "out-b") == before
