"""An output at a URL raises, also a Path of it, and no folder is made of its name; of commands: tests/cli/sessions."""

from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from conceptloader.writing import BuildOptions, create_writer

CONFIG = {"seq_len": 8, "datasets": {"a": {"path": "ds"}}}
PYTHON = {
    "build": lambda out: cl.build("rows.jsonl", out, tokenizer="bytes"),
    "create_writer": lambda out: create_writer(out, BuildOptions(token_type="u2")),
    "concat": lambda out: cl.concat(["ds", "ds"], out),
    "write_dataset": lambda out: write_dataset(out, random_documents(3)),
    "run log": lambda out: cl.make_dataloader(CONFIG, micro_batch_size=1).log_start(out, step=0),
}


@pytest.mark.parametrize("write", PYTHON.values(), ids=PYTHON)
@pytest.mark.parametrize("kind", [str, Path])
def test_python(write, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"id": "1", "text": "red"}\n')
    write_dataset("ds", random_documents(20, seed=1))
    with pytest.raises(ConfigError, match="found the URL s3://bucket/x, expected a path on a disk; "):
        write(kind("s3://bucket/x"))
    (tmp_path / "s3:/bucket/x").mkdir(parents=True)  # as a release that made them leaves it
    with pytest.raises(ConfigError, match="found the URL"):
        write(kind("s3://bucket/x"))
    assert {one.name for one in tmp_path.iterdir()} == {"rows.jsonl", "ds", "s3:"}
