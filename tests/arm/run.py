"""The aarch64 build, run by qemu on a Debian machine of any kind: `make arm`. Nothing is installed on the machine.

Into build/arm go Debian's qemu-user and its arm64 Python, and wheels for aarch64 from the package index. Then:

1. The kernels, cross-compiled, compute what those of this machine compute: with pages of 4 KiB and of 64 KiB (Grace),
   and with checks of every index. Datasets that are written there have the same bytes, and give the same batches.
2. The tests of the environments "aarch64-..." of tests/versions pass.

What qemu on x86-64 cannot show is Arm's memory order: design/architecture.md says why it is right. That the compiler
keeps it is read from the machine code.
"""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from conceptloader.kernels import build
from conceptloader.kernels.library import VARIABLE
from tests.versions.environments import READERS, TESTS

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "arm"
SYSROOT = HOME / "sysroot"
PYTHON = HOME / "python"  # the wrapper, which children are started with too
SITE = SYSROOT / "usr/lib/python3/dist-packages"  # where Debian's Python looks
PACKAGES = ("numpy", "pyyaml", "xxhash", "tqdm", *READERS, *TESTS)
TORCH = "torch==2.6.0"  # later wheels of the package index for aarch64 need CUDA's libraries
EVERYTHING = "from tests.kernels.everything import everything; print(everything())"
PAGES = {"4k": "4096", "64k": "65536"}


def fetch():
    """An interpreter of arm64 with its libraries and packages, and qemu, below HOME."""
    shutil.rmtree(HOME, ignore_errors=True)
    state, cache = HOME / "apt/state", HOME / "apt/cache"
    for folder in (state / "lists/partial", cache / "archives/partial", SITE):
        folder.mkdir(parents=True)
    (state / "status").touch()  # nothing is installed: all that Python depends on is fetched
    arm = ["apt-get", "-qq", f"-oDir::State={state}", f"-oDir::State::status={state}/status", f"-oDir::Cache={cache}"]
    arm += ["-oAPT::Architecture=arm64", "-oAPT::Architectures=arm64", "-oAPT::Sandbox::User="]
    run(*arm, "update")
    run(*arm, "install", "--download-only", "-y", "--no-install-recommends", "python3", "libstdc++6", "libgomp1")
    for deb in (cache / "archives").glob("*.deb"):
        run("dpkg", "-x", str(deb), str(SYSROOT))
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        run("apt-get", "-qq", "-oAPT::Sandbox::User=", "download", "qemu-user-static", cwd=HOME)
        (deb,) = HOME.glob("qemu-user-static*.deb")
        run("dpkg", "-x", str(deb), str(HOME / "qemu"))
        deb.unlink()
        qemu = str(HOME / "qemu/usr/bin/qemu-aarch64-static")
    (found,) = (SYSROOT / "usr/bin").glob("python3.??")
    PYTHON.write_text(f'#!/bin/sh\nQEMU_LD_PREFIX={SYSROOT} exec {qemu} {found} "$@"\n')
    PYTHON.chmod(PYTHON.stat().st_mode | stat.S_IXUSR)
    # What tests start as sys.executable would be a program that this machine cannot run.
    (SITE / "executable.pth").write_text(f"import sys; sys.executable = {str(PYTHON)!r}\n")
    install(*PACKAGES, TORCH)


def install(*packages):
    """Packages of the versions that are tested, by a pip that runs on aarch64: their conditions name the processor."""
    minor = next((SYSROOT / "usr/bin").glob("python3.??")).name.removeprefix("python3.")
    pins = (ROOT / f"constraints/py3{minor}.txt").read_text().splitlines()
    (HOME / "pins.txt").write_text("\n".join(pin for pin in pins if not pin.startswith(("torch==", "sympy=="))))
    pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=:all:", "--target", str(SITE)]
    run(sys.executable, *pip, "--upgrade", "pip")
    run(str(PYTHON), *pip, "-c", str(HOME / "pins.txt"), *packages, PYTHONPATH="")


def run(*command, cwd=ROOT, **environment):
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout.strip()


def kernels(*, bounds=False):
    """The folder of the libraries, cross-compiled."""
    folder = HOME / ("kernels-with-bounds-checks" if bounds else "kernels")
    command = [sys.executable, "-m", "conceptloader.kernels.build", "--output", str(folder)]
    run(*command, *["--bounds"] * bounds, **{build.TARGET: "aarch64", VARIABLE: ""})
    return folder


def arm(*arguments, pages="4k", folder=HOME / "kernels"):
    """Standard output of Python for aarch64 with arguments."""
    return run(str(PYTHON), *arguments, PYTHONPATH=str(ROOT), QEMU_PAGESIZE=PAGES[pages], **{VARIABLE: str(folder)})


def require_ordered(folder):
    """There is an LDAR and an STLR of 32 bits: descriptors are loaded with acquire, stored with release."""
    (library,) = folder.glob("*.so")
    code = library.read_bytes()
    words = {word & 0xFFFFFC00 for word in memoryview(code[: len(code) // 4 * 4]).cast("I")}
    if not {0x88DFFC00, 0x889FFC00} <= words:
        sys.exit(f"{library}: has no ordered load or store of 32 bits")


def main():
    if not (SITE / "torch").exists():
        fetch()
    require_ordered(kernels())
    found = [arm("-c", EVERYTHING, pages=pages) for pages in PAGES]
    found += [arm("-c", EVERYTHING, folder=kernels(bounds=True))]
    expected = run(sys.executable, "-c", EVERYTHING, PYTHONPATH=str(ROOT))
    if {*found} != {expected}:
        sys.exit(f"orders, files, batches: found {', '.join(found)}, expected {expected}, as on this machine")
    print(f"orders, files, batches (4 KiB, 64 KiB, bounds checks): equal to this machine's, {expected}", flush=True)
    for name, pages in {"aarch64-4k": "4k", "aarch64-64k": "64k", "aarch64-torch": "64k"}.items():
        arm("-m", "tests.versions.run", "--here", name, pages=pages)
        print(f"{name}: passed", flush=True)
    run(sys.executable, "-m", "tests.versions.page", "--write")


if __name__ == "__main__":
    main()
