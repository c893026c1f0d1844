"""What a new user meets in the first hour: help, suggestions, a first configuration, a build that is only looked at."""
# ruff: noqa: F401, F811 - fixtures

import json
import os
import shutil
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.cli import COMMANDS, main
from tests.cli.test_data_commands import Shell, dataset, shell, source
from tests.corpora.records import write_rows


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main([])
    shown = capsys.readouterr().err
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    assert "conceptloader build corpus.jsonl" in shown


def test_the_page_of_the_command_has_every_command(checkout: Path) -> None:
    page = (checkout / "docs/cli.md").read_text()
    listed = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(COMMANDS)


def test_init_writes_a_configuration_that_works(shell: Shell, dataset: Path, tmp_path: Path) -> None:
    other = tmp_path / "more" / "data"
    shutil.copytree(dataset, other)
    run = tmp_path / "runs" / "run.yaml"
    run.parent.mkdir()
    shown = shell.json("init", dataset, other, "--out", run, "--seq-len", 8)
    loader = cl.make_dataloader(run, micro_batch_size=2)
    batch = next(iter(loader))
    assert batch["input_ids"].shape == (2, 8)
    assert "concepts_ids" in batch
    assert loader.blend.config.names == ["data", "data-2"]
    assert sum(loader.blend.order.sizes) == shown["samples"]
    assert os.path.isabs(json.loads(json.dumps(shown["path"])))
    loader.close()


def test_init_overwrites_only_if_asked(shell: Shell, dataset: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("mine")
    shell("init", dataset, "--out", run, code=2)
    assert "--overwrite" in shell.stderr
    assert run.read_text() == "mine"
    shell("init", dataset, "--out", run, "--overwrite")
    assert cl.load_config(run).seq_len == cl.open_dataset(dataset).num_tokens - 1


def test_home_is_expanded(shell: Shell, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shell.json("inspect", "~/data")["path"] == str(dataset)
    shell("init", "~/data", "--out=~/run.yaml", "--seq-len", 8)
    (tmp_path / "elsewhere").mkdir()
    run = tmp_path / "elsewhere" / "run.yaml"
    run.write_text("seq_len: 8\ndatasets:\n  a: {path: ~/data}\nallowed_roots: [~/]\n")
    config = cl.load_config(run)
    assert config.datasets["a"].path == str(dataset)
    assert config.allowed_roots == (str(tmp_path),)


def test_adopt_says_the_roots_that_it_takes(shell: Shell, tmp_path: Path) -> None:
    tokens = tmp_path / "far" / "tokens.npy"
    tokens.parent.mkdir()
    tokens.write_bytes(bytes(range(100)))
    out = tmp_path / "deep" / "er" / "data"
    shell("adopt", tokens, "--out", out, "--dtype", "uint8")
    assert f"roots: [{tokens.parent}]" in shell.stderr
    assert f"--root {tokens.parent}" in shell.stderr
    shell("inspect", out, code=1)
    assert shell.json("inspect", out, "--root", tokens.parent)["tokens"] == 100
    run = tmp_path / "run.yaml"
    run.write_text(f"seq_len: 8\ndatasets:\n  a: {{path: {out}}}\nallowed_roots: [{tokens.parent}]\n")
    assert sum(cl.adapters.build_mixture(run).sizes) == 12
    shell("adopt", tokens, "--out", tmp_path / "near", "--dtype", "uint8")
    assert shell.stderr == ""


def test_adopt_refuses_a_dataset_of_ours(shell: Shell, dataset: Path, tmp_path: Path) -> None:
    (tokens,) = dataset.glob("*.stream.bin")
    for path in (tokens, dataset):
        shell("adopt", path, "--dtype", "uint16", "--out", tmp_path / "again", code=2)
        assert f"found a file of the dataset {dataset}" in shell.stderr
        assert "conceptloader subset" in shell.stderr
    assert not (tmp_path / "again").exists()


def test_a_shard_a_byte_is_refused(shell: Shell, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a cat"}\n' * 200)
    arguments = (
        "build",
        source,
        "--out",
        tmp_path / "out",
        "--tokenizer",
        "bytes",
        "--workers",
        1,
        "--shard-input-bytes",
    )
    shell(*arguments, 1, code=2)
    assert "makes 3,601 shards of 3,600 bytes" in shell.stderr
    assert "--shard-input-bytes" in shell.stderr
    assert not (tmp_path / "out").exists()
    assert shell.json(*arguments, 1000)["shards"] == 4


def test_join_keeps_how_the_text_became_tokens_where_all_agree(shell: Shell, dataset: Path, tmp_path: Path) -> None:
    made = cl.open_dataset(dataset).manifest.extra["ingest"]
    both = cl.concat([dataset, dataset], tmp_path / "both")
    assert both.extra["ingest"] == made
    assert cl.open_dataset(tmp_path / "both").manifest.extra["ingest"] == made
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"text": "a"}\n')
    shell("build", plain, "--out", tmp_path / "other", "--tokenizer", "bytes")
    assert "ingest" not in cl.concat([dataset, tmp_path / "other"], tmp_path / "mixed").extra


def test_annotate_takes_a_number_per_document_by_its_column(shell: Shell, dataset: Path, tmp_path: Path) -> None:
    """Values: tests/ingest/test_numbers.py."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"nr": 1, "quality": 0.5}\n{"nr": 0, "quality": 2}\n')
    words = ["annotate", dataset, rows, "--column", "document=nr"]
    shell(*words, "--number", "worth:f8", "--column", "value=quality", "--out", tmp_path / "two")
    assert cl.open_dataset(tmp_path / "two").tracks["worth"].parameters == {"dtype": "f8"}
    for wrong in (["--number", "a:f4", "--track", "a"], [], ["--number", "a:f4", "--number", "b:f4"]):
        shell(*words, *wrong, "--out", tmp_path / "three", code=2)
        assert "expected either --track or one --number" in shell.stderr
    shell(*words, "--number", "quality:f4", "--codec", "json", "--out", tmp_path / "three", code=2)
    assert "found --number and --codec" in shell.stderr
    shell(*words, "--number", "quality:x9", "--out", tmp_path / "three", code=2)


def test_adopt_refuses_tokens_that_the_tokenizer_does_not_have(shell: Shell, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.npy"
    tokens.write_bytes(bytes([5, 99, 7]))
    words = ["adopt", tokens, "--dtype", "uint8", "--tokenizer-name", "mine", "--vocab-size"]
    shell(*words, 99, "--out", tmp_path / "data", code=1)
    assert f"{tokens}: found token 99, expected ids below 99, as 'mine' has them" in shell.stderr
    assert not (tmp_path / "data").exists()
    shell(*words, 100, "--out", tmp_path / "data")
