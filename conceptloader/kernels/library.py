"""The library of compiled kernels: which of its files this processor runs, checked before it is loaded.

Files lie in lib/, one for each level of the processor's instructions, next to what describes them. A file that is cut
off or changed would end the process, or compute something else: so its size and digest are compared before, and so are
the version and the sources that it was compiled from.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conceptloader.base.version import __version__
from conceptloader.errors import KernelsError

HERE = Path(__file__).parent
LIBRARIES = HERE / "lib"
VARIABLE = "CONCEPTLOADER_KERNELS"
"""Of the environment: a level, or a folder of libraries that were built elsewhere (a path with a slash)."""
DESCRIPTION = "kernels.json"
BUILD = "run `make kernels` in a checkout, or `pip install .`"

# Of x86-64, as its psABI defines them, the best first; what /proc/cpuinfo calls that which each level adds.
LEVELS = {
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "aarch64": "",
}
# Kinds of processors, as wheels name them, and the e_machine of their ELF files.
MACHINES = {"x86_64": 62, "aarch64": 183}


@dataclass(frozen=True)
class Description:
    """What was built.

    sources: digest of this folder's Python; bounds: whether indices are checked; files: of each level, (name, bytes,
    BLAKE2b).
    """

    version: str
    sources: str
    bounds: bool
    files: dict[str, tuple[str, int, str]]

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """Raises: OSError; KernelsError if it is not what `write` writes."""
        path = folder / DESCRIPTION
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            files = {
                level: (str(name), int(size), str(digest)) for level, (name, size, digest) in found["files"].items()
            }
            return cls(str(found["version"]), str(found["sources"]), bool(found["bounds"]), files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise KernelsError(
                path, f"no description of compiled kernels ({error!r})", "a description of compiled kernels", BUILD
            ) from error

    def write(self, folder: Path) -> None:
        """Replace the one that is there."""
        temporary = folder / f".{DESCRIPTION}.{os.getpid()}"
        temporary.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        temporary.replace(folder / DESCRIPTION)


class Library:
    """A file of machine code in memory."""

    def __init__(self, path: Path, level: str) -> None:
        self.path, self.level = path, level
        self._loaded = ctypes.CDLL(str(path))

    def function(self, name: str) -> Any:
        """An export: of the address of a block of words, returns 0 unless it was stopped. Runs without the GIL."""
        found = self._loaded[name]
        found.argtypes, found.restype = (ctypes.c_void_p,), ctypes.c_int64
        return found


@functools.cache
def load_library() -> Library:
    """The library for this processor, or what CONCEPTLOADER_KERNELS asks for. Raises: KernelsError."""
    given = os.environ.get(VARIABLE, "")
    folder = Path(given) if "/" in given else LIBRARIES
    try:
        known = Description.read(folder)
    except OSError as error:
        raise KernelsError(
            folder, f"no compiled kernels ({error.strerror})", "the compiled kernels of this version", BUILD
        ) from error
    if known.version != __version__ or known.sources != digest_of_sources():
        raise KernelsError(folder, f"kernels of {known.version} or of other sources", f"those of {__version__}", BUILD)
    level = given if given and "/" not in given else _best(known.files, folder)
    if level not in known.files or level not in supported():
        raise KernelsError(
            VARIABLE,
            repr(level),
            "a level that was built and that this processor has: "
            f"{', '.join(name for name in supported() if name in known.files) or 'there is none'}",
            f"set one of these, or unset {VARIABLE}",
        )
    name, size, digest = known.files[level]
    return Library(_checked(folder / name, level, size, digest), level)


def digest_of_sources() -> str:
    """Of this folder's Python, which is all that the library is made of."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(HERE.glob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def digest_of(data: bytes) -> str:
    """Of a file of machine code."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def machine_of(level: str) -> str:
    """The kind of processor of a level, one of MACHINES."""
    return next(machine for machine in MACHINES if level.startswith(machine.replace("_", "-")))


def require_machine(data: bytes, level: str, path: object) -> None:
    """Raises: KernelsError unless a library is for the kind of processor of its level, as its ELF header says."""
    machine = machine_of(level)
    found = int.from_bytes(data[18:20], "little")
    if not data.startswith(b"\x7fELF\x02\x01") or found != MACHINES[machine]:
        expected = f"one for {machine} (machine {MACHINES[machine]}), for level {level}"
        raise KernelsError(path, f"no library, or of ELF machine {found}", expected, BUILD)


def _checked(path: Path, level: str, size: int, digest: str) -> Path:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KernelsError(path, f"cannot be read ({error.strerror})", fix=BUILD) from error
    if len(data) != size or digest_of(data) != digest:
        raise KernelsError(
            path,
            f"{len(data)} bytes of another content",
            f"the {size} that were compiled: it was truncated or changed",
            BUILD,
        )
    require_machine(data, level, path)
    return path


def _best(files: dict[str, Any], folder: Path) -> str:
    for level in supported():
        if level in files:
            return level
    raise KernelsError(
        folder,
        f"kernels for {', '.join(files)}, but this processor ({platform.machine()}) has "
        f"{', '.join(supported()) or 'none of these levels'}",
        "kernels for one of its levels",
        f"{BUILD} on such a machine",
    )


def supported() -> list[str]:
    """Levels of this processor, the best first."""
    if platform.machine() != "x86_64":
        return [platform.machine()] if platform.machine() in LEVELS else []
    flags: list[str] = []
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    # Without /proc the lowest level, which numpy's own wheels need, too.
    return levels_of(flags) if flags else ["x86-64-v2"]


def levels_of(flags: Sequence[str]) -> list[str]:
    """Levels of a processor of x86-64 with these flags in /proc/cpuinfo, the best first: each has what is below it."""
    levels = [name for name in LEVELS if name.startswith("x86")]
    return [name for k, name in enumerate(levels) if all({*LEVELS[below].split()} <= {*flags} for below in levels[k:])]
