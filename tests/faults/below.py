"""Faults below compiled code: another function takes the place of libc's pread, for kernels that are loaded later.

The library of kernels names `pread`, which the dynamic linker looks up when it loads it. So a copy of it that names
another function is loaded, by a process that has loaded none yet (see scenarios.py). errno is the thread's real one,
which kernels read after a failure.
"""

import ctypes
import errno
import os
import random
import shutil
import subprocess
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import llvmlite.binding as llvm

from conceptloader.kernels import library
from conceptloader.kernels.build import linker

_ARGUMENTS = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_PREAD = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *_ARGUMENTS, use_errno=True)


@dataclass(frozen=True)
class Read:
    """A call of pread. anew: the descriptor was opened after the faults began."""

    path: str
    size: int
    offset: int
    anew: bool


class Preads:
    """The pread of all kernels of this process. Make one only, before the first kernel is loaded."""

    def __init__(self):
        self._real = _PREAD(("pread", ctypes.CDLL(None, use_errno=True)))
        self._callback = _PREAD(self._pread)  # kept: machine code has its address
        self.begin([])
        with tempfile.TemporaryDirectory() as folder:
            stand_in = ctypes.CDLL(str(_stand_in(Path(folder))), ctypes.RTLD_GLOBAL)
            address = ctypes.cast(self._callback, ctypes.c_void_p)
            ctypes.c_void_p.in_dll(stand_in, "function").value = address.value
            os.environ[library.VARIABLE] = str(_renamed(Path(folder)))
            library.load_library()

    def begin(self, faults, damage=False):
        """From now on these faults happen, to each read the first one that has an effect; counting begins at 0.

        damage: the first byte of each read of tokens is wrong, which no test may overlook.
        reads: of each file. failed: each read that was made to fail, with its errno. short: reads that were cut short.
        """
        self.faults, self._damage = faults, damage
        self.reads = Counter()
        self.failed = []
        self.short = 0
        self._opened = set()

    def open(self, path, flags):
        """os.open, noted."""
        descriptor = os.open(path, flags)
        self._opened.add(descriptor)
        return descriptor

    def _pread(self, descriptor, address, size, offset):
        read = Read(os.readlink(f"/proc/self/fd/{descriptor}"), size, offset, descriptor in self._opened)
        self.reads[os.path.basename(read.path)] += 1
        wanted = size
        for fault in self.faults:
            instead = fault(read)
            if instead is not None and instead < 0:
                self.failed.append((read, -instead))
                ctypes.set_errno(-instead)
                return -1
            if instead is not None:
                wanted = min(size, instead)
                self.short += wanted < size
                break
        got = self._real(descriptor, address, wanted, offset)
        if self._damage and got > 0 and read.path.endswith("stream.bin"):
            ctypes.c_uint8.from_address(address).value ^= 1
        return got


# The function that libraries look up is not one of Python's, which they could not find: it calls that.
_STAND_IN = """
@function = global ptr null
define i64 @Pread(i32 %descriptor, ptr %address, i64 %size, i64 %offset) {
  %found = load ptr, ptr @function
  %read = call i64 %found(i32 %descriptor, ptr %address, i64 %size, i64 %offset)
  ret i64 %read
}
"""


def _stand_in(folder):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic")
    (folder / "stand_in.o").write_bytes(machine.emit_object(llvm.parse_assembly(_STAND_IN)))
    subprocess.run([*linker(), "-o", folder / "stand_in.so", folder / "stand_in.o"], check=True)
    return folder / "stand_in.so"


def _renamed(folder):
    """A folder of libraries that call Pread."""
    known, files = library.Description.read(library.LIBRARIES), {}
    for level, (name, size, _) in known.files.items():
        data = (library.LIBRARIES / name).read_bytes()
        assert data.count(b"\0pread\0") == 1
        data = data.replace(b"\0pread\0", b"\0Pread\0")
        (folder / name).write_bytes(data)
        files[level] = name, size, library.digest_of(data)
    replace(known, files=files).write(folder)
    return folder


@dataclass
class Fails:
    """The next `times` reads (None: all) of files whose name ends so fail."""

    code: int
    times: int | None = None
    file: str = ""

    def __call__(self, read):
        if not read.path.endswith(self.file) or self.times == 0:
            return None
        if self.times is not None:
            self.times -= 1
        return -self.code


@dataclass
class Stale:
    """The server has restarted: all that was open stays stale, however often it is read, until it is opened anew."""

    def __call__(self, read):
        return None if read.anew else -errno.ESTALE


@dataclass
class Remounted:
    """The folder was mounted again: all that was open fails with `code`, and every file has another inode number."""

    folder: Path
    code: int
    done: bool = False

    def __call__(self, read):
        if not self.done:
            self.done = True
            for file in sorted(self.folder.iterdir()):
                shutil.copy2(file, file.with_suffix(".new"))
                os.replace(file.with_suffix(".new"), file)
        return None if read.anew else -self.code


class Random:
    """A part of all reads fails with one of the codes; of the others some are cut short, some wait for a moment."""

    def __init__(self, seed, codes, failing):
        self._dice, self._lock = random.Random(seed), threading.Lock()
        self._codes, self._failing = codes, failing

    def __call__(self, read):
        with self._lock:
            failing, kind = self._dice.random() < self._failing, self._dice.random()
            code, most = self._dice.choice(self._codes), self._dice.randint(1, read.size)
        if failing:
            return -code
        if kind > 0.9:
            threading.Event().wait(0.001)  # another thread goes first
        return most if kind < 0.4 else None


class Blocks:
    """Read number `after` of files whose name ends so does not return before `release` is set."""

    def __init__(self, file, after=0):
        self._file, self._after, self._numbers = file, after, count()
        self.release = threading.Event()
        self.blocked = None

    def __call__(self, read):
        if read.path.endswith(self._file) and next(self._numbers) == self._after:
            self.blocked = read
            self.release.wait()
        return
