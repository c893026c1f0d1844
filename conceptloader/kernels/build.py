"""Compile the kernels: `python -m conceptloader.kernels.build`, and what setup.py does. Needs numba, and a linker.

A process for each level, since numba chooses the width of vectors by the processor that it is told of at its start.
"""

import argparse
import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from platform import machine
from typing import Any

from conceptloader.base.version import __version__
from conceptloader.errors import KernelsError
from conceptloader.kernels.library import (
    DESCRIPTION,
    HERE,
    LEVELS,
    LIBRARIES,
    VARIABLE,
    Description,
    digest_of,
    digest_of_sources,
)

MODULES = ("order", "fill", "packing", "codecs")  # that have kernels
# LLVM's names of processor and features. With vectors of 512 bits the shuffle takes 3 ns an index, without them 5.
CPUS = {name: (name, "") for name in LEVELS} | {
    "x86-64-v4": ("x86-64-v4", "-prefer-256-bit"),
    "aarch64": ("generic", ""),
}


def build(folder: Path = LIBRARIES, levels: Sequence[str] = (), *, bounds: bool = False) -> None:
    """Have the libraries of some levels in `folder`: by default of the one that CONCEPTLOADER_KERNELS names, or else of
    all of this kind of processor. Nothing is done where they are there already.

    bounds: with checks of every index, for tests. Raises: KernelsError.
    """
    levels = levels or [name for name in LEVELS if name.startswith(machine().replace("_", "-"))]
    if (given := os.environ.get(VARIABLE, "")) in levels:
        levels = [given]
    if not levels:
        raise KernelsError(f"found the processor {machine()}, expected one of x86_64 or aarch64")
    sources = digest_of_sources()
    if _is_there(folder, levels, sources, bounds):
        return
    link = linker()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda level: _library(Path(work), level, bounds, link), levels)
            files = {level: _install(path, folder) for level, path in zip(levels, made, strict=True)}
            Description(__version__, sources, bounds, files).write(folder)
        for path in folder.glob("*.so"):
            if path.name not in {name for name, _, _ in files.values()}:
                path.unlink()
    except OSError as error:
        raise KernelsError(f"{folder}: compiled kernels cannot be written there ({error})") from error


def linker() -> list[str]:
    """The command that makes a shared library: $CC, a C compiler, or else ziglang from the package registry."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(shlex.split(name)[0]):
            return [*shlex.split(name), "-shared", "-nostdlib", "-s"]
    if name := shutil.which("ld") or shutil.which("ld.lld"):
        return [name, "-shared", "-s"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-shared", "-nostdlib", "-s"]
    raise KernelsError("found no linker (cc, gcc, clang, ld); install one of them, or `pip install ziglang`")


def _is_there(folder: Path, levels: Sequence[str], sources: str, bounds: bool) -> bool:
    try:
        known = Description.read(folder)
        whole = all(digest_of((folder / name).read_bytes()) == digest for name, _, digest in known.files.values())
    except (OSError, KernelsError):
        return False
    return (
        whole
        and (known.version, known.sources, known.bounds) == (__version__, sources, bounds)
        and {*levels} <= known.files.keys()
    )


def _library(work: Path, level: str, bounds: bool, link: Sequence[str]) -> Path:
    """A process compiles the kernels; the result is linked."""
    cpu, features = CPUS[level]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = {
        **kept,
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_BOUNDSCHECK": str(int(bounds)),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *filter(None, [kept.get("PYTHONPATH")])]),
    }
    made, library = work / f"{level}.o", work / f"{level}.so"
    command = [sys.executable, "-m", "conceptloader.kernels.build", "--object", str(made), "--levels", level]
    for step, words in (("compiled", command), ("linked", [*link, "-o", str(library), str(made)])):
        done = subprocess.run(words, env=environment, cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise KernelsError(f"kernels for {level} cannot be {step}:\n{done.stderr[-4000:]}")
    return library


def _install(library: Path, folder: Path) -> tuple[str, int, str]:
    """Under a name of its own: a process may have another one in its memory."""
    data = library.read_bytes()
    digest = digest_of(data)
    name = f"{library.stem}-{digest[:12]}.so"
    library.replace(folder / name)
    return name, len(data), digest


def _write_object(path: Path, level: str) -> None:
    from conceptloader.kernels.kernel import Kernel
    from conceptloader.kernels.lowering import compile_kernels

    modules: list[Any] = [importlib.import_module(f"conceptloader.kernels.{name}") for name in MODULES]
    kernels = {value.name: value for module in modules for value in vars(module).values() if isinstance(value, Kernel)}
    path.write_bytes(compile_kernels([*kernels.values()], *CPUS[level]))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m conceptloader.kernels.build", description="Compile the kernels.")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=[], help="of processors; all by default")
    parser.add_argument("--output", type=Path, default=LIBRARIES, help=f"the folder of the libraries and {DESCRIPTION}")
    parser.add_argument("--bounds", action="store_true", help="check every index, for tests")
    parser.add_argument("--object", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.object:
        _write_object(arguments.object, arguments.levels[0])
        return
    try:
        build(arguments.output, arguments.levels, bounds=arguments.bounds)
    except KernelsError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
