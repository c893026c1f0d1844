"""What a teacher writes in one order, a student reads in another: every pair of a token and its value is compared."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.subset.views import SubsetOptions, make_subsets
from tests.columns.teacher import Corpus, computed
from tests.conftest import Tally

NAME, K = "teacher", 32
PACKED = {"packing": {}, "outputs": {"columns": {NAME: "labels"}}}


def compare(corpus: Corpus, config: Mapping[str, Any], *, ranks: int = 3, missing: int = 0) -> int:
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


def write_packed(path: str, corpus: Corpus, name: str = NAME, k: int = K) -> Any:
    """All of it, in this process."""
    config = {"seq_len": 48, "seed": 5, "datasets": {"web": {"path": path}}, "packing": {}}
    loader, rng = cl.batches(config, micro_batch_size=16, num_samples=None), np.random.default_rng(1)
    writer = cl.column_writer(path, name, "u4", k, loader=loader)
    steps = -(-loader.blend.order.sizes[0] // 16)
    for _, batch in zip(range(steps), loader, strict=False):
        writer.write(batch, computed(corpus, batch["labels"], k, rng))
    return writer


@pytest.mark.slow
def test_written_by_two_ranks_that_are_killed_and_read_by_three_in_other_orders(tmp_path: Path, tally: Tally) -> None:
    corpus = Corpus.random(1200, seed=1)
    path = corpus.write(tmp_path / "web")
    other = Corpus.random(300, seed=2, first=int(corpus.starts[-1]))
    other.write(tmp_path / "other")
    config: dict[str, Any] = {
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
    assert column.holes is not None
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
