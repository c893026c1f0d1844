"""Copies to a device: in order, one ahead, waited for by the stream that uses them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.loader.torch import collate
from conceptloader.loader.torch.collate import on_device, pinned_block, to_tensors

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class FakeCuda:
    """Stands in for torch.cuda: notes what is done, in order."""

    def __init__(self):
        self.log = []

    def Stream(self, device):
        return FakeStream(self.log, "copies")

    def stream(self, stream):
        return stream

    def current_stream(self, device):
        return FakeStream(self.log, "current")


class FakeStream:
    def __init__(self, log, name):
        self.log, self.name, self.events = log, name, 0

    def __enter__(self):
        self.log.append("copy")

    def __exit__(self, *_):
        pass

    def record_event(self):
        self.events += 1
        return self.events

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event}")


def test_the_next_batch_is_copied_before_one_is_handed_out(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: fake.log.append(f"keep for {stream.name}"))
    batches = ((k, {"x": torch.full((2,), k), "max_seqlen": k}) for k in range(3))
    for task, batch in on_device(batches, torch.device("cpu")):
        fake.log.append(f"use {task}")
        assert batch["x"].tolist() == [task, task]
        assert batch["max_seqlen"] == task
    assert fake.log == [
        "copy", "copy", "current waits for 1", "keep for current", "use 0",
        "copy", "current waits for 2", "keep for current", "use 1",
        "current waits for 3", "keep for current", "use 2",
    ]  # fmt: skip


@pytest.fixture
def blocks(monkeypatch):
    """The tensors that own blocks of memory as PyTorch allocates them; without CUDA they are just not page-locked."""
    made = []
    empty = torch.empty

    def allocate(*size, pin_memory=False, **options):
        tensor = empty(*size, **options)
        if pin_memory:
            made.append(tensor)
        return tensor

    monkeypatch.setattr(collate.torch, "empty", allocate)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return made


@pytest.mark.parametrize("layout", ["padded", "ragged"])
def test_every_tensor_of_a_pinned_batch_holds_its_whole_block(config, blocks, layout):
    """PyTorch finds the block that a copy reads from by the tensor's storage (or by the address where a block begins),
    and puts an event on it, until which nobody gets the block. The storage of every tensor must be the block's, then.
    """
    plain = cl.make_dataloader(config, micro_batch_size=4)
    config["loader"] = {**config["loader"], "pin_memory": True}
    config["tracks"]["concepts"]["layout"] = layout
    with plain, cl.make_dataloader(config, micro_batch_size=4) as pinned:
        for _, batch, same in zip(range(10), pinned, plain, strict=False):
            batch.pop("concepts_values", None)  # of a length of its own: no page-locked memory, its copies wait
            storages = {t.untyped_storage().data_ptr() for t in batch.values() if isinstance(t, torch.Tensor)}
            assert len(storages) == 1
            assert storages <= {block.untyped_storage().data_ptr() for block in blocks}
            assert torch.equal(batch["input_ids"], same["input_ids"])
            assert torch.equal(batch["labels"], same["labels"])
            assert torch.equal(batch["cu_seqlens"], same["cu_seqlens"])


def test_what_collate_made_is_what_arrives(config, blocks, monkeypatch):
    """A `labels` of one's own stays, although a batch as it is read has them as a part of `tokens`."""
    config["outputs"] = {"shared_labels": True}

    def masked(batch):
        return {**batch, "labels": batch["labels"].masked_fill(batch["labels"] % 2 == 0, -100)}

    with cl.make_dataloader(config, micro_batch_size=4, batch_transform=masked) as loader:
        expected = next(iter(loader))
        loader.load_state_dict(loader.state_dict_at(0))
        loader.device = SimpleNamespace(type="cuda")
        copy = lambda batches, _, *how: on_device(batches, torch.device("cpu"), *how)  # noqa: E731
        monkeypatch.setattr("conceptloader.loader.torch.loader.on_device", copy)
        monkeypatch.setattr(torch, "cuda", FakeCuda())
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
        found = next(iter(loader))
    assert (expected["labels"] == -100).any()
    assert torch.equal(found["labels"], expected["labels"])


@needs_cuda
def test_a_pinned_block_is_not_used_again_while_any_tensor_of_it_is_copied():
    size = 1 << 22
    block = pinned_block(size)
    block[:] = 7
    batch = to_tensors({name: np.ndarray(size // 2, np.uint8, block, k * size // 2) for k, name in enumerate("ab")})
    where = block.__array_interface__["data"][0]
    torch.cuda._sleep(1 << 31)  # about a second: the copy waits behind it
    copied = batch["b"].to("cuda", non_blocking=True)
    del block, batch
    again = pinned_block(size)
    assert again.__array_interface__["data"][0] != where, "the copy has not been made yet"
    again[:] = 9
    assert bool((copied == 7).all())


@needs_cuda
def test_tensors_on_the_device_are_those_of_the_host(config):
    host = cl.make_dataloader(config, micro_batch_size=4)
    device = cl.make_dataloader(config, micro_batch_size=4, device="cuda")
    with host, device:
        for k, (a, b) in enumerate(zip(host, device, strict=False)):
            assert host.consumed_samples == device.consumed_samples
            for name, value in a.items():
                if name != "max_seqlen":
                    assert b[name].is_cuda
                    assert torch.equal(value, b[name].cpu()), name
            if k == 50:
                break


@needs_cuda
def test_pinned_batches_may_be_copied_without_waiting(config):
    config["loader"]["pin_memory"] = True
    plain = cl.make_dataloader({**config, "loader": {}}, micro_batch_size=4)
    with plain, cl.make_dataloader(config, micro_batch_size=4) as pinned:
        copies = []
        for k, batch in enumerate(pinned):
            assert batch["input_ids"].is_pinned()
            copies.append(batch["input_ids"].to("cuda", non_blocking=True))
            if k == 50:
                break
        for copied, batch in zip(copies, plain, strict=False):
            assert torch.equal(copied.cpu(), batch["input_ids"])
