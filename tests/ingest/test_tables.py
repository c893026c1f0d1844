"""Types of Parquet, repositories of the hub in its cache, and datasets that replace others."""

import json
import os
import re
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.hub import HubName
from conceptloader.ingest.records.inputs import find_sources
from tests.corpora import tokenizers as corpora
from tests.corpora.records import write_rows
from tests.raises import raises

ROWS = [
    {"id": "a1", "text": 'Größe, "zählt"\r\nimmer\n', "source": "x"},
    {"id": "007", "text": "", "source": ""},
    {"id": "", "text": "plain", "source": "NULL"},
    {"id": "b", "text": "last\n\n", "source": "1e5"},
]


def build(source, out, *more):
    return main(["build", str(source), "--out", str(out), "--tokenizer", "bytes", "--workers", "1", "--quiet", *more])


def test_a_column_that_is_there_twice(tmp_path, capsys):
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "twice.parquet")
    assert build(tmp_path / "twice.parquet", tmp_path / "out") == 1
    assert "twice.parquet: found columns text, text, expected each name once; rename one" in capsys.readouterr().err


def test_the_hub_by_name(tmp_path, monkeypatch, capsys):
    """From the hub's cache, as the library lays it out; offline nothing else is asked."""
    for kind, name in (("datasets", "some--corpus"), ("models", "some--model")):
        home = tmp_path / "hub" / f"{kind}--{name}"
        (home / "snapshots" / "abc" / "data").mkdir(parents=True)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text("abc")
    write_rows(tmp_path / "hub" / "datasets--some--corpus" / "snapshots" / "abc" / "data" / "c.jsonl", ROWS)
    model = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    corpora.byte_level().save(str(model / "tokenizer.json"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    out = ["--out", str(tmp_path / "out"), "--metadata-column", "source", "--workers", "1", "--quiet"]
    assert main(["build", "hub:some/corpus/data", "--tokenizer", "hub:some/model", *out]) == 0
    made = cl.open_dataset(tmp_path / "out")
    assert made.num_documents == 4
    assert made.manifest.tokenizer is not None
    assert made.manifest.tokenizer.vocab_size <= 400
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with patch.object(HubName, "fetch", autospec=True, side_effect=HubName.fetch) as fetch:
        words = [str(tmp_path / "chat.jsonl"), "--tokenizer", "hub:some/model"]
        assert main(["build", *words, "--chat", "--out", str(tmp_path / "chat"), "--quiet"]) == 1  # no answer
        assert main(["init", *words, "--out", str(tmp_path / "r.yaml")]) == 0
    assert fetch.call_count == 1
    assert "tokenizer: hub:some/model" in (tmp_path / "r.yaml").read_text()
    capsys.readouterr()
    assert build("hub:some/other", tmp_path / "none") == 1
    assert "hub:some/other: found nothing that can be fetched (" in capsys.readouterr().err


def test_one_of_several_tasks(tmp_path):
    """Of two tasks, 1 and 2, as one who counts from 1 calls them, nobody would write the first shards."""
    inputs = find_sources([write_rows(tmp_path / "c.jsonl", ROWS)])
    options = Options(tokenizer="bytes", ignore_column=["source"], shard_input_bytes=20)
    for wrong in ((2, 2), (-1, 2), (0, 0)):
        with raises(ConfigError, "task"):
            build_dataset(inputs, tmp_path / "out", options, task=wrong)
    assert os.listdir(tmp_path) == ["c.jsonl"]


def test_labels_are_written_as_names_by_the_line_that_an_error_says(tmp_path):
    import duckdb  # its modules say at exit what lives from before the tests

    known = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["neg", "pos"]}}}}
    table = pa.table({"text": ["a", "b", "c"], "label": [1, 0, -1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(known)}), tmp_path / "in.parquet")
    with raises(InputError, "in.parquet: label", "labels or JSON") as caught:
        cl.build(tmp_path / "in.parquet", tmp_path / "no", tokenizer="bytes", metadata_column=["label"])
    line = re.search(r"COPY .*\(FORMAT json\)", str(caught.value))
    assert line is not None
    duckdb.sql(line[0])
    cl.build(f"{tmp_path}/in.parquet.jsonl", tmp_path / "out", tokenizer="bytes", metadata_column=["label"])
    with cl.open_dataset(tmp_path / "out") as ds:
        assert [one["label"] for one in ds.spans("metadata", 0, ds.num_tokens).decode()] == ["pos", "neg", None]
