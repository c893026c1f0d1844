"""Concatenation by reference: the result reads like one build of everything; nothing is copied."""

import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.tools.concat import concat
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.small import small_corpus, written
from tests.raises import raises


def test_a_concatenation_of_concatenations_and_of_other_directories(tmp_path):
    small_corpus().write(tmp_path / "a" / "ds", "spans")
    small_corpus().write(tmp_path / "b" / "ds", "dense")
    concat([tmp_path / "a" / "ds", tmp_path / "b" / "ds"], tmp_path / "first")
    with raises(FormatError, "shards.path", "'../a/ds/00000'"):
        cl.open_dataset(tmp_path / "first", roots=[tmp_path / "b"])
    concat([tmp_path / "first", tmp_path / "a" / "ds"], tmp_path / "c" / "second", roots=[tmp_path])
    ds = cl.open_dataset(tmp_path / "c" / "second", roots=[tmp_path])
    one = cl.open_dataset(tmp_path / "a" / "ds")
    assert ds.tokens(0, ds.num_tokens).tolist() == 3 * one.tokens(0, one.num_tokens).tolist()
    assert ds.find_document("a") == [0, 4, 8]


def other(path, **options):
    """A dataset that differs from the small corpus in one option."""
    chosen = {
        "tokenizer": cl.writing.Tokenizer(name="test", vocab_size=300),
        "fields": {"weight": "f4"},
        "tracks": {"concepts": {}},
        "block_tokens": 4,
        **options,
    }
    return written(path, [([1], {}, "", {name: [1] for name in chosen["fields"]})], **chosen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": cl.writing.Tokenizer(name="other", vocab_size=300)}, "tokenizer: found Tokenizer.*other"),
        ({"fields": {"weight": "f2"}}, r"fields: found \{'weight': 'f2'\}"),
        ({"block_tokens": 8}, "block_tokens: found 8"),
        ({"mode": "document"}, "mode is document: found True"),
        ({"tracks": {"concepts": {"codec": "json"}}}, "track 'concepts': found .*json"),
        ({"tracks": {"concepts": {"vocabulary": ["x"]}}}, "track 'concepts': found .*vocabulary"),
    ],
)
def test_contradictions_are_refused_and_nothing_is_written(tmp_path, options, message):
    small_corpus().write(tmp_path / "a", "spans")
    with pytest.raises(ConfigError, match=message):
        concat([tmp_path / "a", other(tmp_path / "b", **options)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_existing_directory_is_left_alone(tmp_path):
    small_corpus().write(tmp_path / "a", "spans")
    before = (tmp_path / "a" / "manifest.json").read_bytes()
    with raises(ConfigError, expected="a new or empty directory"):
        concat([tmp_path / "a"], tmp_path / "a")
    assert (tmp_path / "a" / "manifest.json").read_bytes() == before


def test_roots_of_a_configuration_add_to_the_default(tmp_path):
    """One part of a concatenated dataset lies next to it, the other one elsewhere."""
    for folder in ("here/a", "there/b"):
        write_dataset(tmp_path / folder, random_documents(9, seed=1))
    concat([tmp_path / "here/a", tmp_path / "there/b"], tmp_path / "here/all")
    config = {"seq_len": 8, "datasets": {"all": {"path": str(tmp_path / "here/all")}}}
    with raises(FormatError, found="there/b"):
        cl.open_blend(config)
    assert len(cl.open_blend({**config, "allowed_roots": [str(tmp_path / "there")]}).datasets["all"]) == 18
