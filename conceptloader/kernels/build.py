"""Compile the kernels: `python -m conceptloader.kernels.build`, and what setup.py does. Needs numba, and a linker.

Numba runs in a process of its own, once for all levels: what it makes does not depend on the processor.
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

MODULES = ("order", "fill", "packing", "digits")  # that have kernels
# LLVM's names of processor and features. With vectors of 512 bits the shuffle takes 3 ns an index, without them 5.
CPUS = {name: (name, "") for name in LEVELS} | {
    "x86-64-v4": ("x86-64-v4", "-prefer-256-bit"),
    "aarch64": ("generic", ""),
}


def build(folder: Path = LIBRARIES, levels: Sequence[str] = (), *, bounds: bool = False) -> None:
    """Have the libraries of some levels in `folder`.

    By default it is the one that CONCEPTLOADER_KERNELS names, or else of all of this kind of processor. Nothing is done
    where they are there already.

    bounds: with checks of every index, for tests. Raises: KernelsError.
    """
    levels = levels or [name for name in LEVELS if name.startswith(machine().replace("_", "-"))]
    if (given := os.environ.get(VARIABLE, "")) in levels:
        levels = [given]
    if not levels:
        raise KernelsError("processor", machine(), "one of x86_64 or aarch64")
    sources = digest_of_sources()
    if _is_there(folder, levels, sources, bounds):
        return
    link = linker()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
            files = {path.stem: _install(path, folder) for path in _libraries(Path(work), levels, bounds, link)}
            Description(__version__, sources, bounds, files).write(folder)
        for path in folder.glob("*.so"):
            if path.name not in {name for name, _, _ in files.values()}:
                path.unlink()
    except OSError as error:
        raise KernelsError(folder, f"compiled kernels cannot be written there ({error})") from error


def linker() -> list[str]:
    """The command that makes a shared library: $CC, a C compiler, or else ziglang from the package registry."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(shlex.split(name)[0]):
            return [*shlex.split(name), "-shared", "-nostdlib", "-s"]
    if name := shutil.which("ld") or shutil.which("ld.lld"):
        return [name, "-shared", "-s"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-shared", "-nostdlib", "-s"]
    raise KernelsError(
        "linker", "found none of cc, gcc, clang, ld", fix="install one of them, or `pip install ziglang`"
    )


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


def _libraries(work: Path, levels: Sequence[str], bounds: bool, link: Sequence[str]) -> list[Path]:
    """A process compiles the kernels; the results are linked."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = {
        **kept,
        "NUMBA_BOUNDSCHECK": str(int(bounds)),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *filter(None, [kept.get("PYTHONPATH")])]),
    }
    made = [work / f"{level}.so" for level in levels]
    compile_all = [sys.executable, "-m", "conceptloader.kernels.build", "--objects", str(work), "--levels", *levels]
    steps = [("compiled", compile_all)]
    steps += [("linked", [*link, "-o", str(library), str(library.with_suffix(".o"))]) for library in made]
    for step, words in steps:
        done = subprocess.run(words, env=environment, cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise KernelsError(f"kernels for {', '.join(levels)}", f"cannot be {step}:\n{done.stderr[-4000:]}")
    return made


def _install(library: Path, folder: Path) -> tuple[str, int, str]:
    """Under a name of its own: a process may have another one in its memory."""
    data = library.read_bytes()
    digest = digest_of(data)
    name = f"{library.stem}-{digest[:12]}.so"
    library.replace(folder / name)
    return name, len(data), digest


def _write_objects(folder: Path, levels: Sequence[str]) -> None:
    from conceptloader.kernels.kernel import Kernel
    from conceptloader.kernels.lowering import compile_kernels

    modules: list[Any] = [importlib.import_module(f"conceptloader.kernels.{name}") for name in MODULES]
    kernels = {value.name: value for module in modules for value in vars(module).values() if isinstance(value, Kernel)}
    made = compile_kernels([*kernels.values()], [CPUS[level] for level in levels])
    for level, data in zip(levels, made, strict=True):
        (folder / f"{level}.o").write_bytes(data)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m conceptloader.kernels.build", description="Compile the kernels.")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=[], help="of processors; all by default")
    parser.add_argument("--output", type=Path, default=LIBRARIES, help=f"the folder of the libraries and {DESCRIPTION}")
    parser.add_argument("--bounds", action="store_true", help="check every index, for tests")
    parser.add_argument("--objects", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.objects:
        _write_objects(arguments.objects, arguments.levels)
        return
    try:
        build(arguments.output, arguments.levels, bounds=arguments.bounds)
    except KernelsError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
