"""What the demo takes from a syntax tree, and its proof."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from conceptloader.order.progress.runlog import RunStart
from conceptloader.trace import Launch, Line

SOURCE = '''"""Über Zäune."""
import os.path
from re import compile as make

def spränge(höhe):
    "Ein Satz."
    for größe in höhe:
        if größe > 1: return make("ä", os.sep)
'''


@pytest.fixture
def demo(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(checkout / "examples/demo"))
    return checkout / "examples/demo"


@pytest.fixture
def corpus(demo: Path) -> ModuleType:
    return importlib.import_module("corpus")


def test_spans_are_of_characters_not_bytes(corpus: ModuleType) -> None:
    found = {(SOURCE[start:end], concept) for start, end, concept in corpus.find_spans(SOURCE)}
    function = SOURCE[SOURCE.index("def") :].rstrip()
    loop, branch = function[function.index("for") :], 'if größe > 1: return make("ä", os.sep)'
    assert found == {
        ('"""Über Zäune."""', "docstring"),
        ("import os.path", "Import"),
        ("import os.path", "uses os"),
        ("from re import compile as make", "ImportFrom"),
        ("from re import compile as make", "uses re"),
        (function, "FunctionDef"),
        ('"Ein Satz."', "docstring"),
        (loop, "For"),
        (branch, "If"),
        ('return make("ä", os.sep)', "Return"),
        ('return make("ä", os.sep)', "uses os"),
        ('return make("ä", os.sep)', "uses re"),
    }


def test_equal_spans_become_one_with_several_concepts(corpus: ModuleType) -> None:
    module = corpus.Module("zäune", "modules", SOURCE, corpus.find_spans(SOURCE))
    (line,) = corpus.lines([module], "modules", {"Import", "uses os", "Return"})
    document = json.loads(line)
    assert document["id"] == "zäune"
    assert [(SOURCE[s["start"] : s["end"]], s["concepts"]) for s in document["spans"]] == [
        ("import os.path", ["Import", "uses os"]),
        ('return make("ä", os.sep)', ["Return", "uses os"]),
    ]
    assert list(corpus.lines([module], "packages", {"Import"})) == []


def test_modules_are_found_and_sorted_into_datasets(corpus: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "alone.py": "x = 1\n",
        "json/tool.py": "import sys\n",
        "encodings/cp1.py": "# table\n",
        "test/skipped.py": "x = 1\n",
        "empty.py": "\n",
        "broken.py": "def (:\n",
        "latin.py": "x = '\xe4'\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="latin-1")
    modules, invalid = corpus.read_modules(tmp_path)
    assert [(m.name, m.dataset) for m in modules] == [
        ("alone", "modules"),
        ("encodings.cp1", "encodings"),
        ("json.tool", "packages"),
    ]
    assert invalid == 2


STEPS, BATCH = 4, 2


def launches(proof: ModuleType) -> list[Launch]:
    """Steps 0 to 2, then steps 2 and 3 again."""
    sizes: dict[str, Any] = {"batch": [[0, BATCH]], "micro_batch_size": 2, "dp_size": 1, "scheme": "strided"}
    start = RunStart(step=0, consumed=0, seq_len=8, spec="", **sizes)
    made = []
    for number, steps, stop in ((1, (0, 1, 2), 2), (2, (2, 3), None)):
        lines = [
            Line(
                step=step,
                micro_batch=0,
                dp_rank=0,
                samples=[2 * step, 2 * step + 1],
                datasets=[0, 0],
                checksums=[f"{2 * step}", f"{2 * step + 1}"],
                more={"windows": [2 * step, 2 * step + 1], "loss": float(step)},
            )
            for step in steps
        ]
        made.append(Launch(number=number, start=start, lines=lines, stop_step=stop))
    return made


def reference(proof: ModuleType) -> object:
    samples = range(STEPS * BATCH)
    tokens = np.array([[4, 0]] * len(samples))
    return proof.Reference(["a"] * len(samples), list(samples), [str(k) for k in samples], tokens, 8)


@pytest.mark.parametrize("change", ["nothing", "tokens", "window", "a step twice", "a sample missing", "another step"])
def test_the_proof_fails_when_it_should(demo: Path, change: str) -> None:
    proof = importlib.import_module("proof")
    made = launches(proof)
    line = made[1].lines[1]
    changed = {
        "nothing": [line],
        "tokens": [Line(**{**vars(line), "checksums": ["6", "x"]})],
        "window": [Line(**{**vars(line), "more": {"windows": [6, 6]}})],
        "a step twice": [line, line],
        "a sample missing": [],
        "another step": [Line(**{**vars(line), "step": 4})],
    }[change]
    made[1] = Launch(**{**vars(made[1]), "lines": [made[1].lines[0], *changed]})
    if change == "nothing":
        assert proof.check_record(made, reference(proof), ["a"], STEPS, BATCH) == 2
        assert proof.mean_loss(made, "loss", 1, 3) == 1.5
    else:
        with pytest.raises(SystemExit, match="the proof fails"):
            proof.check_record(made, reference(proof), ["a"], STEPS, BATCH)


def test_base_rates(demo: Path) -> None:
    proof = importlib.import_module("proof")
    assert proof.base_rate_loss(reference(proof), 0, 8) == pytest.approx(np.log(2))


def test_the_demo_imports_nothing_from_its_folder_by_chance(demo: Path) -> None:
    """Its modules are called as plainly as examples may be; none hides one of the standard library."""
    assert not {path.stem for path in demo.glob("*.py")} & set(sys.stdlib_module_names)


def test_the_demo_removes_only_what_a_demo_wrote(demo: Path, tmp_path: Path) -> None:
    run = importlib.import_module("run")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="files that no demo wrote"):
        run.empty(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    for _ in range(2):
        run.empty(tmp_path / "out")
        (tmp_path / "out" / "demo.png").touch()
        assert (tmp_path / "out" / "demo.png").exists()
    run.empty(tmp_path / "out")
    assert not (tmp_path / "out" / "demo.png").exists()
