"""Several numbers a span: from the writers through every tool to padded arrays."""

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.corpora.small import written
from tests.raises import raises

TOKENIZER = cl.writing.Tokenizer(name="x", vocab_size=99, eos_id=0)
VECTORS = [[1.5, 2.5, 3.5], [], [4.5], [5.5, 6.5]]


def build(path, vectors=VECTORS, encoding="auto"):
    """Documents of 8 tokens, with a span of each vector in turn."""
    documents = (
        [([k + 1] * 8, {"v": [(1, 5, np.array(vectors[(k + n) % len(vectors)], "f4"))]}) for k in range(20)]
        for n in range(2)
    )
    track = {"codec": "numpy", "parameters": {"dtype": "f4"}, "encoding": encoding}
    return written(path, *documents, tokenizer=TOKENIZER, tracks={"v": track})


def batch_of(path, **more):
    config = {"seq_len": 16, "order": "sequential", "datasets": {"d": {"path": str(path)}}, "tracks": {"v": {}}, **more}
    with cl.make_dataloader(config, micro_batch_size=6) as loader:
        batch = next(iter(loader))
    return dict(batch)


def check(batch):
    found = cl.concepts.track(batch, "v")
    for row, count in enumerate(found.num_spans.tolist()):
        for k in range(count):
            expected = VECTORS[(int(batch["input_ids"][row, found.spans[row, k, 0]]) - 1) % len(VECTORS)]
            room = found.values.shape[-1] - len(expected)
            assert found.values[row, k].tolist() == [*expected, *[0] * room]
            assert found.counts[row, k] == len(expected)
    values = cl.concepts.token_values(batch, "v", missing=-1)
    index = batch["v_span_index"]
    assert values.shape == (*index.shape, found.values.shape[-1])
    assert (values[index < 0] == -1).all()
    rows = torch.arange(len(index))[:, None].expand_as(index)
    assert torch.equal(values[index >= 0], found.values[rows, index.clamp(min=0).long()][index >= 0])


@pytest.mark.parametrize("encoding", ["dense", "spans"])
def test_padded_with_their_counts(tmp_path, encoding):
    path = build(tmp_path / "ds", encoding=encoding)
    assert cl.open_dataset(path).tracks["v"].max_items == 3
    assert cl.verify(path, full=True) == []
    batch = batch_of(path)
    assert batch["v_values"].shape[2] == 3
    check(batch)
    cut = batch_of(path, tracks={"v": {"max_concepts": 2, "overflow": "truncate"}})
    assert cut["v_values"].shape[2] == 2
    assert torch.equal(cut["v_counts"], batch["v_counts"].clamp(max=2))
    records = batch_of(path, tracks={"v": {"layout": "records"}})["v_records"]
    assert [one.tolist() for one in records[0]] == [VECTORS[0], VECTORS[1]]
    with raises(ConfigError, "tracks.v", "a track with several numbers a span"):
        batch_of(path, tracks={"v": {"layout": "ragged"}})
    with raises(ConfigError, "outputs.loss_weight", "several numbers a span", "one number a span"):
        batch_of(path, tracks={}, outputs={"loss_weight": {"name": "v", "outside": 1}})


def test_one_number_in_each_is_what_it_was(tmp_path):
    path = build(tmp_path / "ds", [[1.5], [2.5]])
    assert cl.open_dataset(path).tracks["v"].max_items is None
    assert batch_of(path)["v_values"].ndim == 2
    with raises(ConfigError, "tracks.v", "a track with one number a span"):
        batch_of(path, tracks={"v": {"max_concepts": 2, "overflow": "truncate"}})


@pytest.mark.parametrize(("vectors", "most"), [([[], []], 0), ([[1.0] * 7, [2.0]], 7)])
def test_shards_and_datasets_are_counted_together(tmp_path, vectors, most):
    paths = {"a": build(tmp_path / "a", [[3.0]]), "b": build(tmp_path / "b", vectors), "joined": tmp_path / "joined"}
    cl.concat([paths["a"], paths["b"]], paths["joined"])
    for name, expected in {"b": most, "joined": max(most, 1)}.items():
        assert cl.open_dataset(paths[name]).tracks["v"].max_items == expected
        assert cl.verify(paths[name], full=True) == []
    both = {name: {"path": str(paths[name]), "weight": 1} for name in "ab"}
    batch = batch_of(paths["a"], datasets=both, order="shuffled")
    assert batch["v_values"].shape[2] == max(most, 1)
