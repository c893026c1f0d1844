"""Faults of the file system, injected below the reader: in place of pread and open in storage/reads.py."""

import os

from conceptloader.storage import reads as io


class FaultyDisk:
    """What the reader believes to be the operating system. `waited`: seconds slept for, none of them really."""

    def __init__(self, patch):
        self.waited = []
        self.read_faults = []
        self.open_faults = []
        patch.setattr(io, "pread", self._pread)
        patch.setattr(io, "open_descriptor", self._open)
        patch.setattr(io, "sleep", self.waited.append)
        patch.setattr(io, "faults", {})  # so that this test's are logged

    def _pread(self, descriptor, size, offset):
        for fault in self.read_faults:
            instead = fault(descriptor, size, offset)
            if instead is not None:
                return instead
        return os.pread(descriptor, size, offset)

    def _open(self, path, flags):
        if self.open_faults:
            raise self.open_faults.pop(0)
        return os.open(path, flags)

    def fail(self, code, times=None, file=""):
        """The next `times` reads (None: all) of files whose path holds `file` fail."""
        left = [times]

        def fault(descriptor, _size, _offset):
            if file in os.readlink(f"/proc/self/fd/{descriptor}") and left[0] != 0:
                left[0] = None if left[0] is None else left[0] - 1
                raise OSError(code, os.strerror(code))

        self.read_faults.append(fault)
