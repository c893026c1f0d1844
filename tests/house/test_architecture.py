"""design/architecture.md: functions that it lists exist, its layers are those of setup.cfg; no imports in a circle."""

import ast
import configparser
import re
from graphlib import TopologicalSorter

import pytest
import yaml

from tests.house.imports import ROOT, imports

TEXT = (ROOT / "design" / "architecture.md").read_text("utf-8")


@pytest.mark.parametrize("title", ["Read path", "Build path"])
def test_functions_that_the_page_lists(title):
    lines = TEXT.split(f"## {title}\n")[1].split("```\n")[1].splitlines()
    assert len(lines) > 12
    for line in lines:
        file, names = line.split()[0].split(":")
        body = ast.parse((ROOT / file).read_text("utf-8")).body
        for name in names.split("."):
            [body] = [n.body for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name]


def layers():
    """The lines of setup.cfg, the upper ones first."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return [line for line in parser["importlinter:contract:layers"]["layers"].split("\n") if line.strip()]


def test_the_layers_are_those_that_are_enforced():
    table = TEXT.split("## Layers\n")[1].split("\n\n| folder")[0]
    shown = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines() if row.startswith("| `")]
    assert shown == [set(re.findall(r"\w+", layer)) for layer in layers()]


def test_imports_by_a_string_look_down_too():
    """The linter does not see them. Nor does it see `conceptloader` itself, which is above all layers."""
    number = {name: -k for k, line in enumerate(layers()) for name in re.findall(r"\w+", line)}
    apart = {name for line in layers() if "|" in line for name in re.findall(r"\w+", line)}
    wrong = [
        (module, used)
        for module, found in imports().items()
        for used in found
        if (a := f"{module}.".split(".")[1]) != (b := f"{used}.".split(".")[1])
        if a and (not b or number[b] > number[a] or (number[b] == number[a] and a in apart))
    ]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others():
    TopologicalSorter(imports()).prepare()


def test_folders_that_the_page_names():
    rows = TEXT.split("| folder |")[1].split("\n\n")[0].splitlines()[2:]
    for folder in re.findall(r"`([\w/]+/)`", "".join(row.split("|")[1] for row in rows)):
        assert (ROOT / folder).is_dir() or (ROOT / "conceptloader" / folder).is_dir(), folder


def test_every_make_target_of_the_readme_runs_in_ci(checkout):
    said = re.findall(r"^\| `make (\w+)`", (checkout / "README.md").read_text(), re.MULTILINE)
    jobs = yaml.safe_load((checkout / ".github/workflows/ci.yml").read_text())["jobs"].values()
    run = [target for job in jobs for target in job["strategy"]["matrix"].get("target", [])]
    assert {"demo", "test"} == {*said} <= {*run}
