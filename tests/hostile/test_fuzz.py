"""Whatever bytes are read, what comes out is a result or an error of ours: no other, no hang, no huge allocation."""

import hashlib
import re
import warnings

import numpy as np
import pytest

from tests import archives
from tests.hostile.fuzz import CORPUS, NAMES, attempt, fuzz, measured, mutate, seeds
from tests.hostile.targets import Template, targets
from tests.scale import scaled

MUTATIONS = 20
SECONDS = scaled(12, 300)  # in all


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return Template.make(tmp_path_factory.mktemp("template") / "ds")


def test_every_target_is_tried(template):
    assert sorted(targets(template)) == sorted(NAMES)


def test_the_corpus_is_packed_as_fuzz_packs_it():
    """Its inputs are of targets that exist, and those that were found are named by their content."""
    files = archives.read(CORPUS)
    assert archives.tar(files) == archives.read_tar(CORPUS)
    assert {name.split("/")[0] for name in files} <= set(NAMES)
    for name, data in files.items():
        if found := re.search(r"/([0-9a-f]{12})\.bin$", name):
            assert hashlib.sha256(data).hexdigest().startswith(found[1]), name
    assert len(files) > 100


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_inputs(template, name, tally):
    target, kept = targets(template)[name], seeds(name, template)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tried, found = fuzz(name, target, kept, SECONDS / len(NAMES))
        tally("hostile inputs, guided by coverage", {"inputs": tried, "reached something new": len(found)})
        outcomes = [attempt(target, data) for data in kept]
        assert "accepted" in outcomes, "the sound one is"
        for data in (mutate(kept[int(rng.integers(len(kept)))], kept, rng) for _ in range(MUTATIONS)):
            outcomes.append(measured(target, data))
    assert set(outcomes) > {"accepted"}, "some are refused"
    tally("hostile inputs", {"inputs": len(outcomes)})
