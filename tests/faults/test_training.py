"""Faults under a running training, what passes is not noticed, the rest says file, rank, sample."""

import errno
import os
import re
import threading

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, ReadError
from conceptloader.storage import reads as io

STEPS = 6


def make(corpus, **options):
    config = {
        "seq_len": 16,
        "datasets": {"a": {"path": str(corpus)}},
        "tracks": {"concepts": {}},
        "loader": {"prefetch_batches": 0, **options},
    }
    return cl.make_dataloader(config, dp_rank=1, dp_size=2, micro_batch_size=4)


def batches(loader, count):
    iterator = iter(loader)
    return [{name: np.asarray(value).tolist() for name, value in next(iterator).items()} for _ in range(count)]


def test_a_file_that_is_cut_is_an_error(corpus, monkeypatch):
    """Never other tokens. Those that are replaced: test_identity.py."""
    monkeypatch.setattr(io, "sleep", lambda seconds: None)
    wanted, loader = batches(make(corpus), STEPS), make(corpus)
    found = batches(loader, 1)
    for file in corpus.glob("*.stream.bin"):
        os.truncate(file, file.stat().st_size // 3)

    def rest():
        while True:
            found.extend(batches(loader, 1))

    with pytest.raises(ConceptloaderError, match=r"stream\.bin.*sample \d+.*dp_rank 1"):
        rest()
    assert found == wanted[: len(found)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_slow_openings_are_warned_about_and_limited(corpus, prefetch, monkeypatch, caplog):
    wanted = batches(make(corpus), 2)  # nothing has to be compiled any more
    loader = make(corpus, prefetch_batches=prefetch, warn_after_s=0.1, timeout_s=1)
    release = threading.Event()
    monkeypatch.setattr(io, "open_descriptor", lambda path, flags: release.wait() and os.open(path, flags))
    where = r"dp_rank 1: has waited .* for the opening of .*0000\d\.stream\.bin.*, sample 1, "
    with pytest.raises(ReadError, match=f"{where}.*timeout_s"):
        batches(loader, 1)
    assert any(re.match(f"conceptloader, {where}", record.getMessage()) for record in caplog.records)
    release.set()
    assert batches(loader, 2) == wanted


def test_files_that_cannot_be_opened_name_file_rank_and_sample(corpus, disk):
    wanted = batches(make(corpus), 1)
    loader = make(corpus)
    disk.open_faults = [OSError(errno.ESTALE, "Stale file handle")] * 2
    assert batches(loader, 1) == wanted, "what passes is not noticed"
    loader = make(corpus)
    disk.open_faults = [OSError(errno.EIO, "Input/output error")] * 100
    with pytest.raises(ReadError) as raised:
        batches(loader, 1)
    assert raised.value.errno == errno.EIO
    for part in (f"{corpus}/0000", "cannot be opened", "dp_rank 1", "sample 1", "failed 8 times"):
        assert part in str(raised.value)


def test_quarantined_damage_trains_with_loss_mask_0(corpus):
    """What verify finds goes into the list, and then every rank leaves it out in the same way."""
    file = corpus / "00001.stream.bin"
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    (problem,) = cl.verify(corpus, full=True)
    first, end = problem.tokens
    os.truncate(file, 3)  # now reading it would be an error
    config = {
        "seq_len": 16,
        "datasets": {"a": {"path": str(corpus)}},
        "exclude": [{"dataset": "a", "tokens": [first, end]}],
        "loader": {"prefetch_batches": 0},
    }
    blend = cl.open_blend(cl.load_config(config))
    count = blend.order.sizes[0]
    with cl.make_dataloader(blend, micro_batch_size=1, num_samples=count) as loader:
        masks = {int(batch["sample_index"][0]): batch["loss_mask"].sum().item() for batch in loader}
    assert sorted(masks) == list(range(count)), "such samples keep their number"
    assert 0 in masks.values()
    assert 16 in masks.values()
