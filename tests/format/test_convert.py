"""Converted datasets hold the same, under the same stream fingerprint, in the encodings asked for."""

from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError


def build(path: Path, encoding: str) -> cl.Dataset:
    """Two tracks, shared records, gaps, an empty document, a field, ids, a vocabulary; two shards."""
    options = cl.writing.BuildOptions(
        tokenizer=cl.writing.Tokenizer(name="t", vocab_size=500, eos_id=0),
        fields={"loss_mask": "u1"},
        tracks={
            "concepts": cl.writing.TrackOptions(encoding=encoding, vocabulary=[f"c{k}" for k in range(30)]),
            "notes": cl.writing.TrackOptions(encoding=encoding, codec="json"),
        },
    )
    handle = cl.writing.create_writer(path, options, plan=[0, 1])
    rng = np.random.default_rng(3)
    for shard in range(2):
        with handle.shard(shard) as writer:
            shared = writer.add_record("concepts", [1, 2, 29])
            for number in range(40):
                length = 0 if number == 7 else int(rng.integers(10, 90))
                spans = {}
                if length:
                    spans = {"concepts": [(0, 4, shared), (4, 6, [number % 30]), (8, length, shared)]}
                    spans["notes"] = [(2, 5, {"n": number})]
                writer.add_document(
                    rng.integers(0, 500, length), spans, id=f"d{shard}-{number}", fields={"loss_mask": np.ones(length)}
                )
    cl.writing.finalize(path)
    return cl.open_dataset(path)


def test_there_and_back_is_byte_identical(tmp_path: Path) -> None:
    build(tmp_path / "a", "spans")
    cl.reencode(tmp_path / "a", tmp_path / "b", {"concepts": "dense", "notes": "dense"})
    cl.reencode(tmp_path / "b", tmp_path / "c", {"concepts": "spans", "notes": "spans"})
    for file in (tmp_path / "a").glob("0000?.*"):
        if file.suffix != ".json":
            assert file.read_bytes() == (tmp_path / "c" / file.name).read_bytes(), file.name


def test_unknown_track(tmp_path: Path) -> None:
    build(tmp_path / "a", "dense")
    with pytest.raises(ConfigError, match="no tracks"):
        cl.reencode(tmp_path / "a", tmp_path / "b", {"concept": "dense"})
