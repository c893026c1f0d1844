"""What a teacher writes in one order, a student reads in another: every pair of a token and its value is compared."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.columns.teacher import Corpus, computed

NAME, K = "teacher", 32
PACKED = {"packing": {}, "outputs": {"columns": {NAME: "labels"}}}


def compare(corpus, config, *, ranks=3, missing=0):
    """Read an epoch. Returns: how many pairs were compared."""
    pairs = 0
    for rank in range(ranks):
        loader = cl.batches(config, micro_batch_size=8, dp_rank=rank, dp_size=ranks)
        total = sum(loader.blend.order.sizes)
        for step, batch in enumerate(loader):
            if step * 8 * ranks >= total:
                break
            tokens, values = batch["labels"].astype(np.int64), batch[NAME]
            mine = corpus.holds(tokens)
            loss = batch["loss_mask"] > 0
            wanted = np.where(mine[..., None], corpus.values(tokens, values.shape[-1]), missing)
            counted = (mine & loss) | ~mine
            assert (values == wanted)[counted].all(), (rank, step)
            pairs += int((mine & loss).sum()) * values.shape[-1]
    return pairs


@pytest.mark.slow
def test_written_by_two_ranks_that_are_killed_and_read_by_three_in_other_orders(tmp_path, tally):
    corpus = Corpus.random(1200, seed=1)
    path = corpus.write(tmp_path / "web")
    other = Corpus.random(300, seed=2, first=int(corpus.starts[-1]))
    other.write(tmp_path / "other")
    config = {
        "seq_len": 64,
        "seed": 3,
        "datasets": {"web": {"path": path}, "other": {"path": str(tmp_path / "other")}},
    }
    config |= {"packing": {}, "weights": "by_size"}
    order = cl.open_blend(config).order
    web = order.names.index("web")
    batches = next(n for n in range(1, 10_000) if order.counts(n * 8)[web] >= order.sizes[web])
    asked = {"path": path, "name": NAME, "config": config, "ranks": 2, "k": K, "batches": batches}
    asked["corpus"] = [list(map(int, corpus.lengths)), 1]
    for kill in (3, 17, None):
        for rank in range(2):
            words = json.dumps({**asked, "rank": rank, "kill": kill})
            done = subprocess.run(
                [sys.executable, "-m", "tests.columns.teacher", words], cwd=Path(__file__).parents[2],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == (0 if kill is None else -signal.SIGKILL), done.stderr
    column = cl.column_writer(path, NAME, "u4", K).finish()
    assert column.holes.tokens == column.holes.starts
    assert not os.path.exists(f"{path}/{NAME}.column.unfinished")
    assert cl.verify(path, full=True) == []

    only = {"web": {"path": path}}
    pairs = {"packs, another seed": compare(corpus, {**PACKED, "seq_len": 100, "seed": 8, "datasets": only})}
    windows = {"outputs": {"columns": {NAME: "labels"}, "mask_document_boundaries": True}}
    pairs["windows"] = compare(corpus, {**windows, "seq_len": 31, "seed": 8, "datasets": only})
    lacking = {"outputs": {"columns": {NAME: {"at": "labels", "missing": 7}}}}
    mixed = {
        **PACKED,
        **lacking,
        "weights": "by_size",
        "seq_len": 50,
        "seed": 9,
        "datasets": {**only, "b": {"path": str(tmp_path / "other")}},
    }
    pairs["a mixture"] = compare(corpus, mixed, missing=7)
    out = {"exclude": [{"at": 9, "ids": [f"doc-{n}" for n in range(0, 1200, 3)], "dataset": "web", "take": "own"}]}
    pairs["excluded documents"] = compare(corpus, {**PACKED, **out, "seq_len": 77, "seed": 8, "datasets": only})
    make_subsets(path, tmp_path / "some", SubsetOptions(ids=[f"doc-{n}" for n in range(0, 1200, 2)]))
    some = {"web": {"path": str(tmp_path / "some")}}
    pairs["a subset"] = compare(corpus, {**PACKED, "seq_len": 64, "seed": 1, "datasets": some})
    tally("pairs of a token and its value", pairs)
    assert min(pairs.values()) > 100_000


TEACHERS = {
    "windows": {},
    "windows of which parts are taken out": {"exclude": [{"at": 30, "ids": ["doc-7", "doc-30"], "take": "own"}]},
    "windows that are left out": {"exclude": [{"at": 0, "ids": ["doc-7", "doc-30"]}]},
    "packs": {"packing": {}},
    "packs that are cut": {"packing": {"bins": 4, "overflow": "truncate"}},
    "packs of which parts are taken out": {"packing": {}, "exclude": [{"at": 5, "ids": ["doc-1"], "take": "own"}]},
    "documents": {},
    "a subset": {"packing": {}},
    "a concatenation": {"packing": {}},
    "storage order": {"order": "sequential"},
    "labels without loss": {"outputs": {"ignore_index": -100, "mask_document_boundaries": True}},
}


@pytest.mark.parametrize("entry", ["batches", "make_dataloader", "SampleDataset"])
@pytest.mark.parametrize("kind", TEACHERS)
def test_every_kind_of_sample(kind, entry, tmp_path):
    """All labels with a loss get values, no token that was no label does, and each has its own."""
    corpus = Corpus.random(80, seed=11, mean=40)
    path = read = corpus.write(tmp_path / "web", mode="document" if kind == "documents" else None)
    if kind == "a subset":  # which writes to its source
        read = str(tmp_path / "some")
        make_subsets(path, read, SubsetOptions(where="document % 2 = 0"))
    if kind == "a concatenation":  # which has files of its own
        more = Corpus(corpus.lengths[30:], int(corpus.starts[30])).write(tmp_path / "more")
        read = path = str(tmp_path / "both")
        cl.concat([Corpus(corpus.lengths[:30]).write(tmp_path / "less"), more], path)
    config = {"seq_len": 24, "datasets": {"web": {"path": read}}, **TEACHERS[kind]}
    order, rng = cl.open_blend(config).order, np.random.default_rng(4)
    samples, seen, with_loss = order.sizes[0], set(), set()
    if entry == "SampleDataset":
        loader = cl.SampleDataset(config, num_samples=samples)
        batches = (
            cl.collate_fn(loader.__getitems__(list(range(k, min(k + 8, samples))))) for k in range(0, samples, 8)
        )
    else:
        loader = getattr(cl, entry)(
            config, micro_batch_size=1, num_samples=None if kind == "storage order" else samples
        )
        batches = loader
    with cl.column_writer(path, "t", "u4", 2, loader=loader) as writer:
        for batch in batches:
            labels, mask = np.asarray(batch["labels"]), np.asarray(batch["loss_mask"])
            values = computed(corpus, labels, 2, rng)
            seen.update(labels[corpus.holds(labels)].tolist())
            with_loss.update(labels[mask > 0].tolist())
            assert writer.write(batch, torch.from_numpy(values)) >= int((mask > 0).sum())
    writer.finish(partial=True)
    tokens = np.arange(1, corpus.starts[-1])
    items, known = cl.open_dataset(path).column_values("t", 0, len(tokens))
    assert (items == np.where(known[:, None], corpus.values(tokens, 2), 0)).all()
    assert with_loss <= set(tokens[known].tolist()) <= seen
    assert cl.verify(path, full=True) == []
