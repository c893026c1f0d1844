"""An add-on can be deleted: a copy of the package without its folder builds, reads, trains and resumes as before."""

import os
import sys
from pathlib import Path

import pytest

from conceptloader.blend.add_ons import ADD_ONS
from conceptloader.cli import COMMANDS
from tests.soak.builds import child

# Folder -> the commands that go with it: its own, and those of the add-ons that need it.
GONE = {
    "metrics": "", "mixing": "", "remote": "",
    "viewer": "", "subset": "subset", "index": "index",
    "columns": "column", "trace": "trace locate query subset column", "ingest/adopt": "adopt",
    "ingest/annotate": "annotate", "integrations": "",
}  # fmt: skip
WITHOUT = """
import contextlib, importlib.util, io, itertools, json
import conceptloader as cl
from conceptloader.cli import COMMANDS, main
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset

assert cl.__file__.startswith(tree)
assert importlib.util.find_spec(name) is None


def said(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main([*words])
        except SystemExit as end:
            code = end.code
    return code, out.getvalue()


def refused(call, *words):
    try:
        call()
    except ConfigError as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)


# Builds, and what looks at them.
with open("rows.jsonl", "w") as file:
    for n in range(40):
        row = {"id": f"d{n}", "text": "A cat sat. " * 3, "spans": [{"start": 2, "end": 5, "concepts": ["animal"]}]}
        file.write(json.dumps(row) + "\\n")
for line in ("init rows.jsonl --tokenizer bytes --out build.yaml", "build --recipe build.yaml",
             "verify data/rows --full", "inspect data/rows --stats", "inspect data/rows --document d3",
             "init data/rows --out run.yaml --seq-len 16", "doctor run.yaml --seconds 0.05"):
    code, text = said(*line.split())
    assert code == 0, (line, text)

# A run with a concept excluded, which is logged and resumed; a batch of tensors; what a notebook asks for.
config = {"seq_len": 16, "datasets": {"rows": {"path": "data/rows"}}, "tracks": {"concepts": {}},
          "exclude": [{"at": 8, "concept": {"track": "concepts", "name": "animal"}, "take": "own"}]}
loader = cl.batches(config, micro_batch_size=2)
loader.log_start("log", 0)
whole = [cl.adapters.batch_digest(batch) for batch in itertools.islice(loader, 8)]
loader.load_state_dict(loader.state_dict_at(8))
loader.log_start("log", 4)
assert [cl.adapters.batch_digest(batch) for batch in itertools.islice(loader, 4)] == whole[4:]
if name.endswith(("trace", "integrations")):  # the layers show the rest, and importing torch takes two seconds
    assert next(iter(cl.make_dataloader(config, micro_batch_size=2)))["input_ids"].shape == (2, 16)
shown = cl.open_dataset("data/rows")._repr_html_()
assert (shown is None) == name.endswith(("viewer", "trace"))
if shown is None:
    refused(cl.open_dataset("data/rows").show, name)

# Commands and keys.
listed = said("--help")[1]
for command, module in COMMANDS.items():
    mine = f"conceptloader.{module}.".startswith(f"{name}.")
    assert (f"\\n  {command} " in listed) != mine, command
    code, text = said(command, "--help")
    assert (code, command in gone) in ((0, False), (2, True)), text
    assert code == 0 or "conceptloader." in text and "this add-on" in text, text
for public, home in {**dict.fromkeys(cl._MODULES, None), **cl._PUBLIC}.items():
    if f"conceptloader.{home or public}.".startswith(f"{name}."):
        refused(lambda: getattr(cl, public), name)
for key in keys:
    section, _, word = key.rpartition(".")
    given = {"odm": {}} if key == "mixing" else True
    asked = {section: {word: given}} if section else {word: given}
    refused(lambda: cl.batches({**config, **asked}, micro_batch_size=2), f"{key}:", name)
if name.endswith(("viewer", "subset")):
    code, text = said("inspect", "data/rows", "--random", "2", "--html", "page.html")
    assert (code == 2 and name in text) == name.endswith("viewer"), text
if name.endswith("remote"):
    refused(lambda: cl.open_dataset("s3://bucket/data"), "s3", name)
if name.endswith("integrations"):
    from conceptloader.launch import install

    refused(lambda: install("megatron"), "conceptloader.integrations")
"""

EACH = """
import importlib, pkgutil, sys
from conceptloader import integrations
from conceptloader.errors import MissingPackageError

HOME = f"{integrations.__name__}."
modules = [module.name for module in pkgutil.walk_packages(integrations.__path__, HOME)]
gone = ""


class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if f"{name}.".startswith(gone):
            raise ModuleNotFoundError(f"{name} was deleted", name=name)


sys.meta_path.insert(0, Finder)
imported = dict[str, set[str]]()
for gone in ["nothing", *(f"{name}." for name in modules if name.count(".") == 2)]:
    for name in [name for name in sys.modules if name.startswith(HOME)]:
        vars(integrations).pop(name.removeprefix(HOME), None)
        del sys.modules[name]
    found = imported[gone] = set()
    for name in modules:
        try:
            found.add(importlib.import_module(name).__name__)
        except MissingPackageError as error:  # of a framework, which is not installed here
            assert "deleted" not in str(error), (gone, name, error)
        except ModuleNotFoundError:
            assert name.startswith(gone.removesuffix(".")), (gone, name)
    lost = {name for name in imported["nothing"] if f"{name}.".startswith(gone)}
    assert found == imported["nothing"] - lost, (gone, found ^ imported["nothing"])
assert len(imported) == 9 and len(imported["nothing"]) > 20, imported
"""


def without(folder: str, checkout: Path, tree: Path) -> None:
    """Links to all of the package but for one folder."""
    deep = checkout / "conceptloader" / folder
    (tree / deep.parent.relative_to(checkout)).mkdir(parents=True)
    for level in {checkout / "conceptloader", deep.parent}:
        for original in level.iterdir():
            link = tree / original.relative_to(checkout)
            if original not in (deep, deep.parent):
                link.symlink_to(original)


@pytest.mark.parametrize("folder", GONE)
def test_the_core_works_without(folder: str, tmp_path: Path, checkout: Path) -> None:
    without(folder, checkout, tmp_path)
    name = "conceptloader." + folder.replace("/", ".")
    keys = [key for key, module in ADD_ONS.items() if module.startswith(name)]

    def run() -> None:  # packages that others wrote stay imported, which is most of the time
        for module in [module for module in sys.modules if module.partition(".")[0] == "conceptloader"]:
            del sys.modules[module]
        sys.path.insert(0, str(tmp_path))
        os.chdir(tmp_path)
        exec(WITHOUT, {"name": name, "gone": GONE[folder].split(), "keys": keys, "tree": str(tmp_path)})

    assert child(run)


def test_each_adapter_can_go_alone() -> None:
    assert child(lambda: exec(EACH, {}))


def test_all_commands_of_add_ons_are_in_the_table() -> None:
    own = {module.rpartition(".")[0].removesuffix(".commands").replace(".", "/") for module in COMMANDS.values()}
    assert own <= {*GONE, "commands"}
