"""The corpus: Python's own standard library, every module a document, with spans from its syntax tree.

Spans nest (a `for` inside a method inside a class), so a token may carry several concepts.
"""

import ast
import json
import sysconfig
import tokenize
import warnings
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

DATASETS = ("modules", "packages", "encodings")
DOCSTRING = "docstring"
CONCEPTS = """AsyncFunctionDef Assert ClassDef DictComp For FunctionDef GeneratorExp If Import ImportFrom Lambda
ListComp Raise Return Try While With docstring""".split()  # noqa: SIM905
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class Module:
    """One document. Spans are (start, end, concept) in code points of `text`."""

    name: str
    dataset: str
    text: str
    spans: list[tuple[int, int, str]]


def find_spans(text):
    """What the syntax tree of `text` says about its characters. Raises SyntaxError, ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        tree = ast.parse(text)
    data = text.encode()
    lines = [0, *accumulate(len(line) + 1 for line in data.split(b"\n"))]

    def place(line, column):
        """Nodes count lines from 1, and columns in bytes of UTF-8."""
        return len(data[: lines[line - 1] + column].decode())

    spans = []
    for node in ast.walk(tree):
        found = [(node, type(node).__name__)]
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found += [(node.body[0], DOCSTRING)] if ast.get_docstring(node, clean=False) is not None else []
        for at, concept in found:
            if concept in CONCEPTS:
                start, end = place(at.lineno, at.col_offset), place(at.end_lineno, at.end_col_offset)
                spans.append((start, end, concept))
    return spans


def read_modules(find=find_spans):
    """Every module of the standard library that is valid Python, but its tests, by name. find: the spans of a text."""
    library, modules = Path(sysconfig.get_path("stdlib")), []
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if LEFT_OUT & set(parts):
            continue
        try:
            with tokenize.open(path) as file:
                text = file.read()
            spans = find(text)
        except (SyntaxError, ValueError):
            continue
        dataset = "encodings" if parts[0] == "encodings" else "packages" if len(parts) > 1 else "modules"
        if text.strip():
            modules.append(Module(".".join(parts), dataset, text, spans))
    return modules


def write_documents(modules, path):
    """A jsonl file."""
    with open(path, "w", encoding="utf-8") as file:
        for module in modules:
            spans = [{"start": start, "end": end, "concepts": [name]} for start, end, name in module.spans]
            file.write(json.dumps({"id": module.name, "text": module.text, "spans": spans}) + "\n")
    return str(path)
