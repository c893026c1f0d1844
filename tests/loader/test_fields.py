"""Loss weights, fields, numbers and records as a training loop meets them: loaders, collate, trace."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec import codecs
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
    """Each document has its number as its quality, as weights of its tokens, and in its records."""
    folder = tmp_path_factory.mktemp("fields")
    tracks = {
        "quality": cl.writing.TrackOptions(codec="numpy", parameters={"dtype": "f4"}),
        "pair": cl.writing.TrackOptions(codec="pairs"),
    }
    options = cl.writing.BuildOptions(
        tokenizer=cl.writing.Tokenizer(name="bytes", vocab_size=257, eos_id=256), tracks=tracks,
        fields={"weight": "f2", "number": "i2"},
    )  # fmt: skip
    with registered("pairs", Pairs()):
        with cl.writing.create_writer(folder / "ds", options).shard(0) as shard:
            for k in range(40):
                n = 7 + k % 5
                spans = {"quality": [(0, n - 2, np.array([k], "f4"))], "pair": [(1, n, (k, 3 * k))]}
                shard.add_document([65 + k] * (n - 1) + [256], spans, fields={"weight": [k / 8] * n, "number": [k] * n})
        cl.writing.finalize(folder / "ds")
        yield folder


@pytest.fixture
def config(folder):
    return {
        "seq_len": 16,
        "datasets": {"a": {"path": str(folder / "ds")}},
        "outputs": {"loss_weight": "weight", "fields": {"number": "inputs"}, "cu_seqlens": True},
        "tracks": {"quality": {}, "pair": {"layout": "records"}},
    }


def check(batch, collated=False):
    """Everything says the number of the same document."""
    ids = batch["input_ids"]
    known = torch.where(ids < 256, ids - 65, batch["number"].long())
    assert torch.equal(batch["number"].long(), known)
    ahead = torch.where(batch["labels"] < 256, (batch["labels"] - 65) / 8, batch["loss_weight"])
    assert torch.equal(batch["loss_weight"], ahead.float())
    quality = cl.concepts.token_values(batch, "quality", missing=-1)
    assert quality.dtype == torch.float32
    for row in range(len(ids)):
        for j in range(ids.shape[1]):
            k = int(batch["quality_span_index"][row, j])
            assert quality[row, j] == (batch["quality_values"][row, k] if k >= 0 else -1)
            assert k < 0 or quality[row, j] == batch["number"][row, j]
            k = int(batch["pair_span_index"][row, j])
            if k >= 0:
                number = int(batch["number"][row, j])
                assert batch["pair_records"][row][k] == (number, 3 * number)
    assert any(len(spans) > 1 for spans in batch["pair_records"])


def test_collate_of_ones_own(config):
    """It gets whole batches in a Loader, and the samples of one in torch's DataLoader."""
    config["outputs"]["cu_seqlens"] = False
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
