"""Global sample index <-> (dataset, draw) <-> (dataset, epoch, window): the blend of datasets without index arrays."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from conceptloader.base.checks import as_integer
from conceptloader.base.lazy import lazy
from conceptloader.base.shown import Shown
from conceptloader.errors import ConfigError
from conceptloader.kernels import order as kernels
from conceptloader.kernels.kernel import I64Array, U64Array
from conceptloader.order import reference
from conceptloader.order.built import built_tree, counts_in, draws_of, joined, phase_arrays, positions_in
from conceptloader.order.permutation import MAX_N, as_positions
from conceptloader.order.phases import Phase, checked_phases, without_ramps
from conceptloader.order.reference import PhaseOrder
from conceptloader.order.skips import Skip, Skips
from conceptloader.order.weights import exact_weights

ORDER_VERSION = 1
MAX_BLOCK = 65_536
PHASES = 1024  # that stay laid out for kernels
FORGOTTEN = (
    "pass the run log, which has all weights (--run-log DIR): some were set while the run was running, and a "
    "checkpoint keeps only the last ones"
)


class Mixture(Shown):
    """The order of samples of a run: a pure function of its arguments, in O(datasets) memory.

    Within a phase, a tree over the weights assigns the samples (docs/order.md); inside each block of `block` samples
    the choices are permuted, so that no data-parallel rank is bound to one dataset; draw k of a dataset of n windows is
    window permutation_e(k mod n) of its epoch e = k // n. Everything has an exact inverse.

    The tree of many datasets takes long, so that of a phase is built when a sample from there on is asked for.

    Args:
        sizes: windows of each dataset, each 1..2**63.
        weights: one number above 0 per dataset, for the run from sample 0 on; None when `phases` starts at 0, and equal
            weights when there are no phases either.
        names: unique names. They, not their sequence, decide the order. Default "0", "1", ...
        seed: any integer.
        block: 1 (strict interleaving) to 65,536 samples.
        phases: changes of weights, with increasing `start`. As an attribute in integers, with those in place of a ramp.
        skips: jumps. With skips, every index below is the trainer's.
        max_epochs: per dataset, how often it may be read by `check_run`, or None.
        shuffle: False reads the windows of every dataset in storage order.
        drawn: start of a phase -> draws of each dataset before it, of the first phase and others where they are known.
            Indices and draws before the first phase raise ConfigError. By default that is the beginning of the run.

    Raises:
        ConfigError: naming the argument, what was found and what was expected.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float] | None = None,
        names: Sequence[str] | None = None,
        seed: int = 0,
        block: int = 64,
        phases: Sequence[Phase] | None = None,
        skips: Sequence[Skip] = (),
        max_epochs: Sequence[float | None] | None = None,
        shuffle: bool = True,
        drawn: Mapping[int, Sequence[int]] | None = None,
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
        self._check_members()
        self.skips = Skips(skips)
        self._drawn = drawn or {0: [0] * len(self.sizes)}
        self.begin = min(self._drawn)
        self._keys = [reference.dataset_key(self.seed, name) for name in self.names]
        exact = [replace(phase, weights=self._exact_weights(phase)) for phase in self._phase_list(weights, phases)]
        self.phases = [step for steps in without_ramps(exact) for step in steps]
        self._starts = [phase.start for phase in self.phases]
        self._begins = np.array(self._starts, np.uint64)
        self._bases = np.zeros((len(self.phases), len(self.sizes)), np.uint64)  # draws before each, of the first few
        self._bases[0] = self._drawn[self.begin]
        self._counted = 1  # of them
        # Phases as kernels have them, by number, and all in one.
        self._made: tuple[dict[int, kernels.Phases], kernels.KernelTables] = {}, kernels.NO_TABLES

    def __repr__(self) -> str:
        shown = [f"{name} ({size:,} windows)" for name, size in zip(self.names[:4], self.sizes, strict=False)]
        more = [f"{len(self.names) - 4:,} more"] if self.names[4:] else []
        return f"<Mixture of {', '.join(shown + more)}: seed {self.seed}, {len(self.phases)} phases>"

    def _check_members(self) -> None:
        if not self.sizes:
            raise ConfigError("sizes", "no datasets", "at least one dataset", "name a dataset under `datasets`")
        for what, values in (("names", self.names), ("max_epochs", self.max_epochs)):
            if len(values) != len(self.sizes):
                raise ConfigError(
                    what,
                    len(values),
                    f"a value for each of the {len(self.sizes)} sizes",
                    f"pass {len(self.sizes)} values as {what}",
                )
        repeated = sorted(name for name, times in Counter(self.names).items() if times > 1)
        if repeated:
            raise ConfigError(
                "names",
                f"a name twice: {repeated}",
                "a name of its own for each dataset",
                f"rename one of the datasets {repeated}",
            )
        for name, size, limit in zip(self.names, self.sizes, self.max_epochs, strict=True):
            if not 1 <= size <= MAX_N:
                raise ConfigError(f"sizes.{name}", f"{size} windows", "1 to 2**63", "lower seq_len, or widen its split")
            if limit is not None and not limit > 0:
                raise ConfigError(
                    f"max_epochs.{name}",
                    str(limit),
                    "a number above 0, or None for no limit",
                    "set max_epochs above 0, or omit it for no limit",
                )

    def _phase_list(self, weights: Sequence[float] | None, phases: Sequence[Phase] | None) -> list[Phase]:
        result = list(phases or ())
        if weights is not None or not result:
            given = [1] * len(self.sizes) if weights is None else list(weights)
            if len(given) != len(self.sizes):
                raise ConfigError(
                    "weights",
                    len(given),
                    f"a weight for each of the {len(self.sizes)} sizes",
                    f"pass {len(self.sizes)} weights",
                )
            result.insert(0, Phase(start=0, weights=dict(zip(self.names, given, strict=True))))
        hint = "omit the phase at 0: `weights` gives it" if weights is not None else ""
        return checked_phases(result, hint, self.begin)

    def _exact_weights(self, phase: Phase) -> dict[str, int]:
        where, known = f"phase at {phase.start}: weights" if phase.start else "weights", set(self.names)
        for name in phase.weights:
            if name not in known:
                raise ConfigError(
                    f"{where}.{name}",
                    "no such dataset",
                    f"one of {sorted(self.names)[:20]}",
                    f"rename {where}.{name} to one of these",
                )
        return exact_weights(phase.weights, where)

    @lazy
    def _index(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def _phase(self, k: int) -> PhaseOrder:
        phase, base = self.phases[k], self._bases_to(k)[k].tolist()
        weights = {name: int(phase.weights[name]) for name in sorted(phase.weights)}
        members, tree = [self._index[name] for name in weights], built_tree(tuple(weights.values()))
        return PhaseOrder(phase.start, weights, members, tree, reference.blocks_key(self.seed, phase.start), base)

    def _bases_to(self, k: int) -> U64Array:
        """The draws before each phase up to this one. Threads that come at the same time count the same."""
        for number in range(self._counted, k + 1):
            start = self._starts[number]
            self._bases[number] = self._drawn.get(start) or counts_in(self._phase(number - 1), start, self.block)
            self._counted = number + 1
        return self._bases[: k + 1]

    def _tables(self, g: U64Array) -> kernels.KernelTables:
        """What kernels need for these global samples. Phases of earlier ones stay, whose trees take long."""
        if (least := int(g.min())) < self.begin:
            raise ConfigError("order", f"global sample {least}", f"a sample from {self.begin} on", FORGOTTEN)
        numbers = np.bincount(np.searchsorted(self._begins, g.reshape(-1), side="right") - 1).nonzero()[0].tolist()
        made, tables = self._made
        if not made.keys() >= set(numbers):
            kept = {*made, *numbers} if len(made) + len(numbers) <= PHASES else numbers
            made = {k: made.get(k) or phase_arrays(self._phase(k), self.block) for k in sorted(kept)}
            tables = kernels.KernelTables(joined([*made.values()]), self._window_arrays, *self.skips.arrays, self._room)
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
        return self._tables(self.skips.global_indices(samples)) if self.shuffle and len(samples) else None

    @property
    def deviation(self) -> float:
        """No dataset's count is further than this from its weights at a block boundary (block 1: at any sample)."""
        return max(self._phase(k).tree.deviation for k in range(len(self.phases)))

    def locate_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array]:
        """(datasets int64, draws uint64) of an array of indices below 2**63, in its shape. The GIL is released."""
        g = self.skips.global_indices(as_positions(positions, MAX_N, "sample index"))
        datasets, draws = self._locate(g.reshape(-1))
        return datasets.reshape(g.shape), draws.reshape(g.shape)

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
        return self._counts(self.skips.global_index(g))

    def index_of_window(self, dataset: int, epoch: int, window: int) -> int | None:
        """The index at which a window is read in one epoch of its dataset, or None if the run never reads it.

        It never does if its dataset left, or if it is skipped.
        """
        if not (0 <= dataset < len(self.sizes) and 0 <= window < self.sizes[dataset] and epoch >= 0):
            raise ConfigError(
                "window",
                f"dataset {dataset}, epoch {epoch}, window {window}",
                f"a dataset from 0 to {len(self.sizes) - 1}, an epoch of 0 or more, and a window below the number of "
                f"windows of its dataset: {self.sizes[:20]}",
                "pass numbers in these ranges",
            )
        size, draw = self.sizes[dataset], epoch * self.sizes[dataset] + window
        if self.shuffle:
            draw = reference.draw_of(epoch, window, size, self._keys[dataset])
        g = self._positions(dataset, np.array([draw], np.uint64))
        t = int(self.skips.trainer_indices(g)[0])
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
        return self.skips.trainer_indices(self._positions(dataset, draws)).reshape(given.shape)

    def drawn_before(self, start: int) -> list[int]:
        """Draws of each dataset before the phase that starts at this global sample."""
        k = self._starts.index(start)
        return [int(draws) for draws in self._bases_to(k)[k]]

    # Of global samples and draws.

    def _locate(self, g: U64Array) -> tuple[I64Array, U64Array]:
        datasets, draws = np.empty(g.shape, np.int64), np.empty(g.shape, np.uint64)
        if len(g):
            kernels.locate_many(g, datasets, draws, self._tables(g).phases, np.empty(self._room, np.uint64))
        return datasets, draws

    def _counts(self, g: int) -> list[int]:
        return counts_in(self._phase(self._phase_at(g)), g, self.block)

    def _positions(self, dataset: int, draws: U64Array) -> I64Array:
        found = np.full(len(draws), -1, np.int64)
        if not len(draws):
            return found
        least, most, bases = int(draws.min()), int(draws.max()), self._bases[: self._counted, dataset]
        if least < bases[0]:
            known = f"one from {bases[0]} on"
            raise ConfigError("order", f"draw {least} of {self.names[dataset]}", known, FORGOTTEN)
        while bases[-1] <= most and len(bases) < len(self.phases):
            bases = self._bases_to(len(bases))[:, dataset]
        number = np.searchsorted(bases, draws, side="right") - 1
        for k in np.unique(number).tolist():
            chosen = number == k
            found[chosen] = positions_in(self._phase(k), self.block, dataset, draws[chosen] - bases[k])
        return found

    def _phase_at(self, g: int) -> int:
        if g < self.begin:
            raise ConfigError("order", f"global sample {g}", f"a sample from {self.begin} on", FORGOTTEN)
        return bisect_right(self._starts, g) - 1

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
        counts = self.counts(num_samples)
        for name, size, limit, count in zip(self.names, self.sizes, self.max_epochs, counts, strict=True):
            if limit is not None and count > math.floor(limit * size):
                raise ConfigError(
                    f"datasets.{name}.max_epochs",
                    f"a run of {num_samples} samples that reads {count} of its {size}, {count / size:.2f} epochs",
                    f"at most {limit} epochs",
                    f"lower datasets.{name}.weight or num_samples, or raise the limit",
                )
