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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

NODE_KINDS = (
    ast.AsyncFunctionDef, ast.Assert, ast.ClassDef, ast.DictComp, ast.For, ast.FunctionDef, ast.GeneratorExp, ast.If,
    ast.Import, ast.ImportFrom, ast.Lambda, ast.ListComp, ast.Raise, ast.Return, ast.Try, ast.While, ast.With,
)  # fmt: skip
SIMPLE_STATEMENTS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Assert, ast.Delete, ast.Expr, ast.Import, ast.ImportFrom,
    ast.Raise, ast.Return,
)  # fmt: skip
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DOCSTRING = "docstring"
NUM_PACKAGES = 24


@dataclass(frozen=True)
class Module:
    """One document. Spans are (start, end, concept) in code points of `text`; names of packages may be any."""

    name: str
    dataset: str
    text: str
    spans: list[tuple[int, int, str]]


def read_modules(
    library: Path | None = None, find: Callable[[str], list[tuple[int, int, str]]] | None = None
) -> tuple[list[Module], int]:
    """Every module of the standard library but its tests, by name; and how many files were no valid Python.

    find: gives the spans of a text; by default `find_spans`.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    modules, invalid = [], 0
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if left_out & set(parts):
            continue
        try:
            with tokenize.open(path) as file:
                text = file.read()
            spans = (find or find_spans)(text)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            invalid += 1
            continue
        if text.strip():
            modules.append(Module(".".join(parts), kind_of(parts), text, spans))
    return modules, invalid


def kind_of(parts: tuple[str, ...]) -> str:
    """The dataset of a module: a table of an encoding, a part of a package, or a module by itself."""
    if parts[0] == "encodings":
        return "encodings"
    return "packages" if len(parts) > 1 else "modules"


def find_spans(text: str) -> list[tuple[int, int, str]]:
    """What the syntax tree of `text` says about its characters. Raises SyntaxError, ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old modules
        tree = ast.parse(text)
    place = Places(text)
    packages = imported_packages(tree)
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, NODE_KINDS):
            spans.append((*place.span(node), type(node).__name__))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            spans.append((*place.span(node.body[0]), DOCSTRING))
        if isinstance(node, SIMPLE_STATEMENTS):
            used = {packages[n.id] for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in packages}
            used |= set(packages_of(node).values())
            spans += [(*place.span(node), f"uses {package}") for package in sorted(used)]
    return spans


def packages_of(node: ast.AST) -> dict[str, str]:
    """Local name -> top-level package, of one import statement; empty for any other node."""
    if isinstance(node, ast.Import):
        return {(a.asname or a.name).split(".")[0]: a.name.split(".")[0] for a in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {a.asname or a.name: node.module.split(".")[0] for a in node.names}
    return {}


def imported_packages(tree: ast.AST) -> dict[str, str]:
    """Local name -> top-level package, of every import in the tree."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        found.update(packages_of(node))
    return found


class Places:
    """Character offsets of syntax tree nodes, which count lines from 1 and columns in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode("utf-8")[:column].decode("utf-8"))
        return self.starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def choose_concepts(modules: list[Module]) -> list[str]:
    """The vocabulary: kinds of nodes, docstrings, and the packages that most modules use."""
    users = Counter(concept for module in modules for concept in {c for _, _, c in module.spans if " " in c})
    return [
        *(kind.__name__ for kind in NODE_KINDS),
        DOCSTRING,
        *sorted(name for name, _ in sorted(users.items(), key=lambda item: (-item[1], item[0]))[:NUM_PACKAGES]),
    ]


def lines(modules: list[Module], dataset: str, concepts: set[str]) -> Iterator[str]:
    """The documents of one dataset as the lines of its jsonl file; equal spans become one with several concepts."""
    for module in modules:
        if module.dataset != dataset:
            continue
        spans: dict[tuple[int, int], list[str]] = {}
        for start, end, concept in module.spans:
            if concept in concepts:
                spans.setdefault((start, end), []).append(concept)
        listed = [{"start": s, "end": e, "concepts": names} for (s, e), names in sorted(spans.items())]
        yield json.dumps({"id": module.name, "text": module.text, "spans": listed}, ensure_ascii=False) + "\n"
