"""Power loss during a build: whatever a disk may have lost, the directory is no dataset, or it is the whole one."""

import os
import shutil

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from tests.scale import scaled
from tests.soak.builds import build, contents, write_input
from tests.soak.powerloss import PowerLoss, Recorder

CHOICES = ("none", "all", "some")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_input(tmp_path_factory.mktemp("input") / "corpus.jsonl", documents=24)


@pytest.fixture(scope="module")
def wanted(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "ds"
    build(source, out)
    return contents(out)


def crash(tmp_path, source, at):
    """The build up to operation `at`, None: to its end. It leaves the directory as the program saw it."""
    root = tmp_path / "disk"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        disk = Recorder(root, patch, at)
        try:
            build(source, root / "ds")
        except PowerLoss:
            pass
        else:
            assert at is None or disk.operations < at
    return disk


def check(disk, target, choice, seed, source, wanted):
    """Whether the dataset is complete after the crash. If not, the next run has to mend everything."""
    disk.leave(target, choice, np.random.default_rng(seed))
    out = target / "ds"
    complete = (out / "manifest.json").exists()
    if complete:
        assert cl.verify(out, full=True) == []
    else:
        with pytest.raises((FormatError, ConfigError)):
            cl.open_dataset(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        build(source, out)
    found = {name: data for name, data in contents(out).items() if not name.endswith(".tmp")}
    assert found == wanted
    shutil.rmtree(target)
    return complete


@pytest.mark.soak
def test_at_every_operation(tmp_path, source, wanted, tally):
    last = crash(tmp_path, source, None).operations
    operations = range(1, last + 1, scaled(max(1, last // 8), 1))
    states = complete = 0
    for at in operations:
        disk = crash(tmp_path, source, at)
        for choice in CHOICES:
            for seed in range(scaled(1, 4) if choice == "some" else 1):
                complete += check(disk, tmp_path / "left", choice, seed, source, wanted)
                states += 1
    tally("power losses", {"operations": len(operations), "states of the disk": states, "already complete": complete})


def test_a_build_that_has_returned_is_on_disk(tmp_path, source, wanted):
    disk = crash(tmp_path, source, None)
    assert check(disk, tmp_path / "left", "none", 0, source, wanted), "the finished dataset is gone"
