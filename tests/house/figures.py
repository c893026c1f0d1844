"""Figures of the structure, measured on the tree as it is: `make figures`. Their marks stand in docs/architecture.md.

--write puts the measured values there as the new marks; -v lists what was counted.

What runs for a batch is traced in a real loader. Compiled code, which a tracer cannot see, is counted by following the
functions that it refers to, from those kernels on that the traced functions call.
"""

import argparse
import ast
import contextlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("conceptloader", "integrations")
ADAPTERS = ("megatron_lm", "nanotron_lm")
# Files that every package has, or that are not code.
NOT_COUNTED = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
NO_DATA = {".py", ".md", ".pyc"}

PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| ([^|]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)


@cache
def product_files() -> list[Path]:
    """The Python files of the product, as they lie there."""
    return sorted(path for top in PRODUCT for path in (ROOT / top).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def trees(folder: str = "") -> Iterator[tuple[Path, ast.Module]]:
    for path in product_files():
        if str(path.relative_to(ROOT)).startswith(folder):
            yield path, tree_of(path)


# ---- folders and lines


def entries(folder: Path) -> list[str]:
    """Modules and packages of a folder."""
    found = [p for p in folder.iterdir() if p.name not in NOT_COUNTED]
    return sorted(p.name for p in found if p.suffix == ".py" or any(p.glob("*.py")))


def folders() -> dict[str, int]:
    """Package -> entries; cli, which has a file for each command, is left out."""
    packages = {path.parent.relative_to(ROOT) for path in product_files()} - {Path("conceptloader/cli")}
    return {str(package): len(entries(ROOT / package)) for package in packages}


def lines() -> dict[str, int]:
    return {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in product_files()}


def data_files() -> list[str]:
    """What lies under tests and is neither Python nor a page."""
    found = [path for path in (ROOT / "tests").rglob("*") if path.is_file() and path.suffix not in NO_DATA]
    return sorted(str(path.relative_to(ROOT)) for path in found)


# ---- imports


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("conceptloader", *parts) if parts[0] == "integrations" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports() -> dict[str, set[str]]:
    """Module -> modules of the product that it imports, those hidden in functions or under TYPE_CHECKING included, and
    those that are given to import_module as a string."""
    names = {module_name(path) for path in product_files()}
    graph: dict[str, set[str]] = {}
    for path, tree in trees():
        name = module_name(path)
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        used = graph.setdefault(name, set())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                source = ".".join([*base, node.module] if node.module else base)
                found = {f"{source}.{alias.name}" for alias in node.names}
                used |= {f if f in names else source for f in found}
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Call) and name_of(node) == "import_module":
                used |= {name for part in node.args for name in names if re.fullmatch(possible(part), name)}
        used &= names - {name}
    return graph


def possible(name: ast.expr) -> str:
    """A pattern of the modules that a string may name; where it is made up, any word may stand for a value."""
    parts = name.values if isinstance(name, ast.JoinedStr) else [name]
    texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
    known = isinstance(texts[0], str)  # else it begins with a value, as names of other packages do
    return "".join(r"\w*" if text is None else re.escape(str(text)) for text in texts) if known else ""


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in graph[node]:
            if after not in index:
                visit(after)
            if after in stack:
                low[node] = min(low[node], low[after])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


# ---- kernels, as they are written


def kernel_parameters(decorators: Iterable[str]) -> dict[str, int]:
    """Function of kernels/ with one of these decorators -> number of its parameters."""
    found = {}
    for path, tree in trees("conceptloader/kernels"):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and {name_of(d) for d in node.decorator_list} & set(decorators):
                a = node.args
                found[f"{path.relative_to(ROOT)}:{node.name}"] = len([*a.posonlyargs, *a.args, *a.kwonlyargs])
    return found


