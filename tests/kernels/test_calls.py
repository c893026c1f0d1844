"""Kernels: what they take and return, whatever the arguments, and what they refuse."""

import gc
import os
import subprocess
import sys
from typing import Annotated, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conceptloader.kernels.build import CPUS, linker
from conceptloader.kernels.digits import Bytes
from conceptloader.kernels.kernel import Array, I64Array, kernel
from conceptloader.kernels.library import Library, load_library
from conceptloader.kernels.lowering import compile_kernels

PAIR = np.dtype([("low", np.int64), ("high", np.int64)])


class Both(NamedTuple):
    numbers: Annotated[Array, np.int32, 2]
    pairs: Annotated[Array, PAIR]


@kernel
def weighted(both: Both, more: tuple[Bytes, tuple[int]], factor: int, flag: bool) -> int:
    """A sum that every part of every argument takes part in."""
    total = np.int64(0)
    for i in range(both.numbers.shape[0]):
        for j in range(both.numbers.shape[1]):
            total += np.int64(both.numbers[i, j]) * (i + 3 * j + 1)
    for k in range(len(both.pairs)):
        total += both.pairs[k].low - 2 * both.pairs[k].high
    rest, (offset,) = more
    for k in range(len(rest)):
        total += np.int64(rest[k]) * factor
    return total + offset if flag else -total


@kernel
def negative(x: int) -> int:
    return x - 10


@kernel
def fill(out: I64Array, value: int) -> None:
    for i in range(len(out)):
        out[i] = value


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory):
    """The kernels of this file, as a library of their own."""
    folder, kernels = tmp_path_factory.mktemp("library"), [weighted, negative, fill]
    [code] = compile_kernels(kernels, [CPUS[load_library().level]])
    (folder / "a.o").write_bytes(code)
    subprocess.run([*linker(), "-o", folder / "a.so", folder / "a.o"], check=True)
    library = Library(folder / "a.so", load_library().level)
    for one in kernels:
        vars(one)["_code"] = library.function(one.name)


@settings(max_examples=60)
@given(data=st.data())
def test_arguments_of_all_kinds_arrive(data):
    """Arrays, empty ones too, tuples in tuples, numbers of numpy and of Python."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows, columns = (data.draw(st.integers(0, 5)) for _ in range(2))
    numbers = rng.integers(-50, 50, (rows, columns), dtype=np.int32)
    pairs = np.array([tuple(pair) for pair in rng.integers(0, 9, (columns, 2)).tolist()], PAIR)
    rest = rng.integers(0, 200, data.draw(st.integers(0, 9)), dtype=np.uint8)
    kind = data.draw(st.sampled_from([int, np.int64]))
    given = (rest, (kind(rows),)), kind(-columns), data.draw(st.booleans())
    assert weighted(Both(numbers, pairs), *given) == weighted.py_func(Both(numbers, pairs.view(np.recarray)), *given)


def test_a_bound_call_keeps_what_it_needs_and_sees_what_changes():
    def bound():
        return fill.bind(kept, 7)

    kept = np.zeros(4, np.int64)
    run = bound()
    temporary = fill.bind(np.zeros(1000, np.int64), 5)
    for _ in range(100):
        np.empty(1000, np.int64)[:] = -1
    gc.collect()
    assert temporary() == 0
    assert temporary.kept[0].tolist() == [5] * 1000
    assert run() == 0
    assert kept.tolist() == [7] * 4
    kept[:] = 0
    run()
    assert kept.tolist() == [7] * 4
    count = negative.bind(np.int64(1))
    assert [count() for _ in range(3)] == [0] * 3
    assert count.block[0] == -9


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(8, np.int64)[::2], np.zeros(8, np.int32), np.zeros((2, 2), np.int64), np.zeros(8, ">i8"), [1, 2],
        np.zeros(33, np.uint8)[1:].view(np.int64),
    ],
)  # fmt: skip
def test_arrays_that_machine_code_would_misread_are_refused(wrong):
    with pytest.raises(TypeError, match=r"fill: found .*, expected a contiguous array of int64 with 1 dimensions"):
        fill(wrong, 1)


@pytest.mark.parametrize("wrong", [1.5, "text", [1], None, np.float64(2)])
def test_other_numbers_are_refused(wrong):
    with pytest.raises(TypeError, match=r"cannot be interpreted as an integer|only integer"):
        negative(wrong)
    for arguments in ((), (1, wrong), ((1, 2),)):
        with pytest.raises((TypeError, ValueError)):
            negative(*arguments)
    for large in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError, match=r"negative: found .*, expected a number that int64 can hold"):
            negative(large)


BEYOND = """
import numpy as np
from conceptloader.kernels.order import NO_TABLES, locate_many
one, none = np.zeros(1, np.uint64), np.zeros(0, np.int64)
try:
    locate_many(one, none, one, NO_TABLES.phases, np.zeros(4, np.uint64))
except IndexError as error:
    print(error)
"""


@pytest.mark.timeout(300)  # kernels are compiled for it
def test_an_index_out_of_bounds_is_an_error_of_a_library_that_checks(bounds_checks, checkout):
    found = subprocess.run(
        [sys.executable, "-c", BEYOND],
        env={**os.environ, **bounds_checks},
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "locate_many: an index is out of its array's bounds (a library built with --bounds)\n"
