"""The one machine instruction that the kernels need and numba has no name for."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _mulhi(typing_context: Any, x: Any, y: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


mulhi = cast(Callable[[np.uint64, np.uint64], np.uint64], intrinsic(_mulhi))
"""High 64 bits of the 128-bit product of two uint64; only callable from a kernel."""
