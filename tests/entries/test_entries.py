"""Every key of the configuration in every entry: it has its effect, or it raises before the first batch."""

import ast
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
from tests.entries.rows import GROUPS, REFUSED, ROWS, SILENT, TABLE, Runs, drive, expected, merged

INTEGRATIONS = Path(__file__).resolve().parents[2] / "integrations"
# Public names of adapters that are parts of an entry.
PARTS = {
    "accelerate_lm": {"AcceleratedEvaluation"},  # an EvaluationLoader
    "megatron_lm": {"SplitIterator", "ConceptDataset", "add_losses", "concepts", "set_weights"},
    "nanotron_lm": {"save_state", "set_weights"},
    "transformers_lm": {"Progress", "collate"},
}
BASES = {"BaseLoader"}


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
    assert {"datasets.*.split", "phases.ramp.samples", "exclude.token_file", "loader.num_threads"} <= keys
    assert tested == keys


def public_names(file):
    """Of an adapter, which may not be importable here: those in __all__, or in the table that it is made of."""
    tree, found = ast.parse(file.read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Dict):
            values = node.elts if isinstance(node, ast.List) else node.values
            found |= {name for value in values for name in ast.literal_eval(value).split()}
    assert found, file
    return found


def test_every_entry_has_a_column():
    """A loader, a source of samples, or a public name of an adapter is driven, or is a part of another."""
    driven = {name for entry in ENTRIES.values() for name in entry.classes}
    public = [getattr(cl, name) for name in cl.__all__ if name not in BASES]
    loaders = {
        f"conceptloader.{found.__name__}"
        for found in public
        if isinstance(found, type) and issubclass(found, BaseLoader | SampleSource)
    }
    assert loaders <= driven, f"without a driver: {loaders - driven}"
    for file in sorted(INTEGRATIONS.glob("*_lm/__init__.py")):
        adapter, where = file.parent.name, f"conceptloader.integrations.{file.parent.name}"
        found = {f"{where}.{name}" for name in public_names(file) - PARTS.get(adapter, set())}
        assert found <= driven, f"without a driver: {found - driven}"


def test_every_exception_is_of_a_row_and_an_entry_and_says_why():
    for other in TABLE["others"]:
        assert (
            other["entries"] in GROUPS if isinstance(other["entries"], str) else set(other["entries"]) <= set(ENTRIES)
        )
        for beginning in other["rows"]:
            assert any(row.startswith(beginning) for row in ROWS), beginning
        assert other.get("note") or other["outcome"] != SILENT
