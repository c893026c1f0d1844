"""`outputs.random`: a number for each sample, of the seed and the sample's index alone: on any rank, after a resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import conceptloader as cl
from conceptloader.base.hashing import derive_key
from conceptloader.batch.open import decide_layout
from conceptloader.batch.reader import BatchReader
from conceptloader.blend import Outputs
from conceptloader.order.reference import sample_random
from tests.batch.cases import make_view
from tests.corpora.known import Recipe, build

# Frozen: trainings rely on them. (seed, sample): number
GOLDEN = {
    (1234, 0): 8929739308134081357,
    (1234, 1): 1522404034680757443,
    (0, 0): 5718582723650490556,
    (-1, 2**40): 1525940554188399697,
    (1234, 2**64 - 1): 3259276375545032009,
}


def sample_randoms(path: Path, seed: int, samples: Any) -> Any:
    """Of batches with a derived key, whatever is read in them."""
    build(path / "a", Recipe(shards=(20,)), np.random.default_rng(0))
    view = make_view("a", cl.open_dataset(path / "a"), 0, 0, 1, 16)
    layout = replace(decide_layout([view], 16, Outputs(random=True)), random_key=derive_key(seed, "sample random"))
    order: Any = None
    zeros = np.zeros(len(samples), np.uint64)
    batch = BatchReader(order, [view], layout).read(
        np.array(samples, np.uint64), picked=(zeros.astype(np.int64), zeros)
    )
    assert batch["random"].dtype == np.int64
    return batch["random"]


def test_the_numbers_are_frozen(tmp_path: Path) -> None:
    assert {place: sample_random(*place) for place in GOLDEN} == GOLDEN
    for k, ((seed, sample), number) in enumerate(GOLDEN.items()):
        assert sample_randoms(tmp_path / str(k), seed, [sample]).tolist() == [number]


def test_they_look_random(tmp_path: Path) -> None:
    numbers = sample_randoms(tmp_path, 7, np.arange(1 << 14))
    assert len(np.unique(numbers)) == len(numbers)
    assert (numbers >= 0).all()
    ones = np.array([(numbers >> bit & 1).mean() for bit in range(63)])
    assert (abs(ones - 0.5) < 0.02).all()


def config(path: Path, **more: Any) -> dict[str, Any]:
    datasets = {"a": {"path": str(path / "a"), "weight": 1.0}}
    return {"version": 1, "seed": 3, "seq_len": 16, "datasets": datasets, "outputs": {"random": True}, **more}


def test_frameworks_carry_it(tmp_path: Path) -> None:
    build(tmp_path / "a", Recipe(), np.random.default_rng(0))
    plain = config(tmp_path)
    del plain["seq_len"]
    assert cl.load_config(plain).with_seq_len(16).outputs.random
