"""design/architecture.md: its listings are what runs, its layers setup.cfg's; and no imports in a circle."""

import ast
import configparser
import contextlib
import io
import re
from pathlib import Path

import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.records import write_rows
from tests.house.imports import ROOT, circles, imports
from tests.house.tracing import Tracer, compiled_below

TEXT = (ROOT / "design" / "architecture.md").read_text("utf-8")
LINE = re.compile(r"^([\w/]+\.py):([\w.]+) +\S")
Steps = list[tuple[str, str]]


def listing(title: str) -> Steps:
    """(file, function) of each line of the block below a title."""
    block = TEXT.split(f"## {title}\n")[1].split("```\n")[1]
    found = [LINE.match(line) for line in block.splitlines()]
    return [(match[1], match[2]) for match in found if match] if all(found) else []


def first_line(file: str, function: str) -> int:
    """Where a function begins, decorators included; -1 if the file has none of this name."""
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text("utf-8")).body
    node: ast.stmt | None = None
    for name in function.split("."):
        named = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name]
        if not named:
            return -1
        node = named[0]
        body = named[0].body
    assert isinstance(node, ast.FunctionDef)
    return min(part.lineno for part in (node, *node.decorator_list))


def not_on_the_way(steps: Steps, tracer: Tracer) -> Steps:
    entered = {(code.co_filename, code.co_firstlineno) for code in tracer.found.values()}
    entered |= {(code.co_filename, code.co_firstlineno) for code in compiled_below(tracer.found).values()}
    return [step for step in steps if (str(ROOT / step[0]), first_line(*step)) not in entered]


def test_the_way_of_a_sample(tmp_path: Path) -> None:
    steps = listing("Read path")
    assert len(steps) > 15
    write_dataset(tmp_path / "data", random_documents(50, seed=1))
    (tmp_path / "run.yaml").write_text("{seq_len: 16, datasets: {data: {path: data}}, tracks: {concepts: {}}}")
    tracer = Tracer()
    with tracer.on(), cl.make_dataloader(tmp_path / "run.yaml", micro_batch_size=4) as loader:
        next(iter(loader))
    assert not_on_the_way(steps, tracer) == []


def test_the_way_of_a_document(tmp_path: Path) -> None:
    steps = listing("Build path")
    assert len(steps) > 12
    rows = [{"text": "A cat", "spans": [{"start": 0, "end": 5, "concepts": ["animal"]}]}] * 3
    write_rows(tmp_path / "a.jsonl", rows)
    (tmp_path / "names.txt").write_text("animal\n")
    words = ["build", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "ds"), "--tokenizer", "bytes"]
    words += ["--workers", "1", "--vocabulary", str(tmp_path / "names.txt"), "--overlap", "union"]
    tracer = Tracer()
    with tracer.on(), contextlib.redirect_stdout(io.StringIO()):
        assert main(words) == 0
    assert not_on_the_way(steps, tracer) == []


def test_a_step_that_is_gone_is_noticed() -> None:
    assert first_line("conceptloader/batch/loader.py", "BaseLoader.__init__") > 1
    assert first_line("conceptloader/batch/loader.py", "BaseLoader.gone") == -1
    assert not_on_the_way([("conceptloader/batch/loader.py", "BaseLoader.__init__")], Tracer()) != []


def layers() -> list[str]:
    """The lines of setup.cfg, the upper ones first."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return [line for line in parser["importlinter:contract:layers"]["layers"].split("\n") if line.strip()]


def test_the_layers_are_those_that_are_enforced() -> None:
    table = TEXT.split("## Layers\n")[1].split("\n\n| folder")[0]
    shown = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines() if row.startswith("| `")]
    assert shown == [set(re.findall(r"\w+", layer)) for layer in layers()]


def test_imports_by_a_string_look_down_too() -> None:
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


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(imports()) == []


def test_circles_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of relative imports, of imports within functions, and of modules that a string names."""
    files = {
        "conceptloader/__init__.py": "",
        "conceptloader/a.py": "def f():\n    from conceptloader.c import b\n",
        "conceptloader/c/__init__.py": "",
        "conceptloader/c/b.py": "from .. import a\nimport conceptloader.c\n",
        "conceptloader/d.py": "def f():\n    import_module('conceptloader.e').f(import_module(f.__name__))\n",
        "conceptloader/e.py": "from conceptloader.d import f\n",
        "conceptloader/g.py": "import_module(f'conceptloader.{word}h', __name__)\n",
        "conceptloader/h.py": "import conceptloader.g\nimport_module(f'{package}.g')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("tests.house.imports.ROOT", tmp_path)
    monkeypatch.setattr("tests.house.imports.product_files", lambda: sorted(tmp_path.rglob("*.py")))
    pairs = [["a", "c.b"], ["d", "e"], ["g", "h"]]
    assert circles(imports.__wrapped__()) == [[f"conceptloader.{name}" for name in pair] for pair in pairs]


def test_folders_that_the_page_names() -> None:
    rows = TEXT.split("| folder |")[1].split("\n\n")[0].splitlines()[2:]
    for folder in re.findall(r"`([\w/]+/)`", "".join(row.split("|")[1] for row in rows)):
        assert (ROOT / folder).is_dir() or (ROOT / "conceptloader" / folder).is_dir(), folder


def test_every_make_target_of_the_readme_runs_in_ci(checkout: Path) -> None:
    said = re.findall(r"^\| `make (\w+)`", (checkout / "README.md").read_text(), re.MULTILINE)
    jobs = yaml.safe_load((checkout / ".github/workflows/ci.yml").read_text())["jobs"].values()
    run = [target for job in jobs for target in job["strategy"]["matrix"].get("target", [])]
    assert {"demo", "test"} == {*said} <= {*run}
