"""Global sample index <-> (dataset, draw) <-> (dataset, epoch, window): the blend of datasets without index arrays."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.base.checks import as_integer
from conceptloader.base.lazy import lazy
from conceptloader.errors import ConfigError
from conceptloader.kernels import order as kernels
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.order import reference
from conceptloader.order.built import built_tree, counts_in, draws_of, joined, phase_arrays, positions_in
from conceptloader.order.reference import PhaseOrder
from conceptloader.order.segments import Segment, in_force, ordered, origins

ORDER_VERSION = 1
MAX_N = 1 << 63
MAX_BLOCK = 65_536
_NEVER = 2**63 - 1
PHASES = 1024  # that stay laid out for kernels
FORGOTTEN = (
    "pass the run log, which has all weights (--run-log DIR): some were set while the run was running, and a "
    "checkpoint keeps only the last ones"
)


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


class Mixture:
    """The order of samples of a run: a pure function of its arguments, in O(datasets) memory.

    Between changes of weights, a tree over these assigns the samples (docs/order.md); inside each block of `block`
    samples the choices are permuted, so that no data-parallel rank is bound to one dataset; draw k of a dataset of n
    windows is window permutation_e(k mod n) of its epoch e = k // n. Everything has an exact inverse.

    The tree of many datasets takes long, so that it is built when a sample from there on is asked for.

    Args:
        sizes: windows of each dataset, each 1..2**63, or 0 for one that is never drawn.
        weights: one number above 0 per dataset, from sample 0 on; by default those of `segments`, or equal ones.
        names: unique names. They, not their sequence, decide the order. Default "0", "1", ...
        seed: any integer.
        block: 1 (strict interleaving) to 65,536 samples.
        segments: changes of weights, the first at sample 0 unless `weights` are, and jumps. As an attribute all
            weights that are known.
        max_epochs: per dataset, how often it may be read by `check_run`, or None. What is read of "NAME@SEQ_LEN", the
            same dataset in other windows, counts for NAME.
        shuffle: False reads the windows of every dataset in storage order.
        forgotten: segments before the first one with `drawn` are not known: asking for their samples, or draws, raises
            ConfigError. As an attribute, `begin` is the first sample that is known.

    Raises:
        ConfigError: naming the argument, what was found and what was expected.
    """

    num_samples: int | None = None
    """The end of the order; None where it has none."""

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        block: int = 64,
        segments: Sequence[Segment] | None = None,
        max_epochs: Sequence[float | None] | None = None,
        shuffle: bool = True,
        forgotten: bool = False,
    ) -> None:
        if not 1 <= as_integer(block, "block") <= MAX_BLOCK:
            raise ConfigError(
                "block",
                str(block),
                f"1 <= block <= {MAX_BLOCK}",
                "pass block in this range",
            )
        self.sizes = [int(n) for n in sizes]
        self.names = [str(k) for k in range(len(self.sizes))] if names is None else list(names)
        self.seed, self.block = as_integer(seed, "seed"), int(block)
        self.shuffle = bool(shuffle)
        self.max_epochs = [None] * len(self.sizes) if max_epochs is None else list(max_epochs)
        self._check_names()
        if segments is None or weights is not None:
            given = [1] * len(self.sizes) if weights is None else list(weights)
            self._check_lengths(weights=given)
            segments = [*(segments or ()), Segment(at=0, weights=dict(zip(self.names, given, strict=True)))]
        listed = in_force(ordered(segments, self._index))
        self._check_members({name for one in listed for name in one.weights})
        self._keys = [reference.dataset_key(self.seed, name) for name in self.names]
        known = [(start, one) for start, one in zip(origins(listed), listed, strict=True) if one.weights]
        if forgotten:
            known = known[next(k for k, (_, one) in enumerate(known) if one.drawn is not None) :]
        self.segments, self._starts = [one for _, one in known], [start for start, _ in known]
        self.begin = self.segments[0].at if forgotten else 0
        jumps = [one for one in listed if one.skip]
        self._skip_at = np.array([one.at for one in jumps], np.uint64)
        self._skipped = np.cumsum([0, *(one.skip for one in jumps)], dtype=np.uint64)
        self._begins = np.array(self._starts, np.uint64)
        self._bases = np.zeros((len(known), len(self.sizes)), np.uint64)  # draws before each, of the first few
        self._counted = 0  # of them
        self._bases_to(0)
        # Phases as kernels have them, by number, and all in one.
        self._made: tuple[dict[int, kernels.Phases], kernels.KernelTables] = {}, kernels.NO_TABLES

    def __repr__(self) -> str:
        shown = [f"{name} ({size:,} windows)" for name, size in zip(self.names[:4], self.sizes, strict=False)]
        more = [f"{len(self.names) - 4:,} more"] if self.names[4:] else []
        return f"<Mixture of {', '.join(shown + more)}: seed {self.seed}, {len(self.segments)} segments>"

    def _check_names(self) -> None:
        if not self.sizes:
            raise ConfigError("sizes", "no datasets", "at least one dataset", "name a dataset under `datasets`")
        self._check_lengths(names=self.names, max_epochs=self.max_epochs)
        repeated = sorted(name for name, times in Counter(self.names).items() if times > 1)
        if repeated:
            raise ConfigError(
                "names",
                f"a name twice: {repeated}",
                "a name of its own for each dataset",
                f"rename one of the datasets {repeated}",
            )

    def _check_lengths(self, **given: Sequence[object]) -> None:
        for what, values in given.items():
            if len(values) != len(self.sizes):
                raise ConfigError(
                    what,
                    len(values),
                    f"a value for each of the {len(self.sizes)} sizes",
                    f"pass {len(self.sizes)} values as {what}",
                )

    def _check_members(self, drawn: set[str]) -> None:
        for name, size, limit in zip(self.names, self.sizes, self.max_epochs, strict=True):
            if not (name in drawn) <= size <= MAX_N:
                raise ConfigError(
                    f"sizes.{name}",
                    f"{size} windows",
                    "1 to 2**63",
                    "lower seq_len, widen its split, or omit its weight",
                )
            if limit is not None and not limit > 0:
                raise ConfigError(
                    f"max_epochs.{name}",
                    str(limit),
                    "a number above 0, or None for no limit",
                    "set max_epochs above 0, or omit it for no limit",
                )

    @lazy
    def _index(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def _phase(self, k: int) -> PhaseOrder:
        start, base = self._starts[k], self._bases_to(k)[k].tolist()
        weights = {name: int(weight) for name, weight in sorted(self.segments[k].weights.items())}
        members, tree = [self._index[name] for name in weights], built_tree(tuple(weights.values()))
        return PhaseOrder(start, weights, members, tree, reference.blocks_key(self.seed, start), base)

    def _bases_to(self, k: int) -> U64Array:
        """The draws before each phase up to this one. Threads that come at the same time count the same."""
        for number in range(self._counted, k + 1):
            drawn = self.segments[number].drawn
            if drawn is not None:
                self._bases[number] = [drawn.get(name, 0) for name in self.names]
            elif number:
                self._bases[number] = counts_in(self._phase(number - 1), self._starts[number], self.block)
            self._counted = number + 1
        return self._bases[: k + 1]

    def _global(self, t: U64Array) -> U64Array:
        """The global samples of the trainer's."""
        if len(t) and int(t.min()) < self.begin:
            raise ConfigError("order", f"sample {t.min()}", f"a sample from {self.begin} on", FORGOTTEN)
        return t + self._skipped[np.searchsorted(self._skip_at, t, side="right")]

    def _trainers(self, g: I64Array) -> I64Array:
        """The inverse; -1 where a sample is skipped, after the end, or -1."""
        skipped, at = self._skipped.astype(np.int64), self._skip_at.astype(np.int64)
        passed = np.searchsorted(at + skipped[1:], g, side="right")
        t = g - skipped[passed]
        return np.where(t >= np.append(at, _NEVER)[passed], -1, t)

    def _tables(self, g: U64Array) -> kernels.KernelTables:
        """What kernels need for these global samples. Phases of earlier ones stay, whose trees take long."""
        numbers = np.bincount(np.searchsorted(self._begins, g.reshape(-1), side="right") - 1).nonzero()[0].tolist()
        made, tables = self._made
        if not made.keys() >= set(numbers):
            kept = {*made, *numbers} if len(made) + len(numbers) <= PHASES else numbers
            made = {k: made.get(k) or phase_arrays(self._phase(k), self.block) for k in sorted(kept)}
            tables = kernels.KernelTables(
                joined([*made.values()]), self._window_arrays, self._skip_at, self._skipped, self._room
            )
            self._made = made, tables  # at once, for threads
        return tables

    @lazy
    def _window_arrays(self) -> kernels.Sizes:
        shapes = [reference.feistel_shape(n) for n in self.sizes]
        small = [n if n <= reference.TABLE_MAX else 0 for n in self.sizes]
        return kernels.Sizes(
            windows=np.array(self.sizes, np.uint64),
            keys=np.array(self._keys, np.uint64),
            a=np.array([a for a, _ in shapes], np.uint64),
            bits=np.array([bits for _, bits in shapes], np.uint64),
            tables=np.cumsum([0, *small], dtype=np.int64)[:-1],
        )

    @lazy
    def _room(self) -> int:
        """See KernelTables."""
        small = sum(n for n in self.sizes if n <= reference.TABLE_MAX)
        return kernels.scratch_of(self.block, len(self.sizes), small)

    def kernel_tables(self, samples: U64Array) -> kernels.KernelTables | None:
        """What kernels need to find the windows of samples by themselves.

        None without a shuffle, which they know nothing of.
        """
        return self._tables(self._global(samples)) if self.shuffle and len(samples) else None

    @property
    def deviation(self) -> float:
        """No dataset's count is further than this from its weights at a block boundary (block 1: at any sample)."""
        return max(self._phase(k).tree.deviation for k in range(len(self._starts)))

    def locate_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array]:
        """(datasets int64, draws uint64) of an array of indices below 2**63, in its shape. The GIL is released."""
        t = as_positions(positions, MAX_N, "sample index")
        g = self._global(t.reshape(-1))
        datasets, draws = np.empty(g.shape, np.int64), np.empty(g.shape, np.uint64)
        if len(g):
            kernels.locate_many(g, datasets, draws, self._tables(g).phases, np.empty(self._room, np.uint64))
        return datasets.reshape(t.shape), draws.reshape(t.shape)

    def sample_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array, U64Array]:
        """(datasets int64, epochs uint64, windows uint64) of an array of indices, in its shape."""
        datasets, draws = self.locate_many(positions)
        sizes = self._window_arrays.windows
        if not self.shuffle:
            return datasets, draws // sizes[datasets], draws % sizes[datasets]
        epochs, windows = np.empty_like(draws), np.empty_like(draws)
        out = epochs.reshape(-1), windows.reshape(-1)
        scratch = np.empty(self._room, np.uint64)
        kernels.windows_many(datasets.reshape(-1), draws.reshape(-1), *out, self._window_arrays, scratch)
        return datasets, epochs, windows

    def sample(self, g: int) -> tuple[int, int, int]:
        """(dataset, epoch, window) of sample g."""
        datasets, epochs, windows = self.sample_many([g])
        return int(datasets[0]), int(epochs[0]), int(windows[0])

    def counts(self, g: int) -> list[int]:
        """How many samples each dataset gave before index g (skipped ones included, since they used up their draws)."""
        if g < 0:
            raise ConfigError(
                "sample index",
                str(g),
                "0 or more",
                "pass a sample from 0 on",
            )
        at = int(self._global(np.array([g], np.uint64))[0])
        return counts_in(self._phase(bisect_right(self._starts, at) - 1), at, self.block)

    def index_of_window(self, dataset: int, epoch: int, window: int) -> int | None:
        """The index at which a window is read in one epoch of its dataset, or None if the run never reads it.

        It never does if its dataset left, if it is skipped, or after the end of the order.
        """
        if not (0 <= dataset < len(self.sizes) and 0 <= window < self.sizes[dataset] and epoch >= 0):
            raise ConfigError(
                "window",
                f"dataset {dataset}, epoch {epoch}, window {window}",
                f"a dataset from 0 to {len(self.sizes) - 1}, an epoch of 0 or more, and a window below the number of "
                f"windows of its dataset: {self.sizes[:20]}",
                "pass numbers in these ranges",
            )
        t = int(self.indices_of_windows(dataset, epoch, [window])[0])
        return None if t < 0 else t

    def indices_of_windows(self, dataset: int, epoch: int, windows: npt.ArrayLike) -> I64Array:
        """`index_of_window` of an array of windows: int64 like it, -1 where that is None."""
        size = self.sizes[dataset]
        given = as_positions(windows, size, "window")
        if self.shuffle:
            key = reference.epoch_key(self._keys[dataset], epoch)
            draws = draws_of(given.reshape(-1), epoch * size, size, key)
        else:
            draws = given.reshape(-1) + np.uint64(epoch * size)
        return self._trainers(self._positions(dataset, draws)).reshape(given.shape)

    def _positions(self, dataset: int, draws: U64Array) -> I64Array:
        found = np.full(len(draws), -1, np.int64)
        if not len(draws):
            return found
        least, most, bases = int(draws.min()), int(draws.max()), self._bases[: self._counted, dataset]
        if least < bases[0]:
            known = f"one from {bases[0]} on"
            raise ConfigError("order", f"draw {least} of {self.names[dataset]}", known, FORGOTTEN)
        while bases[-1] <= most and len(bases) < len(self._starts):
            bases = self._bases_to(len(bases))[:, dataset]
        number = np.searchsorted(bases, draws, side="right") - 1
        for k in np.unique(number).tolist():
            chosen = number == k
            found[chosen] = positions_in(self._phase(k), self.block, dataset, draws[chosen] - bases[k])
        return found

    def longest_run(self) -> int:
        """The largest number of samples that `check_run` accepts, less than 2**62."""

        def exceeds(num_samples: int) -> bool:
            try:
                self.check_run(num_samples)
            except ConfigError:
                return True
            return False

        return bisect_left(range(1 << 62), True, lo=self.begin, key=exceeds) - 1

    def check_run(self, num_samples: int) -> None:
        """Raise ConfigError if the first `num_samples` samples would read a dataset more often than its max_epochs."""
        if not any(self.max_epochs):
            return
        counts, parts = self.counts(num_samples), dict[str, list[tuple[int, int]]]()
        for member, size, limit, count in zip(self.names, self.sizes, self.max_epochs, counts, strict=True):
            if limit is None or not count:
                continue
            name = member.partition("@")[0]
            read = parts.setdefault(name, [])
            read.append((count, size))
            if sum(count / size for count, size in read) < 0.999 * limit:
                continue  # exact numbers, which take longer, decide near the limit
            epochs = sum(Fraction(*part) for part in read)
            if epochs > Fraction(str(limit)):
                shown = " and ".join(f"{count} of its {size}" for count, size in read)
                raise ConfigError(
                    f"datasets.{name}.max_epochs",
                    f"a run of {num_samples} samples that reads {shown}, {float(epochs):.7g} epochs",
                    f"at most {limit} epochs",
                    f"lower datasets.{name}.weight or num_samples, or raise the limit",
                )


