"""docs/versions.md says what the results say, and what was not run is never said to have passed."""

import json

from conceptloader.base.tested import TESTED
from tests.versions.environments import environments
from tests.versions.page import PAGE, page, result_of

NAMES = [environment.name for environment in environments()]


def test_the_page_is_what_the_results_say():
    assert PAGE.read_text() == page(), "run `python -m tests.versions.page --write`"


def test_every_result_is_of_an_environment_and_none_has_failed():
    assert len(NAMES) == len(set(NAMES))
    for path in (PAGE.parents[1] / "tests/versions/results").glob("*.json"):
        assert path.stem in NAMES
        assert json.loads(path.read_text())["failed"] == 0, path


def test_versions_that_are_known_have_a_result():
    """The newest of each package in base/tested.py: of the package itself, or a checkout of its main branch."""
    found = {}
    for environment in environments():
        result = result_of(environment)
        if result is not None and environment.package and result["passed"]:
            found.setdefault(environment.package, set()).add(".".join(result["version"].split(".")[:2]))
    for package, (_, newest) in TESTED.items():
        if package in found and package != "megatron-core":  # its newest is the main branch's own number
            assert newest in found[package], f"{package} {newest}: tested were {found[package]}"
