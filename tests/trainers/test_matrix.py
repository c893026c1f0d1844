"""Real trainers, two processes over gloo, stopped and resumed in every way: their models see the plan, once."""

import os
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.matrix import BATCH, PARTS, chain, configs, errors, judge, launches, run, seen
from tests.trainers.zygote import Launch

# The launches of a trainer are made with the first of its tests.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PACKAGES = {
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "olmo": "olmo_core",
    "torchtitan": "grain",
}
# Without the adapter, this way of going on goes wrong: the matrix can see it.
BARE = {
    "lightning": "read-ahead",
    "transformers": "same size",
    "accelerate": "same size",
    "olmo": "same size",
    "torchtitan": "same size",
}
# A trainer of these takes a whole step from the loader at once, and saves between steps.
WHOLE_STEPS = {
    "olmo": ("in the middle of accumulation", "read-ahead"),
    "torchtitan": ("in the middle of accumulation", "read-ahead"),
}

# What is refused, or has to work: options of a launch on one rank (or two, where a run is resumed), and the message.
ONE: dict[str, Any] = {"ranks": 1, "accumulate": 2}
MISUSE: dict[str, dict[str, tuple[list[dict[str, Any]], str]]] = {
    "lightning": {
        "another batch": ([{**ONE, "options": {"batch": 24}}], r"accumulate_grad_batches=...\): found 2, expected 4"),
        "a checkpoint without the loader": (
            [{**ONE, "bare": True, "ahead": True}, ONE],
            "no whole number of steps|has made 3 steps",
        ),
        "the number left out": ([{**ONE, "options": {"drop": True}}], "holds no 'consumed_samples' any more"),
    },
    "transformers": {
        "another batch": ([{}, {"accumulate": 2}], "found 24 samples a step, expected what the run began with"),
        "dispatch_batches": (
            [{**ONE, "options": {"accelerator_config": {"dispatch_batches": True}}}],
            "each rank reads its own batches",
        ),
        "a DataLoader": (
            [{**ONE, "options": {"wrapped": True}}],
            "found a DataLoader, expected a conceptloader.Sample",
        ),
        "a checkpoint without the loader": (
            [{**ONE, "bare": True}, ONE],
            "has made 3 steps: 36 samples, of which some",
        ),
    },
    "accelerate": {
        "another batch": ([{**ONE, "options": {"global_batch_size": 24}}], "found 2, expected 4"),
        "no accumulate": ([{**ONE, "options": {"plain": True}}], "Put `with accelerator.accumulate"),
        "skip_first_batches": ([{**ONE, "options": {"skip": True}}], "leave skipping out"),
        "a DataLoader": ([{**ONE, "options": {"wrapped": True}}], "a Loader hands out whole batches"),
    },
    "torchtitan": {
        "another batch": ([{**ONE, "options": {"num_samples": 5}}], "found 5, less than a global batch of 12"),
        "a checkpoint without the loader": ([{**ONE, "bare": True}, ONE], "Missing key in checkpoint state_dict"),
        "one pass without an end": ([{**ONE, "options": {"repeat": False}}], "set order: sequential in the config"),
    },
    "olmo": {
        "another batch": ([{**ONE, "options": {"tokens": 100}}], "found 100 tokens, expected a multiple of seq_len")
    },
}


class Runs:
    """All launches of one trainer, made by one process."""

    def __init__(self, trainer: str, folder: Path) -> None:
        config, valid = configs(folder / "data")
        self.parts = {
            part: chain(folder / f"{k}", part, config)
            for k, part in enumerate(PARTS)
            if part not in WHOLE_STEPS.get(trainer, ())
        }
        self.bare = chain(folder / "bare", BARE[trainer], config, bare=True)
        self.misuse = {
            name: launches(folder / f"misuse{k}", config, [dict(spec) for spec in specs])
            for k, (name, (specs, _)) in enumerate(MISUSE[trainer].items())
        }
        self.more = {
            name: launches(
                folder / name, config, [{**spec, "valid": valid} if spec.pop("val", 0) else spec for spec in specs]
            )
            for name, specs in more(trainer).items()
        }
        all_of_them = [*self.parts.values(), self.bare, *self.misuse.values(), *self.more.values()]
        self.output = run(f"run_{trainer}", all_of_them)


