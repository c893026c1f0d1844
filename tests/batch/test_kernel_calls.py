"""Kernels: what they take and return, whatever the arguments, and what they refuse."""

import gc
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conceptloader.base.compiled.code import Lowered, inner
from conceptloader.base.compiled.kernel import kernel

CHECKOUT = Path(__file__).parents[2]
PAIR = np.dtype([("low", np.int64), ("high", np.int64)])


class Both(NamedTuple):
    numbers: Any
    pairs: Any


@kernel
def weighted(both: Both, more: Any, factor: int, flag: bool) -> int:
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


def plain(both: Both, more: Any, factor: int, flag: bool) -> int:
    weights = np.add.outer(np.arange(both.numbers.shape[0]), 3 * np.arange(both.numbers.shape[1])) + 1
    total = int((both.numbers.astype(np.int64) * weights).sum())
    total += int(both.pairs["low"].sum() - 2 * both.pairs["high"].sum()) + int(more[0].astype(np.int64).sum()) * factor
    return total + int(more[1][0]) if flag else -total


@settings(max_examples=60)
@given(data=st.data())
def test_arguments_of_all_kinds_arrive(data: st.DataObject) -> None:
    """Arrays of any step and writability, empty ones, tuples in tuples, numbers of numpy and of Python."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows, columns, step = (data.draw(st.integers(0, 5)) for _ in range(3))
    numbers = rng.integers(-50, 50, (2 * rows, columns + 1))[:: 1 + rows % 2, : columns + rows % 2]
    pairs = np.array([tuple(pair) for pair in rng.integers(0, 9, (columns, 2)).tolist()], PAIR)
    rest = rng.integers(0, 200, 6 * (step + 1)).astype(np.uint8)[:: step + 1]
    rest.flags.writeable = data.draw(st.booleans())
    kind = data.draw(st.sampled_from([int, np.int64]))
    given = Both(numbers, pairs), (rest, (kind(rows),)), kind(-step), data.draw(st.booleans())
    assert weighted(*given) == plain(*given)


@kernel
def negative(x: int) -> int:
    return np.int64(x) - np.int64(10)


@kernel
def halved(x: np.uint64) -> np.uint64:
    return x >> np.uint64(1)


@kernel
def above(x: int) -> bool:
    return x > 3


@kernel
def fill(out: Any, value: int) -> None:
    for i in range(len(out)):
        out[i] = value


def test_what_kernels_return() -> None:
    assert negative(3) == -7
    assert halved(np.uint64(2**64 - 2)) == 2**63 - 1
    assert halved(2**64 - 2) == 2**63 - 1  # a number of Python that only uint64 holds
    assert [above(x) for x in (3, 4)] == [False, True]
    assert isinstance(above(4), bool)
    assert fill(np.zeros(3, np.int64), 1) is None


def test_a_bound_call_keeps_what_it_needs_and_sees_what_changes() -> None:
    def bound() -> Any:
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


@pytest.mark.parametrize("wrong", [1.5, "text", [1], None, np.float64(2)])
def test_other_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"found a {type(wrong).__name__} for a kernel, expected arrays, integers"):
        negative(wrong)


@pytest.mark.parametrize("wrong", [2**64, -(2**63) - 1])
def test_integers_that_no_word_holds_are_refused(wrong: int) -> None:
    with pytest.raises(OverflowError, match="expected an integer of 64 bits"):
        negative(wrong)


def test_what_is_lowered_is_not_for_python() -> None:
    with pytest.raises(TypeError, match="mulhi: called outside of a kernel"):
        Lowered("mulhi")(1, 2)


@kernel
def outside(x: int) -> int:
    return np.int64(math.lgamma(np.float64(x)))


def test_machine_code_that_needs_what_is_nowhere_is_not_made() -> None:
    """LLVM would end the process that loads it."""
    with pytest.raises(RuntimeError, match=r"outside: needs .*lgamma.*, which is nowhere at run time"):
        outside(3)


@inner
def shifted(x: int) -> int:
    """A piece, which Python can call too."""
    return x << 1


def test_pieces_stay_functions() -> None:
    assert shifted(21) == 42
    assert weighted.py_func.__name__ == weighted.__name__ == "weighted"


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from beyond import beyond
try:
    print(beyond(np.arange(3)))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (("NUMBA_BOUNDSCHECK",), "IndexError beyond: an index is out of its array's bounds"),
        (("NUMBA_BOUNDSCHECK", "NUMBA_FULL_TRACEBACKS"), "debug: IndexError: index 5 is out of bounds for axis 0"),
        (
            ("NUMBA_DISABLE_JIT",),
            "RuntimeError found NUMBA_DISABLE_JIT in the environment; unset it",
        ),
    ],
)
def test_settings_of_numba_are_heard(tmp_path: Path, variables: tuple[str, ...], said: str) -> None:
    text = "from conceptloader.base.compiled.kernel import kernel\n\n@kernel\ndef beyond(x):\n    return x[5]\n"
    (tmp_path / "beyond.py").write_text(text)
    environment = {**os.environ, **dict.fromkeys(variables, "1"), "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))]
    found = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert said in found.stdout
