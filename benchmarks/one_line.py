"""The least that numba can be asked for: the floor of bench_startup.py."""

from numba import njit


@njit(cache=True, nogil=True)
def total(values):
    return values.sum()
