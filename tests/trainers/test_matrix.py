"""Real trainers, two processes over gloo, stopped and resumed in every way: their models see the plan, once."""

import json
import os
import re
from collections import Counter
from importlib.util import find_spec

import pytest

from conceptloader.adapters import RunLog
from tests.trainers import tables, values
from tests.trainers.matrix import BATCH, MATRIX, SIZES, configs, errors, judge, launches, run, seen

# The launches of a trainer are made with the first of its tests.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TRAINERS = MATRIX["trainers"]
# A trainer of these takes a whole step from the loader at once, and saves between steps.
WHOLE_STEPS = ("olmo", "torchtitan")
VALUED = ("lightning", "transformers", "accelerate")


def misuse(trainer):
    return {**MATRIX["misuse"]["every"], **MATRIX["misuse"][trainer]}


class Runs:
    """All launches of one trainer, made by one process."""

    def __init__(self, name, folder):
        self.trainer = trainer = name.removeprefix("pytorch_")
        config, valid = configs(folder / "data")

        def made(part, specs):
            specs = [{**spec, "valid": valid} if spec.get("val") else spec for spec in specs]
            specs = [{k: v for k, v in spec.items() if k != "val"} for spec in specs]
            return launches(folder / part, valid if part == "passes" else config, specs)

        self.parts = {part: made(f"part{k}", of_trainer(trainer, part)) for k, part in enumerate(MATRIX["parts"])}
        self.misuse = {}
        self.more = {}
        self.bare = []
        self.values = {}
        if name == trainer:  # the same adapter by the other name of the package: its launches are enough
            self.make_more(trainer, made, folder)
        every = (self.parts, self.misuse, self.more, self.values, {"bare": self.bare})
        self.output = run(f"run_{name}", [chain for chains in every for chain in chains.values()])

    def make_more(self, trainer, made, folder):
        for k, (name, case) in enumerate(misuse(trainer).items()):
            self.misuse[name] = made(f"misuse{k}", [{"ranks": 1, "accumulate": 2, **one} for one in case["launches"]])
        self.more = {name: made(name, specs) for name, specs in TRAINERS[trainer].get("more", {}).items()}
        bare = {"bare": True, **TRAINERS[trainer].get("bare", {})}
        self.bare = made("bare", [bare, bare] if "bare" in TRAINERS[trainer] else [])
        if trainer in VALUED:
            for kind, (train, held_out) in values.configs(folder / "values", loss_weight="weight").items():
                wanted = MATRIX["values"][kind]
                first = {"ranks": 2, **wanted[0]}
                options = {"values": kind, "before": (first["micro"], first["ranks"])}
                specs = [{**spec, "valid": held_out, "options": options} for spec in wanted]
                self.values[kind] = launches(folder / kind, train, specs)
        else:
            for kind, (train, held_out) in values.configs(folder / "tables").items():
                more = {"valid": held_out} if trainer == "torchtitan" else {}
                specs = [{**spec, **more} for spec in MATRIX["tables"][kind]]
                self.values[kind] = launches(folder / kind, train, specs)


def of_trainer(trainer, part):
    """The launches as this trainer can make them; where sizes change in epochs of three steps, with validations."""
    specs = MATRIX["parts"][part]
    if trainer in WHOLE_STEPS:
        specs = [{name: value for name, value in spec.items() if name not in ("mid", "ahead")} for spec in specs]
    if part != SIZES:
        return specs
    options = {} if trainer == "torchtitan" else {"epoch_samples": 3 * BATCH}
    if trainer == "lightning":
        options["epochs"] = 10
    return [{**spec, "val": int(trainer != "olmo"), "options": options} for spec in specs]


def there(trainer):
    checkout = trainer == "torchtitan" and "CONCEPTLOADER_TORCHTITAN" in os.environ
    return checkout or find_spec(TRAINERS[trainer]["package"]) is not None


@pytest.fixture(scope="module", params=list(TRAINERS))
def runs(request, tmp_path_factory):
    trainer = request.param
    if not there(trainer):
        pytest.skip(f"{TRAINERS[trainer]['package']} is not installed: `make test-trainers` or `make trainers` has it")
    return Runs(trainer, tmp_path_factory.mktemp(trainer))


@pytest.mark.parametrize("part", list(MATRIX["parts"]))
def test_nothing_is_skipped_or_repeated(runs, part):
    made = runs.parts[part]
    assert errors(made) == [], runs.output[-2000:]
    assert judge(made) == (0, 0)
    for launch in made[1:]:
        assert min(seen(launch)) == launch.first, "resumed where the one before has saved, behind which it had trained"
        assert max(seen(made[launch.number - 1])) >= launch.first
    assert (made[0].path / "reached.0.0").exists() == (part == SIZES)


