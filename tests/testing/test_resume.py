"""A run that is stopped after any step goes on with the same samples, whatever it goes on with."""

from dataclasses import replace
from typing import Any

import pytest

from conceptloader import Blend, open_blend
from conceptloader.loader.torch.loader import Loader, make_dataloader
from conceptloader.testing import Layout, check_resume, random_documents, write_dataset

STEPS = 5
BEFORE = Layout(dp_size=2, micro_batch_size=6, global_batch_size=24)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three datasets, two phases with the border in mid-step, a skip, documents and concepts in the batch."""
    folder = tmp_path_factory.mktemp("data")
    names = ["books", "code", "web"]
    return {
        "seq_len": 32,
        "seed": 7,
        "datasets": {
            name: {"path": write_dataset(folder / name, random_documents(50, seed=k, prefix=name), shards=2)}
            for k, name in enumerate(names)
        },
        "phases": [
            {"at": 0, "weights": {"books": 2, "web": 1}},
            {"at": 70, "weights": {"books": 1, "code": 3, "web": 1}},
        ],
        "skip": [{"at": 50, "count": 11}],
        "outputs": {"document_ids": True, "position_ids": "document"},
        "tracks": {"concepts": {}},
    }


def make(blend: Blend) -> Any:
    def loader(layout: Layout, dp_rank: int) -> Loader:
        return make_dataloader(
            blend,
            dp_rank=dp_rank,
            dp_size=layout.dp_size,
            micro_batch_size=layout.micro_batch_size,
            global_batch_size=layout.global_batch_size,
        )

    return loader


def test_it_goes_on_whatever_ran_before_and_whatever_was_read_ahead(config: dict[str, Any]) -> None:
    blend = open_blend({**config, "loader": {"prefetch_batches": 16, "num_threads": 3}})
    check_resume(make(blend), BEFORE, [Layout(dp_size=3, micro_batch_size=2, global_batch_size=48)], STEPS)
    eight = replace(BEFORE, dp_size=8, micro_batch_size=3)
    check_resume(make(blend), eight, [BEFORE, replace(BEFORE, dp_size=1, micro_batch_size=24)], STEPS)
