"""Metrics of every step, what they are made into, and the loss of each dataset."""

import itertools
import os
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import conceptloader as cl
from conceptloader.kernels.system import STREAM
from conceptloader.loader.batch.open_files import OpenFiles
from conceptloader.storage import reads
from tests.corpora.small import random_datasets


@pytest.fixture
def config(tmp_path):
    datasets = random_datasets(tmp_path, "ab")
    phases = [{"at": 0, "weights": {"a": 3, "b": 1}}, {"at": 40, "weights": {"b": 2}}]
    return {"seq_len": 16, "datasets": datasets, "phases": phases, "block": 8, "loader": {"prefetch_batches": 2}}


@pytest.fixture
def seen():
    found = []
    end = cl.metrics.on_step(found.append)
    yield found
    end()
    assert not cl.metrics.callbacks


def make(config, **options):
    return cl.make_dataloader(
        config, **{"dp_rank": 0, "dp_size": 2, "micro_batch_size": 2, "global_batch_size": 8, **options}
    )


def test_every_step_says_what_was_read(config, seen):
    """On every rank the same; epochs and bytes are those of the windows."""
    windows = {name: len(cl.open_dataset(d["path"]).windows(16)) for name, d in config["datasets"].items()}
    read = Counter()
    parts = [iter(make(config, dp_rank=rank, num_samples=60, last_batch="partial")) for rank in (0, 1)]
    for number, batches in enumerate(zip(*parts, strict=True), 1):
        read.update("ab"[k] for batch in batches for k in batch["dataset_id"].tolist())
        if number % 2 == 0 or number == 15:  # the last step is half a batch
            assert [one.step for one in seen] == [(number - 1) // 2] * 2
            for one in seen:
                assert one.consumed_samples == min(number * 4, 60)
                assert one.samples == {name: read[name] for name in "ab"}
                assert one.epochs == {name: read[name] / windows[name] for name in "ab"}
                assert one.weights == ({"a": 0.75, "b": 0.25} if one.consumed_samples <= 40 else {"b": 1.0})
                assert 0 <= one.waited_seconds <= one.seconds
                assert one.ready >= 0  # grows beyond prefetch_batches where reads are late
                assert one.retries == 0
            read["bytes"] += sum(one.bytes_read for one in seen)
            seen.clear()
    assert read["bytes"] >= 60 * 16 * 2


def test_what_is_masked(config, seen):
    """Of the steps that end, not of what is prefetched: as the batches of this rank say."""
    config["exclude"] = [{"dataset": "b", "tokens": [0, 200]}]
    config["loader"]["prefetch_batches"] = 7
    loader, masks = make(config, dp_rank=1), []
    for number, batch in enumerate(itertools.islice(loader, 40), 1):
        masks.append(batch["loss_mask"])
        if number % 2 == 0:
            mask = torch.cat(masks[-2:])
            assert seen[-1].masked == pytest.approx(1 - float(mask.mean()))
            assert seen[-1].without_loss == int((mask.sum(1) == 0).sum())
            assert seen[-1].tokens == {name: 16 * count for name, count in seen[-1].samples.items()}
    assert 0 < sum(one.without_loss or 0 for one in seen) < 20 * 4
    assert {one.masked for one in seen} > {0.0}
    config |= {"outputs": {"loss_mask": False}, "exclude": []}
    next(iter(make(config, micro_batch_size=4)))
    assert not {"data/masked", "data/without_loss"} & seen[-1].flat().keys()


def test_steps_of_the_run_log_and_weights_that_were_set(config, seen, tmp_path):
    loader = make(config, dp_size=1, micro_batch_size=8)
    loader.log_start(tmp_path, 100)
    for batch in itertools.islice(loader, 8):
        assert seen[-1].consumed_samples == int(batch["sample_index"].max()) + 1
        if len(seen) == 1:
            at = loader.set_weights({"a": 1, "b": 1}, at=48)
    assert at == 48
    assert [one.step for one in seen] == list(range(100, 108))
    assert [one.weights.get("a", 0) for one in seen] == [0.75] * 5 + [0] + [0.5] * 2


def test_retries_are_counted(config, seen, monkeypatch):
    config["loader"] = {"prefetch_batches": 0}
    stock, left = OpenFiles.open, [3]

    def broken(files, row):
        stock(files, row)
        if left[0]:
            left[0] -= 1
            memory = os.open("/proc/self/mem", os.O_RDONLY)  # nobody has memory at these addresses: EIO
            os.dup2(memory, int(files.files[row, STREAM]))
            os.close(memory)

    loader = iter(make(config))
    monkeypatch.setattr(reads, "sleep", lambda seconds: None)
    monkeypatch.setattr(OpenFiles, "open", broken)
    list(itertools.islice(loader, 4))
    assert [one.retries for one in seen] == [3, 0]


def test_an_evaluation_is_no_step_of_the_run(config, seen):
    assert list(cl.EvaluationLoader(config, micro_batch_size=2, num_samples=8))
    assert not seen


def part(rank, batches, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    return means_of(batches if rank == 0 else [])


def means_of(batches):
    found = cl.DatasetLosses(["a", "b", "c"])
    for ids, losses, mask in batches:
        found.add(losses, {"dataset_id": ids, "loss_mask": mask})
    means = found.finish()
    assert found.finish() == {}
    return means


def test_losses_of_datasets_over_ranks(tmp_path):
    """As of all tokens of all ranks; a rank without any takes part."""
    draw = torch.Generator().manual_seed(0)
    ids, losses = torch.randint(0, 2, (4, 3), generator=draw), torch.rand(4, 3, 5, generator=draw)
    mask = torch.randint(0, 3, (4, 3, 5), generator=draw) / 2
    of = {name: ids == k for k, name in enumerate("ab")}
    expected = {name: float((losses * mask)[here].sum() / mask[here].sum()) for name, here in of.items()}
    batches = [*zip(ids, losses, mask, strict=True)]
    assert means_of(batches) == pytest.approx(expected)
    assert means_of([(torch.tensor([2, 2]), torch.tensor([1.0, 2.0]), torch.ones(2))]) == {"c": 1.5}
    with mp.get_context("fork").Pool(2) as pool:
        found = pool.starmap(part, [(rank, batches, str(tmp_path)) for rank in (0, 1)], chunksize=1)
    assert found[0] == found[1] == pytest.approx(expected)
