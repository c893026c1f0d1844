"""Figures of the structure, measured on the tree as it is: `make figures`. Each has a mark that it must not pass.

What runs for a batch is traced in a real loader; kernels, which a tracer cannot see, are counted by following the
functions that compiled code refers to.
"""

import ast
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("conceptloader", "integrations")
# Files that every package has, or that are not code.
NOT_COUNTED = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}

MARKS = {
    "warm batch: Python functions": 18,
    "warm batch: kernel functions": 25,
    "warm batch: files": 12,
    "first batch: functions": 50,
    "first batch: files": 14,
    "widest kernel function: parameters": 6,
    "constants that number columns": 0,
    "largest folder: entries": 12,
    "top folder: entries": 14,
    "modules of megatron_lm": 8,
    "modules of nanotron_lm": 8,
    "longest module of those two: lines": 300,
    "circles of imports": 0,
    "tracked fixtures of tests": 12,
    "lines of the product": 21_500,
}


def product_files() -> list[Path]:
    """The Python files of the product, as git knows them and as they lie there."""
    return sorted(path for top in PRODUCT for path in (ROOT / top).rglob("*.py"))


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in product_files():
        yield path, ast.parse(path.read_text(encoding="utf-8"))


# ---- folders and lines


def entries(folder: Path) -> list[str]:
    """Modules and packages of a folder."""
    found = [p for p in folder.iterdir() if p.name not in NOT_COUNTED]
    return sorted(p.name for p in found if p.suffix == ".py" or any(p.glob("*.py")))


def folders() -> dict[str, int]:
    """Package -> entries; cli, which has a file for each command, is left out."""
    packages = {path.parent for path in product_files()}
    return {
        str(p.relative_to(ROOT)): len(entries(p)) for p in packages if p.relative_to(ROOT) != Path("conceptloader/cli")
    }


def lines() -> dict[str, int]:
    return {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in product_files()}


# ---- imports


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("conceptloader", *parts) if parts[0] == "integrations" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports() -> dict[str, set[str]]:
    """Module -> modules of the product that it imports, those hidden in functions or under TYPE_CHECKING included."""
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
        used &= names - {name}
    return graph


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


# ---- kernels


def kernel_parameters() -> dict[str, int]:
    """Compiled function of batch/ -> number of its parameters."""
    found = {}
    for path, tree in trees():
        if "batch" not in path.parts:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(d, ast.Name) and d.id in ("kernel", "inner") for d in node.decorator_list
            ):
                found[f"{path.relative_to(ROOT)}:{node.name}"] = len(node.args.args)
    return found


def numbered_columns() -> int:
    """Names that stand for the position of a column in an integer array."""
    count = 0
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                called = node.value.func
                if isinstance(called, ast.Name) and called.id == "numbered" and isinstance(node.targets[0], ast.Tuple):
                    count += len(node.targets[0].elts)
    return count


def compiled_functions(start: Any) -> dict[str, str]:
    """The compiled functions that `start` reaches: name -> file."""
    from numba.core.dispatcher import Dispatcher

    found: dict[str, str] = {}
    waiting = [start]
    while waiting:
        function = waiting.pop().py_func
        file = str(Path(function.__code__.co_filename).resolve())
        key = f"{file}:{function.__qualname__}"
        if key not in found:
            found[key] = file
            values = [function.__globals__.get(name) for name in function.__code__.co_names]
            waiting += [value for value in values if isinstance(value, Dispatcher)]
    return found


# ---- what runs for a batch


class Tracer:
    """The product's functions that are entered, in all threads, while it is on: name -> file."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PREFIXES) and not code.co_name.startswith("<"):
            self.found[f"{code.co_filename}:{code.co_name}:{code.co_firstlineno}"] = code.co_filename

    def take(self) -> dict[str, str]:
        found, self.found = self.found, {}
        return found


PREFIXES = tuple(f"{ROOT / top}/" for top in PRODUCT)


def traced_batches() -> tuple[dict[str, str], dict[str, str]]:
    """What runs from an open loader to its first batch, and for a batch later on, with concepts and default outputs."""
    from conceptloader import make_dataloader
    from conceptloader.testing import random_documents, write_dataset

    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(f"{folder}/data", random_documents(200, seed=1))
        config = {"seq_len": 64, "datasets": {"data": {"path": f"{folder}/data"}}, "concepts": {"concepts": {}}}
        next(iter(make_dataloader(config, micro_batch_size=4)))  # compiles and loads kernels
        loader = make_dataloader(config, micro_batch_size=4)
        threading.setprofile(tracer)
        sys.setprofile(tracer)
        try:
            batches = iter(loader)
            next(batches)
            time.sleep(0.5)  # what is read ahead belongs to the first batch
            first = tracer.take()
            for _ in range(8):
                next(batches)
            time.sleep(0.5)
            warm = tracer.take()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            loader.close()
    return first, warm


# ---- all of it


def measure() -> dict[str, int]:
    first, warm = traced_batches()
    kernels = compiled_functions(kernel())
    sizes, per_folder, per_kernel = lines(), folders(), kernel_parameters()
    adapters = {name: [f for f in sizes if f.startswith(f"integrations/{name}/") and "__init__" not in f]
                for name in ("megatron_lm", "nanotron_lm")}  # fmt: skip
    listed = subprocess.run(["git", "ls-files", "tests"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "warm batch: Python functions": len(warm),
        "warm batch: kernel functions": len(kernels),
        "warm batch: files": len({*warm.values(), *kernels.values()}),
        "first batch: functions": len(first),
        "first batch: files": len(set(first.values())),
        "widest kernel function: parameters": max(per_kernel.values()),
        "constants that number columns": numbered_columns(),
        "largest folder: entries": max(count for name, count in per_folder.items() if name != "conceptloader"),
        "top folder: entries": per_folder["conceptloader"],
        "modules of megatron_lm": len(adapters["megatron_lm"]),
        "modules of nanotron_lm": len(adapters["nanotron_lm"]),
        "longest module of those two: lines": max(sizes[f] for files in adapters.values() for f in files),
        "circles of imports": len(circles(imports())),
        "tracked fixtures of tests": sum(not name.endswith((".py", ".md")) for name in listed.stdout.split()),
        "lines of the product": sum(sizes.values()),
    }


def kernel() -> Any:
    """The kernel that fills a batch."""
    try:
        from conceptloader.batch.kernels.fill import fill_samples
    except ImportError:
        from conceptloader.batch.fill import fill_samples
    return fill_samples


def main() -> int:
    found = measure()
    for name, mark in MARKS.items():
        print(f"{name:40} {found[name]:>7,} {'' if found[name] <= mark else '>'} {mark:,}")
    if "-v" in sys.argv:
        first, warm = traced_batches()
        for title, names in (("first", first), ("warm", warm), ("kernels", compiled_functions(kernel()))):
            print(title)
            for name in sorted(names):
                print("  ", name.replace(f"{ROOT}/", ""))
        print("circles", *circles(imports()), sep="\n  ")
        print("folders", *sorted(folders().items(), key=lambda item: -item[1])[:12], sep="\n  ")
    return int(any(found[name] > mark for name, mark in MARKS.items()))


if __name__ == "__main__":
    sys.exit(main())
