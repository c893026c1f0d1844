"""Patches of another package: both checks, all or none, once."""

import sys

import pytest

from conceptloader.base.patching import Patch, Upstream
from conceptloader.errors import ConfigError
from tests.raises import raises

SOURCE = """
def load(path, step):
    return (path, step)


class Trainer:
    def start(self, path):
        return load(
            path, step=1)

    @classmethod
    def named(cls, name):
        return cls, name


def both(trainer):
    return trainer.start("a"), Trainer.named("b")
"""
LIBRARY = Upstream(name="the library", seen="release 1", otherwise="use that one")
MODULE = "patched_library"


@pytest.fixture
def library(tmp_path, monkeypatch):
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(MODULE)
    yield module
    del sys.modules[MODULE]


def doubled(original, *args, **kwargs):
    found = original(*args, **kwargs)
    return (found, found)


LOAD = Patch(
    target=f"{MODULE}:load",
    by=doubled,
    parameters="path step",
    caller="Trainer.start",
    line="return load( path, step=1)",
)
START = Patch(target=f"{MODULE}:Trainer.start", by=doubled, caller="both", line='trainer.start("a")')
NAMED = Patch(target=f"{MODULE}:Trainer.named", by=doubled, line="")


def test_functions_methods_and_class_methods_are_replaced_once(library):
    LIBRARY.apply([LOAD, START, NAMED])
    LIBRARY.apply([LOAD, START])
    (first, again), named = library.both(library.Trainer())
    assert first == again == (("a", 1), ("a", 1))
    assert named == ((library.Trainer, "b"), (library.Trainer, "b"))
    assert library.load.__name__ == "load"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"target": f"{MODULE}:lode"}, "lode"),
        ({"target": "no_library_of_this_name:load"}, "No module named"),
        ({"target": f"{MODULE}:Trainer.stop"}, "stop"),
        ({"parameters": "path epoch"}, "it takes path, step, expected epoch too"),
        ({"line": "return load(path, step=2)"}, r"`return load\(path, step=2\)` was not found in Trainer.start"),
        ({"caller": "Trainer.end"}, "was not found in Trainer.end"),
    ],
)
def test_an_unknown_release_is_refused_and_nothing_is_patched(library, change, reason):
    other = Patch(**{**vars(LOAD), **change})
    with pytest.raises(ConfigError, match=f"cannot hook into the library at .*{reason}.*release 1.*; use that one"):
        LIBRARY.apply([START, other])
    assert library.both(library.Trainer())[0] == ("a", 1)


def test_what_a_library_needs_itself_is_no_other_release(tmp_path, monkeypatch):
    (tmp_path / "needing_library.py").write_text("import no_library_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_library_of_this_name"):
        LIBRARY.apply([Patch(target="needing_library:load", by=doubled, line="")])


def test_names_that_a_release_does_not_have(library):
    """An adapter's own line that looks for one names the releases; errors of the package itself pass through."""
    adapter = {"__name__": "conceptloader.integrations.some_lm.data", "library": library}
    exec("def asks():\n    return library.absent", adapter)
    exec(f"def imports():\n    from {MODULE} import absent", adapter)
    exec("def calls():\n    return library.load.absent", {**adapter, "__name__": MODULE}, adapter)
    for name, reason in (("asks", "has no attribute 'absent'"), ("imports", "cannot import name 'absent'")):
        with pytest.raises(ConfigError, match=rf"^the library: .*{reason}.*knows release 1\); use that one$"):
            LIBRARY.known()(adapter[name])()
    with pytest.raises(AttributeError):
        LIBRARY.known()(adapter["calls"])()
    LIBRARY.apply([Patch(target=f"{MODULE}:load", by=lambda stock, *_: adapter["asks"](), line="")])
    with raises(ConfigError, found="knows release 1"):
        library.load("a", 1)