def test_losses_and_parameters_are_those_of_a_loop_by_hand(runs):
    """Masks, weights, packs, boundaries of documents, accumulation, a last batch that is not full, a resume."""
    for kind, made in runs.values.items():
        assert errors(made) == [], runs.output[-2000:]
        for launch in made:
            if runs.trainer == "olmo":
                tables.olmo(launch)
                continue
            for what, (ours, by_hand) in json.loads((launch.path / f"values.{launch.number}").read_text()).items():
                assert by_hand
                assert ours == pytest.approx(by_hand, rel=1e-5, abs=1e-5), f"{kind}, launch {launch.number}: {what}"


def test_without_the_adapter_it_is_seen(runs):
    try:
        assert not runs.bare or judge(runs.bare) != (0, 0)
    except AssertionError:
        assert errors(runs.bare)  # transformers: it cannot resume at all


def test_misuse_is_refused_with_what_to_do(runs):
    for name, made in runs.misuse.items():
        said, message = errors(made), misuse(runs.trainer)[name]["says"]
        assert said, f"{name}: nothing was refused"
        assert re.search(message, said[-1]), f"{name}: {said[-1]}"


def test_epochs_and_evaluation(runs):
    trainer = runs.trainer
    for name, made in runs.more.items():
        assert errors(made) == [], name
        if name not in ("sizes", "sizes in an epoch", "passes"):
            assert judge(made) == (0, 0), name
    if trainer != "olmo":
        evaluated(trainer, runs.parts[SIZES])
    if "sizes in an epoch" in runs.more:
        change_of_batch(runs.more["sizes"], runs.more["sizes in an epoch"])
    if trainer == "accelerate":
        assert sum(seen(runs.more["sizes"][0]).values(), Counter()) == Counter(range(46))
    if trainer == "torchtitan":
        for launch in runs.parts[SIZES]:  # with validations, which are in no metrics
            ends = {step: {(step + 1) * BATCH: launch.ranks} for step in seen(launch)}
            assert seen(launch, "metrics") == ends
        assert [start.consumed for start in logged(runs.more["sizes"]).starts] == [0, 36, 0]
        assert "torchtitan resumes at step 5, but" in runs.output
    if trainer == "olmo":
        total = sum(seen(runs.more["sizes"][0]).values(), Counter())
        assert total == Counter(range(2 * BATCH + 5 * 2 * BATCH))
        for made in (runs.more["sizes"], runs.parts[SIZES]):
            logged(made)
        passes(runs.more["passes"])


def change_of_batch(made, in_epochs):
    """From 108 samples on, which are no multiple of 24, whole batches of 24, also after a resume; to the end."""
    steps = [Counter(range(108 + first, 132 + first)) for first in (0, 24, 48, 72)]
    assert seen(made[1]) == dict(zip((3, 4, 5), steps, strict=False))
    assert seen(made[2]) == {5: steps[2], 6: steps[3]}
    assert max(seen(made[2], "val0")) == 7, "the validation at the end of the epoch, which is the run's"
    whole = [Counter(range(72 + first, 108 + first)) for first in (0, 36, 72)]
    assert seen(in_epochs[1]) == dict(zip((3, 4, 5), whole, strict=True))
    assert max(seen(in_epochs[1], "val0")) == 5, "at 144 samples"


def passes(made):
    """Of 48 windows in steps of 10, beyond their end, resumed at the end of a pass: each once a pass."""
    steps = {**seen(made[0]), **seen(made[1])}
    assert min(seen(made[1])) == 5
    for first in (0, 5):
        assert [steps[first + k] for k in range(5)] == [Counter(range(k * 10, min(48, k * 10 + 10))) for k in range(5)]
    assert [*steps] == [*range(12)]
    assert (made[0].path / "checkpoints" / "step12").exists()
    starts = [launch.start for launch in RunLog(made[0].path / "checkpoint").history.launches]
    assert [(start.step, start.consumed) for start in starts] == [(0, 0), (5, 0), (10, 0)]


def logged(made):
    """The run log names the samples of each step: after another global batch, and without the loader's state."""
    log = RunLog(made[0].path / "checkpoint")
    for launch, stop in zip(made, [*(one.first for one in made[1:]), made[-1].steps], strict=True):
        for step in range(launch.first, stop):
            assert seen(launch)[step] == Counter(range(*log.history.range_of(step))), (launch.number, step)
    return log


def evaluated(trainer, made):
    """Each evaluation of each launch read the same windows, from the first one on, each once."""
    for kind in ["val0", "val1"] if trainer == "lightning" else ["val0"]:
        by_step = [counts for launch in made for step, counts in seen(launch, kind).items() if step]
        assert len(by_step) >= 3
        assert all(counts == by_step[0] for counts in by_step)
        assert set(by_step[0].values()) == {1}
        assert sorted(by_step[0]) == list(range(len(by_step[0])))
