"""design/testing.md names what shows each promise: these tests are there, and no guarantee lacks a row."""

import re

from tests.house.imports import ROOT

SECTION = (ROOT / "design/testing.md").read_text("utf-8").split("## Promises")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| (.+) \| (`.+) \|$", SECTION, re.M)


def test_what_shows_a_promise_is_there():
    named = [file for _, shown in ROWS for file in re.findall("`(.+?)`", shown)]
    assert [file for file in named if not (ROOT / "tests" / file).is_file()] == []
    assert 40 < len(ROWS) <= 60
    numbers = re.findall(r"^(\d+)\. \*\*", (ROOT / "docs/reliability.md").read_text("utf-8"), re.M)
    assert {*numbers} == {promise.split(" ")[0] for promise, _ in ROWS if promise[0].isdigit()}