class Sequential(Mixture):
    """The order of evaluation: every window of every dataset once, the datasets one after the other by name."""

    num_samples: int

    def __init__(self, sizes: Sequence[int], names: Sequence[str]) -> None:
        some = [(name, size) for name, size in sorted(zip(names, sizes, strict=True)) if size] or [(names[0], 0)]
        all_of_them = Segment(at=0, weights=dict.fromkeys(dict(some), 1))
        super().__init__(sizes, names=names, segments=[all_of_them], shuffle=False)
        *starts, self.num_samples = accumulate((size for _, size in some), initial=0)
        self.segments = [Segment(at=at, weights={name: 1}) for at, (name, _) in zip(starts, some, strict=True)]
        self._first = {self._index[name]: at for at, (name, _) in zip(starts, some, strict=True)}

    def locate_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array]:
        """See Mixture."""
        t = as_positions(positions, self.num_samples, "sample index")
        starts = np.array([*self._first.values()], np.uint64)
        place = np.searchsorted(starts, t, side="right") - 1
        return np.array([*self._first])[place], t - starts[place]

    def counts(self, g: int) -> list[int]:
        """See Mixture."""
        return [min(max(g - self._first.get(k, g), 0), size) for k, size in enumerate(self.sizes)]

    def _positions(self, dataset: int, draws: U64Array) -> I64Array:
        return np.where(draws < self.sizes[dataset], draws.astype(np.int64) + self._first.get(dataset, 0), -1)

    def check_run(self, num_samples: int) -> None:
        """Raise ConfigError if there are fewer than `num_samples` samples."""
        if num_samples > self.num_samples:
            raise ConfigError(
                "num_samples",
                f"{num_samples} with order sequential",
                f"at most {self.num_samples}, which it has",
                f"set num_samples to {self.num_samples} or less, or omit it",
            )
