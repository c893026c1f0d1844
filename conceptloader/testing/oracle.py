"""The resume oracle: a run stopped after any step, and resumed by any number of ranks, trains what it would have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a run is spread: data-parallel ranks, samples of a micro batch, samples of a global batch."""

    dp_size: int
    micro_batch_size: int
    global_batch_size: int

    @property
    def micro_batches(self) -> int:
        """Micro batches of a step, on each rank."""
        return self.global_batch_size // (self.micro_batch_size * self.dp_size)


class Loader(Protocol):
    """What is tested: one rank's loader, which yields its micro batches one after the other."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


MakeLoader = Callable[[Layout, int], Loader]
"""(layout, dp_rank) -> a fresh loader."""

Row = dict[str, Any]
State = dict[str, Any]


def global_steps(
    make: MakeLoader, layout: Layout, steps: int, state: State | None = None
) -> Iterator[tuple[list[Row], State]]:
    """What all ranks together train in each of `steps` steps, and the state after it.

    A step is a list of rows, one a sample, sorted by sample_index. Row: every array of the batch whose first dimension
    counts samples.

    Raises:
        AssertionError: If ranks disagree in their state, which holds nothing of the rank.
    """
    loaders = [make(layout, dp_rank) for dp_rank in range(layout.dp_size)]
    try:
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(steps):
            batches = [batch for iterator in iterators for batch in islice(iterator, layout.micro_batches)]
            rows = [row for batch in batches for row in rows_of(batch)]
            assert len(rows) == layout.global_batch_size, f"a step has {len(rows)} samples, not {layout}"
            states = [loader.state_dict() for loader in loaders]
            assert all(other == states[0] for other in states), f"ranks are in different states: {states}"
            yield sorted(rows, key=lambda row: int(row["sample_index"])), states[0]
    finally:
        for loader in loaders:
            getattr(loader, "close", lambda: None)()


def rows_of(batch: Mapping[str, Any]) -> list[Row]:
    """A batch by its samples."""
    size = len(batch["sample_index"])
    arrays = {name: np.asarray(value) for name, value in batch.items() if np.ndim(value) and name != "cu_seqlens"}
    return [{name: array[k] for name, array in arrays.items() if len(array) == size} for k in range(size)]


def check_resume(make: MakeLoader, before: Layout, after: Sequence[Layout], steps: int) -> None:
    """Stop a run after each step, resume it in each layout of `after`, and compare everything it trains from there on.

    The run is `steps` steps of `before` long, and as many samples are compared for any batch size afterwards.
    Where the global batch is the same, steps must agree as well.

    Raises:
        AssertionError: That names stop, layout and sample.
    """
    first = list(global_steps(make, before, steps))
    reference = [row for rows, _ in first for row in rows]
    indices = [int(row["sample_index"]) for row in reference]
    assert indices == list(range(indices[0], indices[0] + len(indices))), f"samples out of turn: {indices}"
    for stop in range(1, steps):
        tail = reference[stop * before.global_batch_size :]
        for layout in after:
            resumed = global_steps(make, layout, len(tail) // layout.global_batch_size, first[stop - 1][1])
            found = (row for rows, _ in resumed for row in rows)
            for one, other in zip(tail, found, strict=False):
                _check_equal(one, other, f"stopped after step {stop}, resumed with {layout}")


def _check_equal(expected: Row, found: Row, where: str) -> None:
    assert sorted(expected) == sorted(found), f"{where}: arrays {sorted(found)}, not {sorted(expected)}"
    for name, array in expected.items():
        assert np.array_equal(array, found[name]), (
            f"{where}: sample {found['sample_index']} instead of {expected['sample_index']}, or other {name} in it"
        )
