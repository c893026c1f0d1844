"""Damage to the files of a dataset: it is found or does no harm; nothing crashes, hangs or allocates without bound."""

import tracemalloc
import zlib
from collections import Counter

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError
from tests.corpora.variants import VARIANTS, everything
from tests.corruption.mutations import mutate, mutate_value, with_matching_manifest, write
from tests.scale import scaled


def raw(files, rng):
    """What disks, networks and people do."""
    return mutate(files, rng)


def consistent(files, rng):
    """What a wrong or hostile writer does: checksums and sizes in the manifest agree with the damage."""
    names = {name: data for name, data in files.items() if not name.endswith(".json")}
    what, changed = mutate(names, rng)
    if any(data is not None and what.startswith("delete") for data in changed.values()):
        return what, changed
    return what, with_matching_manifest(files, changed)


def manifest(files, rng):
    """What a hostile manifest says: any value is another one."""
    what, data = mutate_value(files["manifest.json"], rng)
    return what, {"manifest.json": data}


class Subject:
    """A dataset that is damaged and repaired again and again."""

    def __init__(self, path, variant):
        self.path = path
        self.variant = variant
        variant.build(path)
        self.files = {file.name: file.read_bytes() for file in sorted(path.iterdir())}
        self.content = everything(path)

    def repair(self, changed):
        for name in changed:
            (self.path / name).write_bytes(self.files[name])
        for file in self.path.iterdir():
            if file.name not in self.files:
                file.unlink()

    def outcome(self, what):
        """How the damage shows. Raises whatever is no error of ours."""
        try:
            found = everything(self.path)
        except ConceptloaderError as error:
            found = error
        if isinstance(found, ConceptloaderError):
            assert len(str(found)) < 2000, what
            assert str(self.path) in str(found), what
        try:
            problems = cl.verify(self.path, full=True, write_checksums=False)
        except ConceptloaderError:
            return "refused"
        if problems:
            return "verified" if isinstance(found, list) else "read"
        if isinstance(found, list):
            return "harmless" if found == self.content else "unnoticed"
        return "read only"


def run(subject, damage, count, seed):
    rng = np.random.default_rng(seed)
    outcomes = Counter()
    honest = sum(map(len, subject.files.values()))
    for _ in range(count):
        what, changed = damage(subject.files, rng)
        if all(subject.files.get(name) == data for name, data in changed.items()):
            continue
        write(subject.path, changed)
        traced = rng.random() < 0.2
        if traced:
            tracemalloc.start()
        try:
            outcome = subject.outcome(what)
            if traced:
                peak = tracemalloc.get_traced_memory()[1]
                assert peak < 200 * honest + (4 << 20), f"{what}: {peak} bytes"
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            if traced:
                tracemalloc.stop()
            subject.repair(changed)
        outcomes[outcome] += 1
        if damage is raw:
            assert outcome not in ("unnoticed", "read only"), f"{what}: {outcome}"
    assert everything(subject.path) == subject.content
    return outcomes


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def subject(request, tmp_path_factory):
    return Subject(tmp_path_factory.mktemp("damaged") / "ds", request.param)


@pytest.mark.soak
@pytest.mark.parametrize("damage", [raw, consistent, manifest], ids=lambda damage: damage.__name__)
def test_damage_is_found_or_harmless(subject, damage, tally):
    outcomes = run(subject, damage, scaled(12, 250), zlib.crc32(f"{subject.variant} {damage.__name__}".encode()))
    assert sum(outcomes.values()) > 5
    tally(f"damaged datasets, {damage.__name__}", {"mutations": sum(outcomes.values()), **outcomes})
