"""Whatever bytes are read, what comes out is a result or an error of ours: no other, no hang, no huge allocation."""

import hashlib
import re
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conceptloader.errors import ConceptloaderError
from conceptloader.storage.objects import Part
from tests import archives
from tests.conftest import Tally
from tests.hostile import files
from tests.hostile.fuzz import CORPUS, MOST_BYTES, NAMES, attempt, fuzz, measured, mutate, seeds, several
from tests.hostile.targets import Template, targets
from tests.scale import scaled

MUTATIONS = 20
SECONDS = scaled(12, 300)  # in all


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template.make(tmp_path_factory.mktemp("template") / "ds")


def test_every_target_is_tried(template: Template) -> None:
    assert sorted(targets(template)) == sorted(NAMES)


def test_the_corpus_is_packed_as_fuzz_packs_it() -> None:
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
def test_inputs(template: Template, name: str, tally: Tally) -> None:
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


def test_what_is_found_is_told(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory beyond the bound, a wrong array, a process that dies."""

    def memory(_directory: Path, data: bytes) -> None:
        assert bytearray(MOST_BYTES + len(data))

    with pytest.raises(AssertionError, match="bytes of memory"):
        fuzz("memory", memory, [b"x"], 5)

    honest, asked = files.Answers.get, []

    def wrong(self: files.Answers, path: str, offset: int, size: int) -> Part:
        part = honest(self, path, offset, size)
        asked.append(path)
        first = asked.count(path) == 1  # which is compared with the manifest
        turned = part.data[2:] + part.data[:2]  # ids that may be
        return replace(part, data=turned) if path.endswith("stream.bin") and not first else part

    monkeypatch.setattr(files.Answers, "get", wrong)
    with pytest.raises(AssertionError):
        attempt(targets(template)["store"], b"")
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert several(["yaml", "npy"], 1, False) == ["yaml", "npy"]


def test_other_exceptions_are_not_swallowed(template: Template) -> None:
    def broken(_directory: Path, data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        attempt(broken, b"")
    assert issubclass(ConceptloaderError, Exception)
