"""Repositories of the hub in its cache."""

from unittest.mock import patch

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.ingest.hub import HubName
from tests.corpora import tokenizers as corpora
from tests.corpora.records import write_rows

ROWS = [
    {"id": "a1", "text": 'Größe, "zählt"\r\nimmer\n', "source": "x"},
    {"id": "007", "text": "", "source": ""},
    {"id": "", "text": "plain", "source": "NULL"},
    {"id": "b", "text": "last\n\n", "source": "1e5"},
]


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
    assert main(["build", "hub:some/other", "--tokenizer", "bytes", "--out", str(tmp_path / "none")]) == 1
    assert "hub:some/other: found nothing that can be fetched (" in capsys.readouterr().err
