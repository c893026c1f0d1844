"""Every key of the configuration in every entry: it has its effect, or it raises before the first batch."""

import dataclasses
import typing
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

import conceptloader as cl
from conceptloader.config.schema import Config
from conceptloader.loader.batch.loader import BaseLoader
from conceptloader.loader.batch.source import SampleSource
from tests.entries.corpus import write
from tests.entries.drivers import ENTRIES, Taken, around
from tests.entries.rows import REFUSED, ROWS, Runs, drive, expected, merged

INTEGRATIONS = Path(__file__).resolve().parents[2] / "integrations"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("entries"))


@contextmanager
def entered(name):
    entry = ENTRIES[name]
    if entry.needs and find_spec(entry.needs) is None:
        pytest.skip(f"{entry.needs} is not installed: `make test-trainers` or `make trainers` has it")
    with around(entry):
        yield entry


@pytest.fixture(scope="module", params=list(ENTRIES))
def runs(request, corpus):
    with entered(request.param) as entry:
        yield Runs(entry, corpus)


@pytest.mark.parametrize("key", list(ROWS))
def test_a_cell(runs, key):
    found, wanted = runs.outcome(ROWS[key]), expected(key, runs.entry.title)
    assert found == wanted


@pytest.mark.parametrize("key", [key for key in ROWS if key.startswith("mixing")])
@pytest.mark.parametrize("name", ["Megatron launcher", "nanotron YAML"])
def test_weights_that_change_raise_with_workers(corpus, name, key, tmp_path):
    """Worker processes of the trainer's DataLoader hold the order as it was: at launch, before the first batch."""
    row = ROWS[key]
    with entered(name) as entry:
        changed = merged(corpus.config, corpus.made(row.change))
        run = drive(entry, changed, Taken(tmp_path, row.steps, workers=1))
    assert row.refused(run) == REFUSED


def leaves(section, where=""):
    """Keys of a section and of those in it; `*` stands for a name."""
    for name, kind in typing.get_type_hints(section).items():
        if typing.get_origin(kind) is typing.ClassVar or name not in {f.name for f in dataclasses.fields(section)}:
            continue
        parts = [kind, *typing.get_args(kind)]
        below = [part for part in parts if dataclasses.is_dataclass(part)]
        named = ".*" if typing.get_origin(kind) is dict else ""
        if below:
            yield from leaves(below[0], f"{where}{name}{named}.")
        else:
            yield where + name


def test_every_key_has_a_row():
    keys = set(leaves(Config))
    tested = {leaf for row in ROWS.values() for leaf in row.leaves}
    assert tested == keys


def test_every_entry_has_a_column():
    """Each loader, source of samples and adapter is driven."""
    driven = {name for entry in ENTRIES.values() for name in entry.classes}
    public = [getattr(cl, name) for name in cl.__all__ if name != "BaseLoader"]
    kinds = BaseLoader | SampleSource
    loaders = {f"conceptloader.{one.__name__}" for one in public if isinstance(one, type) and issubclass(one, kinds)}
    assert loaders <= driven, f"without a driver: {loaders - driven}"
    adapters = {file.parent.name for file in INTEGRATIONS.glob("*_lm/__init__.py")}
    assert adapters == {name.split(".")[2] for name in driven if "integrations" in name}
