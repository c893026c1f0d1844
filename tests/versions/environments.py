"""The environments that the adapters are tested in: one each, since their pins contradict each other."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml

READERS = ("tokenizers>=0.19", "pyarrow>=14", "zstandard>=0.22", "jinja2>=3.1", "duckdb>=1.2")
TESTS = ("pytest", "pytest-timeout", "hypothesis", "torchdata")

NO_BUILD = ("-k", "not kernels_stay_in_their_arrays")  # which compiles
ORDER = ("tests/order/test_golden.py", "tests/order/test_permutation.py", "tests/order/test_mixture.py")
LOADER = (
    *ORDER,
    "tests/loader/test_loader.py",
    "tests/loader/test_state.py",
    "tests/trainers/test_values.py",
    *NO_BUILD,
)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An interpreter, packages and tests.

    group, component, version: as the page names them; version "": what was found installed as `package`. tests:
    arguments of pytest. checkout: the folder that `variable` gives the tests, below $CONCEPTLOADER_CHECKOUTS;
    importable: the folder in it that goes on PYTHONPATH, "" for none. arm: for tests/arm alone. soak: in the long form
    of `make soak`. note: for the page.
    """

    name: str
    group: str
    component: str
    version: str = ""
    package: str = ""
    python: str = "3.11"
    packages: tuple[str, ...] = ("torch==2.13.0",)
    tests: tuple[str, ...] = LOADER
    arm: bool = False
    soak: bool = False
    checkout: str = ""
    variable: str = ""
    importable: str = "."
    note: str = ""


def environments():
    """All of them, in the order of the page. What is a list is written as on a command line."""
    found = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    split = [{key: one[key] for key in ("packages", "tests") if key in one} for one in found]
    words = [{key: tuple(shlex.split(text)) for key, text in one.items()} for one in split]
    return [Environment(**{**one, **lists}) for one, lists in zip(found, words, strict=True)]
