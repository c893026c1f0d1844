"""What a batch says, as text and names of concepts; how objects show themselves; building from Python."""

import pytest

import conceptloader as cl
from tests.corpora.records import write_rows
from tests.corpora.small import written
from tests.raises import raises

COLOURS = ["colour", "red", "blue", "größe"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Two datasets, whose vocabularies differ in order."""
    root, datasets = tmp_path_factory.mktemp("decode"), {}
    for name, names in (("a", COLOURS), ("b", COLOURS[::-1])):
        rows = []
        for number in range(40):
            colour = names[number % 3]
            span = {"start": 7, "end": 7 + len(colour), "concepts": ["größe", colour][colour == "größe" :]}
            rows.append({"id": str(number), "text": f"{name}{number:02} is {colour}.", "spans": [span]})
        write_rows(root / f"{name}.jsonl", rows)
        cl.build(root / f"{name}.jsonl", root / name, tokenizer="bytes", vocabulary={"concepts": names})
        datasets[name] = {"path": str(root / name), "weight": 1}
    return {"seq_len": 48, "datasets": datasets, "tracks": {"concepts": {}}, "allow_mixed_vocabularies": True}


def check(sample, batch, row):
    """Spans are those of the text, and named after it. Returns: how many whole ones there were."""
    expected = bytes(token for token in batch["input_ids"][row].tolist() if token < 256)
    assert sample.text == expected.decode("utf-8", "replace")
    assert sample.dataset in sample.text
    names = {}
    for span in sample.spans:
        names.setdefault((span.start, span.end, sample.text_of(span)), set()).add(span.name)
    whole = {text: found for (_, _, text), found in names.items() if text in COLOURS}
    assert all({text, "größe"} <= found for text, found in whole.items())
    return len(whole)


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_a_batch_is_text_with_named_concepts(layout, config):
    run = {**config, "tracks": {"concepts": {"layout": layout}}}
    with cl.make_dataloader(run, micro_batch_size=6) as loader:
        batch = next(iter(loader))
        decoded = cl.decode(batch, loader)
    assert [sample.sample for sample in decoded] == list(range(6))
    assert {sample.dataset for sample in decoded} == {"a", "b"}
    assert sum(check(sample, batch, row) for row, sample in enumerate(decoded)) > 6
    shown = str(decoded[0])
    assert shown.startswith(f"sample 0 of {decoded[0].dataset}: ")
    assert "concepts colour [" in shown
    data = cl.SampleDataset(run)
    assert cl.decode(data[3], data) == [decoded[3]]


def test_what_cannot_be_decoded_is_said(config):
    with cl.make_dataloader(config, micro_batch_size=2) as loader:
        batch = next(iter(loader))
        with raises(cl.errors.ConfigError, "decode", "no sample_index"):
            cl.decode({"input_ids": batch["input_ids"]}, loader)
        with raises(cl.errors.ConfigError, "decode", "other tokens than those of sample 1"):
            cl.decode({**batch, "sample_index": batch["sample_index"] * 0 + 1}, loader)
        with pytest.raises(ValueError, match="shorter"):
            cl.decode({**batch, "input_ids": batch["input_ids"][:1]}, loader)


def test_tokens_of_an_unknown_tokenizer_are_numbers(tmp_path):
    path = written(tmp_path / "ds", [(range(200),)])
    with cl.make_dataloader({"seq_len": 8, "datasets": {"t": {"path": str(path)}}}, micro_batch_size=1) as loader:
        batch = next(iter(loader))
        assert cl.decode(batch, loader)[0].text.split() == [str(token) for token in batch["input_ids"][0].tolist()]
        assert len(cl.decode(batch, loader, "bytes")[0].text) == 8
