"""Whatever bytes are read, what comes out is a result or an error of ours: no other, no hang, no huge allocation."""

import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

from conceptloader.errors import ConceptloaderError
from tests.conftest import Tally
from tests.hostile.fuzz import attempt, fuzz, mutate, seeds
from tests.hostile.targets import Template, targets
from tests.scale import SOAK

NAMES = [
    "manifest", "shard_report", "build_file", "vocabulary", "yaml", "jsonl", "quarantine", "run_log", "record",
    "order_spec", "megatron_index", "npy",
]  # fmt: skip
MUTATIONS = 40
SOAK_S = 60
MOST_BYTES = 64 << 20


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template.make(tmp_path_factory.mktemp("template") / "ds")


def test_every_target_is_tried(template: Template) -> None:
    assert sorted(targets(template)) == sorted(NAMES)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_inputs(template: Template, name: str, tally: Tally) -> None:
    target, kept = targets(template)[name], seeds(name)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if SOAK:
            tried, found = fuzz(name, target, SOAK_S)
            tally("hostile inputs, guided by coverage", {"inputs": tried, "reached something new": len(found)})
        outcomes = [attempt(target, data) for data in kept]
        assert "accepted" in outcomes, "the sound one is"
        for data in (mutate(kept[int(rng.integers(len(kept)))], kept, rng) for _ in range(MUTATIONS)):
            tracemalloc.start()
            try:
                outcomes.append(attempt(target, data))
                assert tracemalloc.get_traced_memory()[1] < MOST_BYTES, data[:500]
            finally:
                tracemalloc.stop()
    assert set(outcomes) > {"accepted"}, "some are refused"
    tally("hostile inputs", {"inputs": len(outcomes)})


def test_other_exceptions_are_not_swallowed(template: Template) -> None:
    def broken(_directory: Path, data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        attempt(broken, b"")
    assert issubclass(ConceptloaderError, Exception)
