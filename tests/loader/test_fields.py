"""Numbers, and records of a codec of one's own, as a training loop meets them: loaders and collate."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec import codecs
from tests.corpora.small import written
from tests.raises import raises
from tests.registered import registered


class Pairs:
    """A codec of one's own: two numbers with a colon."""

    def encode(self, value):
        return "{}:{}".format(*value).encode()

    def decode(self, record):
        a, b = bytes(record).decode().split(":")
        return int(a), int(b)

    def check(self, record):
        self.decode(memoryview(record))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each document has its number as its quality, as a field of its tokens, and in its records."""
    folder = tmp_path_factory.mktemp("fields")
    documents = []
    for k in range(40):
        n = 7 + k % 5
        spans = {"quality": [(0, n - 2, np.array([k], "f4"))], "pair": [(1, n, (k, 3 * k))]}
        documents.append((range(n), spans, "", {"number": [k] * n}))
    tracks = {"quality": {"codec": "numpy", "parameters": {"dtype": "f4"}}, "pair": {"codec": "pairs"}}
    with registered("pairs", Pairs()):
        written(folder / "ds", documents, tracks=tracks, fields={"number": "i2"})
        yield folder


@pytest.fixture
def config(folder):
    return {
        "seq_len": 16,
        "datasets": {"a": {"path": str(folder / "ds")}},
        "outputs": {"fields": {"number": "inputs"}},
        "tracks": {"quality": {}, "pair": {"layout": "records"}},
    }


def check(batch):
    """Everything says the number of the same document."""
    number, index = batch["number"].float(), batch["quality_span_index"]
    assert cl.concepts.token_values(batch, "quality", missing=-1).equal(torch.where(index >= 0, number, -1.0))
    for numbers, index, records in zip(batch["number"], batch["pair_span_index"], batch["pair_records"], strict=True):
        found = [records[k] for k in index.tolist() if k >= 0]
        assert found == [(n, 3 * n) for n in numbers[index >= 0].tolist()]
    assert any(len(spans) > 1 for spans in batch["pair_records"])


def test_collate_of_ones_own(config):
    """It gets whole batches in a Loader, and the samples of one in torch's DataLoader."""
    blend = cl.open_blend(config)
    collate = lambda batch: {**batch, "most": [max(a for a, _ in spans) for spans in batch["pair_records"]]}  # noqa: E731
    with cl.make_dataloader(blend, micro_batch_size=4, batch_transform=collate) as loader:
        found = next(iter(loader))
    check(found)
    assert found["most"] == [max(map(max, batch)) // 3 for batch in found["pair_records"]]
    data = cl.SampleDataset(blend)
    samples = next(iter(DataLoader(data, batch_size=4, collate_fn=list)))
    assert [sample["pair_records"] for sample in samples] == found["pair_records"]
    check(next(iter(DataLoader(data, batch_size=4, collate_fn=cl.collate_fn))))
    spawned = DataLoader(data, batch_size=4, collate_fn=cl.collate_fn, num_workers=1, multiprocessing_context="spawn")
    check(next(iter(spawned)))  # in a process in which nobody registers
    check(cl.collate_fn([data[k] for k in range(4)]))


def test_what_is_not_there_is_an_error(config, folder):
    kept = codecs._REGISTERED.pop("pairs")
    with pytest.raises(FormatError, match=r"found codec 'pairs', expected one of .* or one that is registered"):
        cl.make_dataloader(config, micro_batch_size=2)
    broken = type("Broken", (Pairs,), {"decode": lambda self, record: int(bytes(record))})
    with registered("pairs", broken()), raises(FormatError, "track 'pair'", "a record that its codec cannot decode"):
        next(iter(cl.make_dataloader(config, micro_batch_size=2)))
    cl.register_codec("pairs", kept)
    with cl.make_dataloader({**config, "tracks": {"quality": {}}}, micro_batch_size=2) as loader:
        batch = next(iter(loader))
    with raises(ConfigError, expected="a track of numbers"):
        cl.concepts.token_values(batch, "weight", missing=0)
