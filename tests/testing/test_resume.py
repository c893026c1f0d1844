"""A run that is stopped after any step goes on with the same samples, whatever it goes on with."""

from dataclasses import replace
from typing import Any

import pytest

from conceptloader import Blend, load_config, open_blend
from conceptloader.testing import Layout, check_resume, random_documents, write_dataset
from conceptloader.torch.loader import Loader, make_dataloader

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
            {"start": 0, "weights": {"books": 2, "web": 1}},
            {"start": 70, "weights": {"books": 1, "code": 3, "web": 1}},
        ],
        "skip": [{"at": 50, "count": 11}],
        "outputs": {"document_ids": True, "position_ids": "document"},
        "concepts": {"concepts": {}},
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


def opened(config: dict[str, Any], **loader: Any) -> Blend:
    return open_blend(load_config({**config, "loader": loader}))


@pytest.mark.parametrize("dp_size", [1, 2, 3, 4, 8])
def test_any_number_of_ranks_goes_on(config: dict[str, Any], dp_size: int) -> None:
    after = [
        replace(BEFORE, dp_size=dp_size, micro_batch_size=24 // dp_size),
        replace(BEFORE, dp_size=dp_size, micro_batch_size=1),
    ]
    check_resume(make(opened(config, prefetch=1)), BEFORE, after, STEPS)


@pytest.mark.parametrize("dp_size", [1, 3, 4, 8])
def test_any_number_of_ranks_may_have_come_before(config: dict[str, Any], dp_size: int) -> None:
    before = replace(BEFORE, dp_size=dp_size, micro_batch_size=24 // dp_size)
    check_resume(make(opened(config, prefetch=2)), before, [BEFORE], STEPS)


@pytest.mark.parametrize("prefetch", [0, 1, 16])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_read_ahead_does_not_count(config: dict[str, Any], prefetch: int, threads: int) -> None:
    after = [BEFORE, replace(BEFORE, dp_size=3, micro_batch_size=2)]
    check_resume(make(opened(config, prefetch=prefetch, threads=threads)), BEFORE, after, STEPS)


@pytest.mark.parametrize("global_batch_size", [6, 12, 48])
def test_another_global_batch_takes_the_same_samples(config: dict[str, Any], global_batch_size: int) -> None:
    after = [
        Layout(dp_size=2, micro_batch_size=3, global_batch_size=global_batch_size),
        Layout(dp_size=3, micro_batch_size=2, global_batch_size=global_batch_size),
    ]
    check_resume(make(opened(config, prefetch=1)), BEFORE, after, STEPS)
