"""A byte order mark, which some editors put in front of UTF-8, changes nothing in any file that people write."""

import gzip
import json
from pathlib import Path

import pytest
import tokenizers

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.ingest.records.vocabulary import load_vocabulary

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_everything(tmp_path: Path, suffix: str) -> None:
    found = []
    for mark in (b"", BOM):
        folder = tmp_path / ("marked" if mark else "plain")
        folder.mkdir()
        record = {"id": "a", "text": "\ufeffred", "spans": [{"start": 1, "end": 4, "concepts": ["red"]}]}
        data = mark + (json.dumps(record, ensure_ascii=False) + "\n").encode() * 9
        source, names, out = folder / f"in{suffix}", folder / "names.txt", folder / "ds"
        source.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
        names.write_bytes(mark + b"red\nblue\n")
        notes = folder / "notes.jsonl"
        notes.write_bytes(mark + b'{"document": 0, "start": 0, "end": 1, "concepts": ["blue"]}\n')
        assert load_vocabulary(names) == ["red", "blue"]
        build = ["build", str(source), "--out", str(out), "--tokenizer", "bytes", "--workers", "1"]
        assert main([*build, "--vocabulary", str(names)]) == 0
        annotate = ["annotate", str(out), str(notes), "--track", "new", "--vocabulary", str(names)]
        assert main([*annotate, "--span-unit", "character", "--out", str(folder / "more")]) == 0
        (folder / "run.yaml").write_bytes(mark + b"seq_len: 8\ndatasets:\n  d: {path: more}\n")
        assert cl.load_config(folder / "run.yaml").seq_len == 8
        dataset = cl.open_dataset(folder / "more")
        found.append((dataset.stream_fingerprint, dataset.tracks_fingerprint, dataset.tokens(0, 9).tolist()))
    assert found[0] == found[1]
    assert found[0][2][:3] == list(BOM), "that of a text stays"


def test_tokenizers(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"a": 0, "[EOS]": 1}, unk_token="a")
    made = tokenizers.Tokenizer(model)
    made.add_special_tokens(["[EOS]"])
    definition = made.to_str().encode()
    (tmp_path / "plain.json").write_bytes(definition)
    (tmp_path / "tokenizer.json").write_bytes(BOM + definition)
    (tmp_path / "tokenizer_config.json").write_bytes(BOM + b'{"eos_token": "[EOS]"}')
    plain = load_tokenizer(str(tmp_path / "plain.json"), "[EOS]")
    assert load_tokenizer(str(tmp_path)).name == plain.name
    assert load_tokenizer(str(tmp_path)).eos_id == 1
