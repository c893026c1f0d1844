"""Tokenizers: ids, places in the text, eos; and the placing of spans against its definition."""

import numpy as np
import pytest
from tokenizers import processors

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.format.spec.columns import offsets_of
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.align.rules import SpanAlignment
from conceptloader.ingest.align.spans import place
from conceptloader.ingest.records.batch import BadRow, Ragged, RawSpans, RowBatch
from conceptloader.ingest.records.tokenizer import kept_tokenizer, load_tokenizer
from tests.corpora.records import write_rows
from tests.corpora.tokenizers import END, byte_level, unigram
from tests.raises import raises


@pytest.fixture
def folder(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_truncation_padding_and_template_are_off(folder):
    """Many add a token in front, which would stand before each document of a stream, and belong to no character."""
    library = byte_level()
    library.add_special_tokens(["<s>"])
    text = "the cat sat on the mat, and sat"
    plain = library.encode(text).ids
    library.enable_truncation(2)
    library.enable_padding(length=50)
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", library.token_to_id("<s>"))]
    )
    library.save(str(folder / "tokenizer.json"))
    tokens, _ = load_tokenizer(str(folder)).encode([text, ""], [True, False])
    assert tokens.values.tolist() == plain
    assert tokens.offsets.tolist() == [0, len(plain), len(plain)]
    assert load_tokenizer(str(folder)).decode(plain) == text


def test_eos_that_is_not_sure(folder):
    """What --eos gives is in tests/cli/sessions/tokenizers.txt."""
    two, none = byte_level(), unigram("never").to_str().replace(END, "<end>")
    two.add_special_tokens(["</s>", "<eos>"])
    two.save(str(folder / "tokenizer.json"))
    with raises(ConfigError, fix="--eos"):
        load_tokenizer(str(folder))
    (folder / "tokenizer.json").write_text(none)
    assert load_tokenizer(str(folder)).eos_id is None


def test_the_kept_copy_is_verified_and_goes_along(folder):
    """Its name says what is in it. It is no hidden file, which `cp dataset/*` would leave out."""
    cl.build(
        write_rows(folder / "in.jsonl", [{"id": "a", "text": "the red cat"}]), folder / "out", tokenizer=str(folder)
    )
    rows = write_rows(folder / "rows.jsonl", [{"id": "a", "start": 0, "end": 3, "concepts": [1]}])
    cl.annotate(folder / "out", [rows], folder / "again", track="new", span_unit="token")
    cl.concat([folder / "out", folder / "out"], folder / "twice")
    kept = folder / "out" / "tokenizer.json"
    for path in ("out", "again", "twice"):
        assert verify(folder / path) == verify(folder / path, full=True) == []
        with cl.open_dataset(folder / path) as dataset:
            assert kept_tokenizer(dataset) is not None
    definition = kept.read_bytes()
    kept.rename(folder / "out" / ".tokenizer.json")
    assert verify(folder / "out") == []
    (folder / "out" / ".tokenizer.json").unlink()
    (problem,) = verify(folder / "out")
    assert (problem.file, "found no such file" in problem.message) == (str(kept), True)
    kept.write_bytes(definition.replace(b"cat", b"cut"))
    for path in ("out", "twice"):
        (problem,) = verify(folder / path, full=True)
        assert "found tokenizers-" in problem.message
        assert (problem.file, problem.shard) == (str(kept), None)


def test_places_that_go_back_are_refused():
    tokens = Ragged(np.zeros(3, np.int64), offsets_of([1, 2]))
    nothing = np.empty(0, np.int64)
    one = np.ones(1, np.int64)
    spans = RawSpans(one, one, one, Ragged(nothing, offsets_of([0])))
    batch = RowBatch(ids=["", ""], texts=["a", "bcd"], tokens=None, spans={"concepts": spans})
    with pytest.raises(BadRow, match="begins before") as error:
        place(batch, tokens, np.array([[0, 1], [2, 3], [1, 2]]), None, SpanAlignment())
    assert error.value.row == 1
