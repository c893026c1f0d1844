"""The made-up datasets are what they say."""

from pathlib import Path

from conceptloader import open_dataset
from conceptloader.testing import random_documents, sample_corpus, write_dataset


def test_documents_depend_on_their_arguments_alone():
    assert random_documents(5, seed=1) == random_documents(5, seed=1) != random_documents(5, seed=2)


def test_a_dataset_holds_its_documents(tmp_path):
    raw = random_documents(30, tracks={"concepts": 20, "quality": 3}, mean_length=20)
    for shards in (1, 4):
        dataset = open_dataset(write_dataset(tmp_path / str(shards), raw, shards=shards))
        assert (dataset.num_documents, dataset.num_shards) == (30, shards)
        for number, document in enumerate(raw):
            start, stop = dataset.document_range(number)
            assert dataset.document_id(number) == document.id
            assert dataset.tokens(start, stop).tolist() == document.tokens
            for track, expected in document.spans.items():
                spans = dataset.spans(track, start, stop)
                ids = [record.tolist() for record in spans.decode()]
                assert list(zip(spans.start.tolist(), spans.end.tolist(), ids, strict=True)) == expected


def test_documents_end_in_eos_and_have_disjoint_spans():
    for document in random_documents(300, seed=1, mean_length=20):
        assert document.tokens[-1] == 0
        assert 0 not in document.tokens[:-1]
        borders = [border for start, end, _ in document.spans["concepts"] for border in (start, end)]
        assert borders == sorted(set(borders))
        assert all(0 <= border <= len(document.tokens) for border in borders)


def test_the_sample_corpus_is_text_with_spans_over_the_colors(tmp_path):
    path = sample_corpus(tmp_path / "data/corpus", documents=30)
    ds = open_dataset(path)
    tokens, spans = ds.tokens(0, ds.num_tokens), ds.spans("concepts", 0, ds.num_tokens)
    found = [ds.vocabulary("concepts")[concept] for concept in spans.decode()[0].tolist()]
    words = [bytes(tokens[a:b].astype("u1")).decode() for a, b in zip(spans.start, spans.end, strict=True)]
    assert (ds.num_documents, ds.document_id(7)) == (30, "tin-7")
    assert set(words) == {"red", "green", "blue"}
    assert found == ["color", words[0]]
    before = Path(path, "manifest.json").read_bytes()
    assert sample_corpus(path) == path  # what is there stays
    assert Path(path, "manifest.json").read_bytes() == before
