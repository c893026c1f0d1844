"""Whatever bytes are read, what comes out is a result or an error of ours: no other, no hang, no huge allocation."""

import os
import warnings

import numpy as np
import pytest

from tests.hostile.fuzz import NAMES, attempt, fuzz, measured, mutate, seeds
from tests.hostile.targets import Template, targets
from tests.scale import scaled

MUTATIONS = 20
SECONDS = float(os.environ.get("CONCEPTLOADER_FUZZ_SECONDS", scaled(12, 300)))  # in all


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return Template.make(tmp_path_factory.mktemp("template") / "ds")


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_inputs(template, name, tally):
    known, kept = targets(template), seeds(name, template)
    assert {*known} == {*NAMES}
    target = known[name]
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried, found = fuzz(name, target, kept, SECONDS / len(NAMES))
        tally("hostile inputs, guided by coverage", {"inputs": tried, "reached something new": found})
        outcomes = [attempt(target, data) for data in kept]
        assert "accepted" in outcomes, "the sound one is"
        for data in (mutate(kept[int(rng.integers(len(kept)))], kept, rng) for _ in range(MUTATIONS)):
            outcomes.append(measured(target, data))
    assert set(outcomes) > {"accepted"}, "some are refused"
    tally("hostile inputs", {"inputs": len(outcomes)})