def name_of(node: ast.expr) -> str:
    """The last part of what a decorator, a call or an index is spelt."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def numbered_columns() -> list[str]:
    """Constants that are numbered one after the other, where one of them is an index of an array."""
    declared, indices = list[list[str]](), set[str]()
    for _, tree in (*trees("conceptloader/batch"), *trees("conceptloader/kernels")):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                if isinstance(node.value, ast.Call) and name_of(node.value) in ("numbered", "range"):
                    declared.append([name_of(target) for target in node.targets[0].elts])
            elif isinstance(node, ast.Subscript):
                index = node.slice
                indices |= {name_of(part) for part in (index.elts if isinstance(index, ast.Tuple) else [index])}
    return [name for names in declared if indices & set(names) for name in names]


def static_figures() -> dict[str, int]:
    """Those that reading the files gives."""
    sizes, per_folder = lines(), folders()
    modules = {name: [f for f in sizes if re.match(f"integrations/{name}/(?!__)", f)] for name in ADAPTERS}
    return {
        "widest kernel function: parameters": max(kernel_parameters(["kernel", "inner"]).values()),
        "widest helper that is inlined: parameters": max(kernel_parameters(["inlined"]).values(), default=0),
        "constants that number columns": len(numbered_columns()),
        "largest folder: entries": max(count for name, count in per_folder.items() if name != "conceptloader"),
        "top folder: entries": per_folder["conceptloader"],
        **{f"modules of {name}": len(files) for name, files in modules.items()},
        "longest module of those two: lines": max(sizes[f] for files in modules.values() for f in files),
        "circles of imports": len(circles(imports())),
        "data files of tests": len(data_files()),
    }


# ---- what runs for a batch

Functions = dict[tuple[str, str], Any]  # (file, name) -> code, or what is compiled
PREFIXES = tuple(f"{ROOT / top}/" for top in PRODUCT)


class Tracer:
    """The product's functions that are entered, in all threads, while it is on."""

    def __init__(self) -> None:
        self.found: Functions = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PREFIXES) and not code.co_name.startswith("<"):
            self.found[code.co_filename, f"{code.co_name}:{code.co_firstlineno}"] = code

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Machine code tells of nothing: a kernel is noted when it is bound to its arguments."""
        from conceptloader.kernels.kernel import Kernel

        bind = Kernel.bind

        def told(kernel: Any, *arguments: Any) -> Any:
            code = kernel.py_func.__code__
            self.found[code.co_filename, f"{code.co_name}:{code.co_firstlineno}"] = code
            return bind(kernel, *arguments)

        Kernel.bind = told  # type: ignore[method-assign]
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            Kernel.bind = bind  # type: ignore[method-assign]

    def take(self) -> Functions:
        found, self.found = self.found, {}
        return found


def compiled_below(traced: Functions) -> Functions:
    """The traced functions that are compiled, and those that they reach."""
    from conceptloader.kernels.kernel import Kernel

    entered = set(traced.values())
    modules = [module for name, module in sys.modules.copy().items() if name.split(".")[0] == "conceptloader"]
    waiting = [
        value for module in modules for value in vars(module).values()
        if isinstance(value, Kernel) and value.py_func.__code__ in entered
    ]  # fmt: skip
    found: Functions = {}
    while waiting:
        function = waiting.pop()
        function = getattr(function, "py_func", function)
        code = function.__code__
        key = (code.co_filename, f"{code.co_name}:{code.co_firstlineno}")
        if key not in found:
            found[key] = code
            values = [function.__globals__.get(name) for name in code.co_names]
            waiting += [value for value in values if isinstance(value, Kernel) or hasattr(value, "inline")]
    return found


def traced_batches() -> dict[str, Functions]:
    """What runs from an open loader to its first batch, and for batches later on, with concepts and default outputs."""
    from conceptloader import make_dataloader
    from conceptloader.batch import reader
    from conceptloader.testing import random_documents, write_dataset

    reader.LATE_NS = 1 << 60  # whatever else the machine does, its storage is not slow
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(f"{folder}/data", random_documents(200, seed=1))
        config = {"seq_len": 64, "datasets": {"data": {"path": f"{folder}/data"}}, "concepts": {"concepts": {}}}
        with make_dataloader(config, micro_batch_size=4) as loader:
            next(iter(loader))
        loader = make_dataloader(config, micro_batch_size=4)
        with tracer.on():
            batches = iter(loader)
            next(batches)
            time.sleep(0.3)  # what is read ahead belongs to the first batch
            first = tracer.take()
            read(batches, 64)  # every thread has read one
            tracer.take()
            read(batches, 24)  # more than are read ahead, so that one has to be waited for
            time.sleep(0.3)
            warm = tracer.take()
        loader.close()
    kernels = compiled_below(first | warm)
    return {
        "first batch": {key: code for key, code in first.items() if key not in kernels},
        "warm batch": {key: code for key, code in warm.items() if key not in kernels},
        "kernels": kernels,
    }


def read(batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        next(batches)


def traced_figures(traced: dict[str, Functions]) -> dict[str, int]:
    first, warm, kernels = traced.values()
    return {
        "warm batch: Python functions": len(warm),
        "warm batch: kernel functions": len(kernels),
        "warm batch: files": len({file for file, _ in [*warm, *kernels]}),
        "first batch: functions": len(first),
        "first batch: files": len({file for file, _ in first}),
    }


# ---- their marks


def marks() -> dict[str, tuple[int, int]]:
    """Figure -> (wanted, mark), of the table in docs/architecture.md."""
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: (number(wanted), number(mark)) for name, _, wanted, mark in found}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def write_marks(found: dict[str, int]) -> None:
    """The table with the measured values for marks; where they are better than wanted, with the wanted ones."""

    def row(match: re.Match[str]) -> str:
        name, before, wanted, _ = match.groups()
        return f"| {name} | {before} | {wanted} | {max(found[name], number(wanted)):,} |"

    PAGE.write_text(ROW.sub(row, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def too_large(found: dict[str, int]) -> list[str]:
    """A line for each figure that has passed its mark."""
    return [f"{name}: {found[name]:,}, at most {mark:,}" for name, (_, mark) in marks().items() if found[name] > mark]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", "--verbose", action="store_true", help="list what was counted")
    parser.add_argument("--write", action="store_true", help="take the measured values for the marks")
    options = parser.parse_args()
    traced = traced_batches()
    found = {**traced_figures(traced), **static_figures()}
    if options.write:
        write_marks(found)
    for name, (wanted, mark) in marks().items():
        note = f"too large, at most {mark:,}" if found[name] > mark else ""
        print(f"{name:42} {found[name]:>7,}  {note or ('' if found[name] <= wanted else f'wanted {wanted:,}')}")
    if options.verbose:
        listed = {title: sorted(f"{f}:{name}" for f, name in functions) for title, functions in traced.items()}
        listed["circles"] = [", ".join(names) for names in circles(imports())]
        listed["folders"] = [f"{count:3} {name}" for name, count in sorted(folders().items(), key=lambda f: -f[1])[:12]]
        widest = sorted(kernel_parameters(["kernel", "inner", "inlined"]).items(), key=lambda f: -f[1])[:12]
        listed["parameters"] = [f"{count:3} {name}" for name, count in widest]
        for title, names in listed.items():
            print(title, *(name.replace(f"{ROOT}/", "") for name in names), sep="\n  ")
    return int(bool(too_large(found)))


if __name__ == "__main__":
    sys.exit(main())
