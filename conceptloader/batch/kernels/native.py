"""What kernels need from outside: libc's pread, and arrays at an address. Linux and glibc or musl."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj as _arrayobj

from conceptloader.base.compiled import inner

# External functions stay cacheable; a ctypes pointer would be a number of this process.
arrayobj: Any = _arrayobj
_external: Any = types.ExternalFunction
_pread = _external("pread", types.int64(types.int32, types.uintp, types.uintp, types.int64))
_errno_location = _external("__errno_location", types.int64())

EINTR = np.int32(4)
MAX_READ = 1 << 30  # Linux reads at most 2 GiB - 4 KiB in one call


def _at_address(typing_context: Any, address: Any, length: Any, dtype: Any) -> Any:
    kind = types.Array(dtype.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = arrayobj.make_array(kind)(context, builder)
        data = builder.inttoptr(args[0], context.get_data_type(kind.dtype).as_pointer())
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        arrayobj.populate_array(array, data, [args[1]], [size], size, None)
        return array._getvalue()

    return kind(types.int64, types.int64, dtype), generate


at_address = cast(Callable[[Any, Any, Any], Any], intrinsic(_at_address))
"""at_address(address, n, dtype): the array of n items there; only callable from a kernel."""


@inner
def read_fully(descriptor: np.int32, address: int, size: int, offset: int) -> int:
    """Read `size` bytes at `offset` to `address`, whatever interrupts it.

    Returns: 0, or the errno of the read that failed, or -1 if the file ends early.
    """
    done = 0
    while done < size:
        part = min(size - done, MAX_READ)
        got = _pread(descriptor, np.uintp(address + done), np.uintp(part), offset + done)
        if got < 0:
            error = at_address(_errno_location(), 1, np.int32)[0]
            if error != EINTR:
                return int(error)
        elif got == 0:
            return -1
        else:
            done += got
    return 0


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array's memory begins."""
    address: int = array.__array_interface__["data"][0]
    return address