def more(trainer: str) -> dict[str, list[dict[str, Any]]]:
    """Epochs and evaluation."""
    border: dict[str, Any] = {"options": {"epoch_samples": 3 * BATCH}}  # where the first launch saves
    borders = {"border": [border, {**border, "ranks": 1, "accumulate": 2}, border]}
    if trainer == "lightning":
        epochs = {"epoch_samples": 24, "epochs": 10}
        return {"epochs": [{"val": 1, "options": epochs}, {"val": 1, "options": epochs}], **borders}
    if trainer == "transformers":
        return {"epochs": [{"val": 1}, {"val": 1}], **borders}
    if trainer == "accelerate":
        return {}
    if trainer == "torchtitan":
        return {"epochs": [{"val": 1, "options": {"num_samples": 12 * 7}}, {"val": 1, "accumulate": 2, "micro": 3}]}
    if trainer == "olmo":
        return {
            "epochs": [
                {"options": {"epoch_samples": 24}},
                {"options": {"epoch_samples": 24}, "ranks": 1, "accumulate": 2},
            ],
            **borders,
            "sizes": [{"options": {"larger_at": 2}}],
        }
    return {}


@pytest.fixture(scope="module", params=list(PACKAGES))
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Runs]:
    trainer: str = request.param
    if trainer == "torchtitan" and "CONCEPTLOADER_TORCHTITAN" not in os.environ:
        pytest.skip("CONCEPTLOADER_TORCHTITAN names no checkout of torchtitan: `make trainers` says how")
    if find_spec(PACKAGES[trainer]) is None:
        pytest.skip(f"{PACKAGES[trainer]} is not installed: `make trainers` has all of them")
    return trainer, Runs(trainer, tmp_path_factory.mktemp(trainer))


@pytest.mark.parametrize("part", list(PARTS))
def test_nothing_is_skipped_or_repeated(runs: tuple[str, Runs], part: str) -> None:
    trainer, found = runs
    if part in WHOLE_STEPS.get(trainer, ()):
        return  # there is no such thing
    made = found.parts[part]
    killed = [launch for launch in made if launch.kill_at is not None]
    assert errors(made) == [], found.output[-2000:]
    assert judge(made) == (0, 0)
    for launch in made[1:]:
        assert min(seen(launch)) == launch.first, "resumed where the one before has saved, behind which it had trained"
        assert max(seen(made[launch.number - 1])) >= launch.first
    assert bool(killed) == (part == "SIGKILL") == (made[0].path / "killed").exists()


def test_without_the_adapter_it_is_seen(runs: tuple[str, Runs]) -> None:
    _, found = runs
    try:
        assert judge(found.bare) != (0, 0)
    except AssertionError:
        assert errors(found.bare)  # transformers: it cannot resume at all


def test_misuse_is_refused_with_what_to_do(runs: tuple[str, Runs]) -> None:
    trainer, found = runs
    for name, (_, message) in MISUSE[trainer].items():
        said = errors(found.misuse[name])
        assert said, f"{name}: nothing was refused"
        assert re.search(message, said[-1]), f"{name}: {said[-1]}"


def test_epochs_and_evaluation(runs: tuple[str, Runs]) -> None:
    trainer, found = runs
    for name, made in found.more.items():
        assert errors(made) == [], name
        if name != "sizes":
            assert judge(made) == (0, 0)
    if "epochs" in found.more and trainer != "olmo":
        evaluated(trainer, found.more["epochs"])
    if trainer == "olmo":
        total = sum(seen(found.more["sizes"][0]).values(), Counter())
        assert total == Counter(range(2 * BATCH + 5 * 2 * BATCH))


def evaluated(trainer: str, made: list[Launch]) -> None:
    """Each evaluation of each launch read the same windows, from the first one on, each once."""
    for kind in ["val0", "val1"] if trainer == "lightning" else ["val0"]:
        by_step = [counts for launch in made for step, counts in seen(launch, kind).items() if step]
        assert len(by_step) >= 4
        assert all(counts == by_step[0] for counts in by_step)
        assert set(by_step[0].values()) == {1}
        assert sorted(by_step[0]) == list(range(len(by_step[0])))
