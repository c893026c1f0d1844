"""One small run: three datasets (one with a split), two phases, a ramp, a skip, and restarts in its history."""

import pytest

from conceptloader.config import load_config, open_blend
from conceptloader.order.progress.runlog import History, RunStart
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace import Run

SEQ_LEN = 16


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    datasets = {}
    for number, (name, documents, shards) in enumerate([("books", 30, 2), ("code", 25, 1), ("web", 40, 3)]):
        raw = random_documents(
            documents, seed=number, mean_length=40, prefix=name, tracks={"concepts": 6, "quality": 3}
        )
        datasets[name] = {"path": write_dataset(folder / name, raw, shards=shards)}
    datasets["web"]["split"] = [0.1, 0.9]
    config = load_config(
        {
            "seq_len": SEQ_LEN,
            "seed": 5,
            "block": 8,
            "datasets": datasets,
            "phases": [
                {"at": 0, "weights": {"books": 5, "web": 3}},
                {"at": 150, "weights": {"books": 1, "code": 2, "web": 1}, "ramp": {"samples": 90}},
            ],
            "skip": [{"at": 100, "count": 37}],
        }
    )
    return Run(blend=open_blend(config), history=History(starts()))


def starts():
    """4 ranks up to step 9; back to step 7 with 2 ranks; from step 12 on with 3 ranks and another batch size."""
    common = {"seq_len": SEQ_LEN, "spec": "0" * 32}
    return [
        RunStart(step=0, consumed=0, batch=[[0, 8]], micro_batch_size=2, dp_size=4, scheme="contiguous", **common),
        RunStart(step=7, consumed=56, batch=[[0, 8]], micro_batch_size=2, dp_size=2, scheme="contiguous", **common),
        RunStart(step=12, consumed=96, batch=[[0, 12]], micro_batch_size=4, dp_size=3, scheme="strided", **common),
    ]
