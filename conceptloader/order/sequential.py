"""The order of evaluation: every window of every dataset once, the datasets one after the other by name."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from conceptloader.base.checks import as_count
from conceptloader.base.shown import Shown
from conceptloader.errors import ConfigError
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.order.permutation import MAX_N, as_positions


class Sequential(Shown):
    """A finite order with the methods of Mixture; sample g is window g minus the windows of the datasets before.

    What happens to a last batch that is not full is for order.partition.Plan to say.

    Args:
        sizes: Windows of each dataset (0 is fine).
        names: Unique names, whose alphabetical order decides.

    Attributes:
        num_samples: How many samples there are; asking for one beyond raises ConfigError.
    """

    def __init__(self, sizes: Sequence[int], names: Sequence[str]) -> None:
        if len(names) != len(sizes) or len(set(names)) != len(names):
            raise ConfigError(
                "names",
                list(names),
                f"a name of its own for each of {len(sizes)} sizes",
                f"pass {len(sizes)} different names",
            )
        self.names = list(names)
        self.sizes = [as_count(n, f"sizes.{name}", 0) for name, n in zip(names, sizes, strict=True)]
        self._order = sorted(range(len(self.names)), key=self.names.__getitem__)
        self._starts = np.cumsum([0, *(self.sizes[k] for k in self._order)], dtype=np.uint64)
        self.num_samples = int(self._starts[-1])

    def __repr__(self) -> str:
        return f"<Sequential of {len(self.names)} datasets: {self.num_samples:,} samples>"

    def locate_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array]:
        """(datasets int64, draws uint64) of an array of sample indices, in its shape. A draw is a window here."""
        g = np.asarray(positions)
        if g.size and not 0 <= int(g.min()) <= int(g.max()) < self.num_samples:
            raise ConfigError(
                "sample index",
                f"{g.min()} to {g.max()}",
                f"0 to {self.num_samples - 1}",
                "pass samples in this range",
            )
        g = g.astype(np.uint64)
        place = np.searchsorted(self._starts, g, side="right") - 1
        return np.array(self._order, dtype=np.int64)[place], g - self._starts[place]

    def sample_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array, U64Array]:
        """(datasets int64, epochs uint64: all 0, windows uint64) of an array of sample indices, in its shape."""
        datasets, windows = self.locate_many(positions)
        return datasets, np.zeros_like(windows), windows

    def sample(self, g: int) -> tuple[int, int, int]:
        """(dataset, epoch 0, window) of sample g."""
        datasets, windows = self.locate_many([g])
        return int(datasets[0]), 0, int(windows[0])

    def counts(self, g: int) -> list[int]:
        """Samples of each dataset before g."""
        before = dict(zip(self._order, self._starts.tolist(), strict=False))
        return [min(max(g - before[k], 0), size) for k, size in enumerate(self.sizes)]

    def index_of_window(self, dataset: int, epoch: int, window: int) -> int | None:
        """The sample that is a window of a dataset in `epoch`, which is always 0 here; None after its end."""
        if not 0 <= dataset < len(self.sizes):
            raise ConfigError(
                "dataset",
                dataset,
                f"a number below {len(self.sizes)}",
                f"pass a dataset below {len(self.sizes)}",
            )
        index = int(self.indices_of_windows(dataset, epoch, window))
        return index if index >= 0 else None

    def indices_of_windows(self, dataset: int, epoch: int, windows: npt.ArrayLike) -> I64Array:
        """`index_of_window` of an array: int64 like it, -1 for a window or an epoch that there is not."""
        numbers = as_positions(windows, MAX_N, "window").astype(np.int64)
        base = int(self._starts[self._order.index(dataset)])
        return np.where((numbers < self.sizes[dataset]) & (epoch == 0), numbers + base, -1)

    def check_run(self, num_samples: int) -> None:
        """Raise ConfigError if there are fewer than `num_samples` samples."""
        if num_samples > self.num_samples:
            raise ConfigError(
                "num_samples",
                f"{num_samples} with order sequential",
                f"at most {self.num_samples}, which it has",
                f"set num_samples to {self.num_samples} or less, or omit it",
            )
