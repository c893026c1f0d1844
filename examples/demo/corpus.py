"""The corpus: Python's own standard library, every module a document, with spans from its syntax tree.

Spans nest (a `for` inside a method inside a class), so a token may carry several concepts: what
it is a part of, and which imported packages its statement uses.
"""

import ast
import json
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

DATASETS = ("modules", "packages", "encodings")
SIMPLE = "Assign AnnAssign AugAssign Assert Delete Expr Import ImportFrom Raise Return"
KINDS = """AsyncFunctionDef Assert ClassDef DictComp For FunctionDef GeneratorExp If Import ImportFrom Lambda ListComp
Raise Return Try While With"""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DOCSTRING = "docstring"
NUM_PACKAGES = 24
Spans = list[tuple[int, int, str]]


@dataclass(frozen=True)
class Module:
    """One document. Spans are (start, end, concept) in code points of `text`; names of packages may be any."""

    name: str
    dataset: str
    text: str
    spans: Spans


def find_spans(text: str) -> Spans:
    """What the syntax tree of `text` says about its characters. Raises SyntaxError, ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        tree = ast.parse(text)
    data = text.encode()
    lines = [0, *accumulate(len(line) + 1 for line in data.split(b"\n"))]

    def place(node: ast.AST) -> tuple[int, int]:
        """Nodes count lines from 1, and columns in bytes of UTF-8."""
        ends = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        start, stop = ends if text.isascii() else (len(data[:end].decode()) for end in ends)
        return start, stop

    spans, packages = [], {name: package for node in ast.walk(tree) for name, package in packages_of(node).items()}
    for node in ast.walk(tree):
        kind = type(node).__name__
        if kind in KINDS.split():
            spans.append((*place(node), kind))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            spans.append((*place(node.body[0]), DOCSTRING))
        if kind in SIMPLE.split():
            used = {packages[n.id] for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in packages}
            spans += [(*place(node), f"uses {name}") for name in sorted(used | set(packages_of(node).values()))]
    return spans


def packages_of(node: ast.AST) -> dict[str, str]:
    """Local name -> top-level package, of one import statement; empty for any other node."""
    if isinstance(node, ast.Import):
        return {(a.asname or a.name).split(".")[0]: a.name.split(".")[0] for a in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {a.asname or a.name: node.module.split(".")[0] for a in node.names}
    return {}


def read_modules(find: Callable[[str], Spans] = find_spans) -> tuple[list[Module], int]:
    """Every module of the standard library but its tests, by name; and how many files were no valid Python.

    find: gives the spans of a text.
    """
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    modules, invalid = [], 0
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if left_out & set(parts):
            continue
        try:
            with tokenize.open(path) as file:
                text = file.read()
            spans = find(text)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            invalid += 1
            continue
        dataset = "encodings" if parts[0] == "encodings" else "packages" if len(parts) > 1 else "modules"
        if text.strip():
            modules.append(Module(".".join(parts), dataset, text, spans))
    return modules, invalid


def write_corpus(modules: list[Module], folder: Path) -> list[str]:
    """One jsonl file for each dataset, and concepts.txt: kinds of nodes, docstrings, and the packages that most modules
    use. Equal spans become one with several concepts. Returns the concepts."""
    users = Counter(concept for module in modules for concept in {c for _, _, c in module.spans if " " in c})
    concepts = [*KINDS.split(), DOCSTRING, *sorted(sorted(users, key=lambda name: (-users[name], name))[:NUM_PACKAGES])]
    (folder / "concepts.txt").write_text("".join(f"{name}\n" for name in concepts), encoding="utf-8")
    rows = dict[str, list[str]]()
    for module in modules:
        spans: dict[tuple[int, int], list[str]] = {}
        for start, end, concept in module.spans:
            if concept in concepts:
                spans.setdefault((start, end), []).append(concept)
        listed = [{"start": s, "end": e, "concepts": names} for (s, e), names in sorted(spans.items())]
        row = json.dumps({"id": module.name, "text": module.text, "spans": listed}, ensure_ascii=False) + "\n"
        rows.setdefault(module.dataset, []).append(row)
    for dataset in DATASETS:
        (folder / f"{dataset}.jsonl").write_text("".join(rows[dataset]), encoding="utf-8")
    return concepts
