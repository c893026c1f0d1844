"""What random mutants of the format survived without: values at the edge, tables of several pieces, the first fault."""

from pathlib import Path

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec.columns import int_column
from conceptloader.format.tools import checks
from conceptloader.format.tools.convert import convert
from conceptloader.format.tools.verify import verify
from conceptloader.testing import random_documents
from tests.corpora.small import small_corpus


@pytest.mark.parametrize("vocab_size", [1, 2, 2**32])
def test_the_smallest_and_the_largest_vocabulary(vocab_size: int) -> None:
    assert cl.Tokenizer(name="t", vocab_size=vocab_size, eos_id=vocab_size - 1).vocab_size == vocab_size
    with pytest.raises(ConfigError, match="below the vocab_size"):
        cl.Tokenizer(name="t", vocab_size=vocab_size, eos_id=vocab_size)


def test_the_largest_vocabulary_of_a_token_type() -> None:
    cl.BuildOptions(tokenizer=cl.Tokenizer(name="t", vocab_size=2**16), token_type="u2")
    with pytest.raises(ConfigError, match="use u4"):
        cl.BuildOptions(tokenizer=cl.Tokenizer(name="t", vocab_size=2**16 + 1), token_type="u2")


def test_the_first_wrong_element_of_a_column_is_named() -> None:
    assert int_column([0, 10], 2, "c", 10).tolist() == [0, 10]
    assert int_column([0, None, 10], 3, "c", 10, nullable=True).tolist() == [0, -1, 10]
    for values, index in (([3, "x", None], 1), ([3, 11, -1], 1), ([0, 10, -1, 11], 2), ([True, 1, "x"], 0)):
        with pytest.raises(FormatError, match=rf"c\[{index}\]"):
            int_column(values, len(values), "c", 10)


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_tables_are_verified_in_any_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """Pieces are large: in small datasets there is only one of each table."""
    options = cl.BuildOptions(tracks={"concepts": cl.TrackOptions(encoding="spans")}, block_tokens=2)
    build = cl.create_build(tmp_path / "ds", options)
    with build.shard(0) as writer:
        for document in random_documents(12, mean_length=5):
            writer.add_document(document.tokens, document.spans, id=document.id)
    cl.finalize(tmp_path / "ds")
    monkeypatch.setattr(checks, "_BLOCKS", pieces)
    monkeypatch.setattr(checks, "_CHUNK", 16 * pieces)
    assert verify(tmp_path / "ds", full=True) == []
    for name in ("documents.bin", "concepts.spans", "documents.hash"):
        file = tmp_path / "ds" / f"00000.{name}"
        data = file.read_bytes()
        for at in range(0, len(data), 8):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            assert verify(tmp_path / "ds", full=True), (name, at)
        file.write_bytes(data)


def test_a_dataset_with_an_empty_shard_is_converted(tmp_path: Path) -> None:
    with small_corpus().write(tmp_path / "ds", "spans") as ds:
        assert 0 in ds.manifest.shards.tokens.tolist()
        convert(tmp_path / "ds", tmp_path / "out", dict.fromkeys(ds.tracks, "dense"))
        with cl.open_dataset(tmp_path / "out") as converted:
            assert np.array_equal(converted.tokens(0, ds.num_tokens), ds.tokens(0, ds.num_tokens))
            for track in ds.tracks:
                before, after = (d.spans(track, 0, ds.num_tokens) for d in (ds, converted))
                assert before.start.tolist() == after.start.tolist()
                assert list(map(bytes, before.records)) == list(map(bytes, after.records))
