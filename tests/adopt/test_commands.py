"""The commands adopt, annotate and finalize as a user calls them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any, str]:
    """(exit code, parsed stdout, stderr)."""
    code = main([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_adopt_annotate_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.array([1, 2, 0, 3, 0], np.uint16).tofile(tmp_path / "x.bin")
    flat = ("--kind", "flat", "--dtype", "uint16", "--document-end", 0)
    named = ("--tokenizer-name", "mine", "--vocab-size", 5, "--eos", 0)
    code, value, _ = run(capsys, "adopt", tmp_path / "x.bin", "--out", tmp_path / "ds", *flat, *named)
    assert (code, value["kinds"], value["documents"], value["tokens"]) == (0, ["flat"], 2, 5)
    assert cl.open_dataset(tmp_path / "ds").tokenizer == cl.Tokenizer(name="mine", vocab_size=5, eos_id=0)

    (tmp_path / "rows.jsonl").write_text('{"document": 1, "concepts": ["b"]}\n')
    (tmp_path / "names.txt").write_text("a\nb\n")
    track = ("--track", "c", "--vocabulary", tmp_path / "names.txt")
    code, value, _ = run(
        capsys, "annotate", tmp_path / "ds", tmp_path / "rows.jsonl", "--out", tmp_path / "out", *track
    )
    assert (code, value["records"], value["tracks"]) == (0, 1, ["c"])
    assert cl.open_dataset(tmp_path / "out").vocabulary("c") == ["a", "b"]
    assert run(capsys, "verify", tmp_path / "out", "--full")[0] == 0


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.npy").write_bytes(b"123")
    assert run(capsys, "adopt", tmp_path / "x.npy", "--out", tmp_path / "ds")[0] == 2  # no dtype
    code, value, err = run(capsys, "adopt", tmp_path / "x.npy", "--out", tmp_path / "ds", "--dtype", "u2")
    assert code == 1
    assert value["error"]["message"] in err
    assert run(capsys, "adopt", tmp_path / "x.npy", "--out", tmp_path / "ds", "--vocab-size", 3)[0] == 2
    with pytest.raises(SystemExit, match="2"):
        main(["annotate", "ds", "rows", "--out", "o", "--track", "c", "--parameters", "[1]"])


def test_finalize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = cl.create_build(tmp_path / "ds", cl.BuildOptions(), plan=[0, 1])
    with build.shard(0) as writer:
        writer.add_document([1, 2])
    code, value, _ = run(capsys, "finalize", tmp_path / "ds")
    assert code == 1
    assert "1 of 2 shards missing (1)" in value["error"]["message"]
    with build.shard(1) as writer:
        writer.add_document([3])
    code, value, _ = run(capsys, "finalize", tmp_path / "ds")
    assert (code, value["shards"], value["tokens"]) == (0, 2, 3)
