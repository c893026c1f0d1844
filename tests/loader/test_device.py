"""Copies to a device: in order, one ahead, waited for by the stream that uses them."""

import pytest
import torch

import conceptloader as cl
from conceptloader.collate import on_device

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
