"""A keyed permutation of range(n) in constant memory, with its inverse."""

from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.errors import ConfigError
from conceptloader.kernels import order as kernels
from conceptloader.order.reference import TABLE_MAX, feistel_shape, keyed_shuffle, mix64, permute, unpermute

MAX_N = 1 << 63


def as_positions(values: Any, n: int, what: str) -> npt.NDArray[np.uint64]:
    """`values` as a uint64 array in range(n), or a ConfigError that names the first one outside.

    Contiguous and aligned, as kernels take them.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "ui" and array.size:
        raise ConfigError(what, f"dtype {array.dtype}", "an array of integers", f"pass {what}.astype(numpy.uint64)")
    if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        raise ConfigError(what, int(array.min()), f"values in 0 <= {what} < {n}", f"pass {what} in this range")
    array = np.require(array, np.uint64, ["C", "A", "E"])
    if array.size and int(array.max()) >= n:
        raise ConfigError(what, int(array.max()), f"values in 0 <= {what} < {n}", f"pass {what} in this range")
    return array


class Permutation:
    """A pseudo-random bijection of range(n), chosen by `key`.

    No table grows with n: up to 1,024 it is an exact keyed shuffle, above a Feistel network with cycle walking
    (docs/order.md has the definition). Instances are immutable and safe to share by threads.

    Args:
        n: size of the domain, 1 <= n <= 2**63.
        key: any integer in [0, 2**64); equal keys give equal orders, neighbouring keys unrelated ones. It is passed
            through reference.mix64 first. A Mixture's keys are hashes and are not: window w of epoch e of a dataset is
            reference.permute with epoch_key(dataset_key, e), not Permutation with that key.

    Raises:
        ConfigError: n or key out of range, or a position outside range(n). TypeError for one that is no integer.
    """

    def __init__(self, n: int, key: int = 0) -> None:
        if not 1 <= n <= MAX_N:
            raise ConfigError(
                "n",
                str(n),
                "1 <= n <= 2**63",
                "pass n in this range",
            )
        if not 0 <= key < 1 << 64:
            raise ConfigError("key", str(key), "0 <= key < 2**64", "pass a key of conceptloader.adapters.derive_key")
        self.n, self.key = index(n), index(key)
        self._key = mix64(self.key)  # small keys are legal here, and must not give related orders
        self._tables: tuple[npt.NDArray[np.uint64], ...] = ()  # forward, inverse
        if self.n <= TABLE_MAX:
            table = np.array(keyed_shuffle(self.n, self._key), np.uint64)
            self._tables = table, np.argsort(table).astype(np.uint64)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Permutation(n={self.n}, key={self.key})"

    def forward(self, i: int) -> int:
        """Where position i of the order points: an int in range(n)."""
        return self._one(i, 0)

    def inverse(self, j: int) -> int:
        """Return the position i of index j, so that forward(i) == j."""
        return self._one(j, 1)

    def forward_many(self, positions: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """`forward` of an array of any integer dtype and shape: uint64 of the same shape. The GIL is released."""
        return self._many(positions, 0)

    def inverse_many(self, positions: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """`inverse` of an array, as `forward_many`."""
        return self._many(positions, 1)

    def _one(self, position: int, back: int) -> int:
        if not 0 <= position < self.n:
            raise ConfigError("position", str(position), f"0 <= position < {self.n}", "pass position in this range")
        if self._tables:
            return int(self._tables[back][index(position)])
        return (permute, unpermute)[back](index(position), self.n, self._key)

    def _many(self, positions: npt.ArrayLike, back: int) -> npt.NDArray[np.uint64]:
        array = as_positions(positions, self.n, "position")
        if self._tables:
            return self._tables[back][array]
        out, (a, bits) = np.empty_like(array), feistel_shape(self.n)
        shape = np.uint64(self.n), np.uint64(a), np.uint64(bits), np.uint64(self._key)
        (kernels.feistel_many, kernels.unfeistel_many)[back](array.reshape(-1), *shape, out.reshape(-1))
        return out
