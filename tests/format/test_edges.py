"""What random mutants of the format survived without: values at the edge, tables of several pieces, the first fault."""

from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec.columns import int_column
from tests.corpora.small import written
from tests.hostile.test_attacks import edit
from tests.raises import raises


@pytest.mark.parametrize("vocab_size", [1, 2, 2**32])
def test_the_smallest_and_the_largest_vocabulary(vocab_size: int) -> None:
    assert cl.writing.Tokenizer(name="t", vocab_size=vocab_size, eos_id=vocab_size - 1).vocab_size == vocab_size
    with raises(ConfigError, expected="below the vocab_size"):
        cl.writing.Tokenizer(name="t", vocab_size=vocab_size, eos_id=vocab_size)


def test_the_largest_vocabulary_of_a_token_type() -> None:
    cl.writing.BuildOptions(tokenizer=cl.writing.Tokenizer(name="t", vocab_size=2**16), token_type="u2")
    with raises(ConfigError, fix="uint32"):
        cl.writing.BuildOptions(tokenizer=cl.writing.Tokenizer(name="t", vocab_size=2**16 + 1), token_type="u2")


def test_the_first_wrong_element_of_a_column_is_named() -> None:
    def column(*values: object, **options: bool) -> list[int]:
        return int_column([*values], "c", 10, **options).tolist()

    assert column(0, 10) == [0, 10]
    assert column(0, None, 10, nullable=True) == [0, -1, 10]
    for values, index in (([3, "x", None], 1), ([3, 11, -1], 1), ([0, 10, -1, 11], 2), ([True, 1, "x"], 0)):
        with raises(ConfigError, path=f"c[{index}]"):
            column(*values)


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_shard_with_tokens_and_spans_has_an_entry(tmp_path: Path, tokens: int) -> None:
    given = [([1] * tokens, {"a": [(0, tokens, [1])]})]
    path = written(tmp_path / "ds", given, tracks={"a": {"encoding": "spans"}})
    spans = path / "00000.a.spans"
    data = spans.read_bytes()
    spans.write_bytes(data[12:])
    edit(path, "shards", "tracks", "a", "entries", value=[0])
    edit(path, "shards", "files", "a.spans", "size", value=[len(data) - 12])
    with raises(FormatError, expected="1 to the number of tokens with spans"):
        cl.open_dataset(path)
