"""Compile the kernels: `python -m conceptloader.kernels.build`, and what setup.py does. Needs numba, and a linker.

Numba runs in a process of its own, once for all levels: what it makes does not depend on the processor. So any machine
can build for any other: CONCEPTLOADER_TARGET says for which kind, and with it which levels, which linker and which tag
of a wheel.
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
    MACHINES,
    VARIABLE,
    Description,
    digest_of,
    digest_of_sources,
    machine_of,
    require_machine,
)

MODULES = ("order", "fill", "packing", "digits", "system")  # that have kernels
# LLVM's names of a level: triple, processor and features. With vectors of 512 bits the shuffle takes 3 ns an index,
# without them 5.
CPUS = {name: ("x86_64-unknown-linux-gnu", name, "") for name in LEVELS} | {
    "x86-64-v4": ("x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit"),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", ""),
}
TARGET = "CONCEPTLOADER_TARGET"
"""Of the environment: the kind of processor to build for, x86_64 or aarch64; by default this machine's."""


def target() -> str:
    """The kind of processor that is built for, as wheels name it. Raises: KernelsError."""
    given = os.environ.get(TARGET)
    if (name := given or machine()) not in MACHINES:
        raise KernelsError(
            TARGET if given else "processor",
            name,
            f"one of {' or '.join(MACHINES)}",
            "compile on, or for, one of these",
        )
    return name


def libraries() -> Path:
    """Where the libraries of the target are built: those of this machine where they are loaded from."""
    return LIBRARIES if target() == machine() else HERE.parents[1] / "build" / f"kernels-{target()}"


def build(folder: Path | None = None, levels: Sequence[str] = (), *, bounds: bool = False) -> None:
    """Have the libraries of some levels of the target in `folder`, by default `libraries()`.

    By default it is the level that CONCEPTLOADER_KERNELS names, or else all of them. Nothing is done where they are
    there already.

    bounds: with checks of every index, for tests. Raises: KernelsError.
    """
    folder, known = folder or libraries(), [name for name in LEVELS if machine_of(name) == target()]
    if strange := [name for name in levels if name not in known]:
        fix = f"set {TARGET}={machine_of(strange[0])}"
        raise KernelsError("--levels", strange[0], f"levels of {target()}: {', '.join(known)}", fix)
    levels = levels or known
    if (given := os.environ.get(VARIABLE, "")) in levels:
        levels = [given]
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
        raise KernelsError(
            folder, f"compiled kernels cannot be written there ({error})", fix="check the permissions of the folder"
        ) from error


def linker() -> list[str]:
    """The command that makes a shared library for the target: $CC, a C compiler, or else ziglang from the registry."""
    triple = f"{target()}-linux-gnu"
    native = target() == machine()
    compilers = ("cc", "gcc", "clang") if native else (f"{triple}-gcc",)
    linkers = ("ld", "ld.lld") if native else (f"{triple}-ld", "ld.lld")
    for name in (os.environ.get("CC"), *compilers):
        if name and shutil.which(shlex.split(name)[0]):
            return [*shlex.split(name), "-shared", "-nostdlib", "-s"]
    for name in linkers:
        if shutil.which(name):
            return [name, "-shared", "-s"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", triple, "-shared", "-nostdlib", "-s"]
    raise KernelsError(
        "linker",
        f"none of {', '.join((*compilers, linkers[0]))}",
        "a linker",
        "install one of them, or `pip install ziglang`",
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
    for level, library in zip(levels, made, strict=True):
        require_machine(library.read_bytes(), level, " ".join(link))
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
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=[], help=f"of ${TARGET}; all by default")
    parser.add_argument("--output", type=Path, help=f"the folder of the libraries and {DESCRIPTION}")
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
