"""Mixtures in lanes (order version 2), for storage where a read at random is dear. Defined by reference.py's lanes."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptloader.base.checks import as_count
from conceptloader.base.lazy import lazy
from conceptloader.errors import ConfigError
from conceptloader.order import kernels, reference
from conceptloader.order.kernels import KernelTables
from conceptloader.order.mixture import Mixture
from conceptloader.order.partition import Partition
from conceptloader.order.permutation import MAX_N, as_positions, is_compiled
from conceptloader.order.reference import (
    LANES_VERSION,
    MAX_LANE_WINDOWS,
    MAX_LANES,
    MAX_OPEN,
    Lanes,
    PhaseOrder,
)

I64Array = npt.NDArray[np.int64]
U64Array = npt.NDArray[np.uint64]


class LaneMixture(Mixture):
    """A Mixture whose samples are dealt to lanes: sample g is sample g // count of lane g % count.

    Each lane is the same mixture with choices and a beginning of its own, and reads blocks of consecutive windows that
    no other lane reads in that epoch. Draw k of a dataset in lane v is its draw k * count + v, so that an epoch is
    every window once, as ever; but a lane may begin the next one while another still ends this one.

    Args:
        lanes: how many, windows of a block, blocks that a lane has open at a time in each dataset.
        plain: datasets whose windows are permuted one by one, as without lanes: small ones.
        arguments: those of Mixture, always with a shuffle.

    Raises:
        ConfigError: as Mixture; lanes out of range; fewer than a block for each lane.
    """

    def __init__(self, lanes: Lanes, *, plain: tuple[str, ...] = (), **arguments: Any) -> None:
        super().__init__(**arguments)
        for name, least, most in (("count", 1, MAX_LANES), ("windows", 2, MAX_LANE_WINDOWS), ("open", 1, MAX_OPEN)):
            if not least <= as_count(getattr(lanes, name), f"lanes: {name}") <= most:
                raise ConfigError(f"lanes: {name}: found {getattr(lanes, name)}, expected {least} to {most}")
        self.lanes, self.plain, self.order_version = lanes, tuple(plain), LANES_VERSION
        need = lanes.count * lanes.windows
        for name, size in zip(self.names, self.sizes, strict=True):
            if name not in self.plain and size < need:
                raise ConfigError(
                    f"datasets.{name}: found {size:,} windows, expected at least {need:,}, a block of {lanes.windows} "
                    f"for each of {lanes.count} lanes; lower `lanes` or `windows` of the order, or have its windows "
                    f"read one by one with datasets.{name}.lanes: false"
                )

    @lazy
    def _lane_phases(self) -> list[list[PhaseOrder]]:
        lanes = range(self.lanes.count)
        return [reference.lane_phases(self._phases, self.seed, self.block, lane, len(lanes)) for lane in lanes]

    @lazy
    def _bases(self) -> U64Array:
        """[lanes, phases, datasets], modulo 2**64, in which kernels calculate."""
        bases = [[phase.base for phase in phases] for phases in self._lane_phases]
        return np.array(bases, np.int64).astype(np.uint64)

    @lazy
    def kernel_tables(self) -> KernelTables | None:
        """None: kernels that read are told the windows."""
        return None

    @property
    def deviation(self) -> float:
        """As ever, but of a lane, which begins in the midst of a mixture; all together rarely come near their sum."""
        return 2 * super().deviation

    def _of_lane(self, lane: int, places: U64Array) -> tuple[I64Array, U64Array]:
        """(datasets, draws in the lane) of samples of a lane, rising."""
        datasets, draws = np.empty(places.shape, np.int64), np.empty(places.shape, np.uint64)
        if not is_compiled(places.size):
            found = reference.locate_many(self._lane_phases[lane], self.block, places.tolist())
            datasets[:], draws[:] = np.array(found, np.int64).reshape(-1, 2).T
            return datasets, draws
        _, _, roots, left, right, share, _, block = self._phase_arrays
        phases = self._lane_phases[lane]
        borders = [*np.searchsorted(places, np.array([phase.start for phase in phases], np.uint64)).tolist(), None]
        for number, phase in enumerate(phases):
            part = slice(borders[number], borders[number + 1])
            if len(datasets[part]):
                start = np.uint64((phase.start - phase.passed * self.block) % (1 << 64))
                key, one = np.array([phase.key], np.uint64), slice(number, number + 1)
                table = np.zeros(1, np.uint64), key, roots[one], left, right, share, self._bases[lane, one], block
                scratch = kernels.make_scratch(*self._room)
                kernels.locate_many(places[part] - start, datasets[part], draws[part], table, scratch)
        return datasets, draws

    def _by_lane(self, numbers: U64Array) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """(lane, indices into `numbers` of what is of it), where number modulo lanes is the lane."""
        lanes = numbers % np.uint64(self.lanes.count)
        order = np.lexsort((numbers, lanes))
        found = (part.tolist() for part in np.unique(lanes[order], return_index=True, return_counts=True))
        return ((lane, order[first : first + count]) for lane, first, count in zip(*found, strict=True))

    def locate_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array]:
        """See Mixture."""
        g = self.skips.global_indices(as_positions(positions, MAX_N, "sample index"))
        flat, count = g.reshape(-1), np.uint64(self.lanes.count)
        is_compiled(flat.size)
        datasets, draws = np.empty(flat.shape, np.int64), np.empty(flat.shape, np.uint64)
        for lane, chosen in self._by_lane(flat):
            datasets[chosen], found = self._of_lane(lane, flat[chosen] // count)
            draws[chosen] = found * count + np.uint64(lane)
        return datasets.reshape(g.shape), draws.reshape(g.shape)

    def sample_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array, U64Array]:
        """See Mixture."""
        datasets, draws = self.locate_many(positions)
        sizes = self._window_arrays[0][datasets]
        epochs, windows = draws // sizes, np.empty_like(draws)
        for member in np.unique(datasets).tolist():
            for epoch in np.unique(epochs[datasets == member]).tolist():
                chosen = (datasets == member) & (epochs == epoch)
                windows[chosen] = self._permute(member, epoch, draws[chosen] % sizes[chosen])
        return datasets, epochs, windows

    def _permute(self, member: int, epoch: int, numbers: U64Array, back: bool = False) -> U64Array:
        """Windows of places in an epoch of a dataset, or the other way round."""
        size, key = self.sizes[member], reference.epoch_key(self._keys[member], epoch)
        plain = self.names[member] in self.plain
        if not is_compiled(numbers.size):
            if plain:
                one: Any = (reference.permute, reference.unpermute)[back]
                return np.array([one(i, size, key) for i in numbers.tolist()], np.uint64)
            one = (reference.lane_permute, reference.lane_unpermute)[back]
            return np.array([one(i, size, key, self.lanes) for i in numbers.tolist()], np.uint64)
        from conceptloader.order.many.lane_kernels import lane_permute_many, permute_many

        out, tables = np.empty(len(numbers), np.uint64), np.empty((2, reference.TABLE_MAX + 2), np.uint64)
        if plain:
            permute_many(numbers, np.uint64(size), np.uint64(key), back, tables, out)
        else:
            lanes = tuple(map(np.uint64, (self.lanes.count, self.lanes.windows, self.lanes.open)))
            lane_permute_many(numbers, np.uint64(size), np.uint64(key), lanes, back, tables, out)
        return out

    def _lane_counts(self, g: int) -> npt.NDArray[np.uint64]:
        """Draws of each dataset in each lane before global sample g: [lanes, datasets]."""
        counts = np.zeros((self.lanes.count, len(self.sizes)), np.uint64)
        is_compiled(self.lanes.count * self.block)
        for lane, phases in enumerate(self._lane_phases):
            place = -((lane - g) // self.lanes.count)
            phase = [phase for phase in phases if phase.start <= place][-1]
            border = place - (place - phase.start) % self.block
            counts[lane] = phase.counts(border, self.block)
            if place > border:
                datasets, _ = self._of_lane(lane, np.arange(border, place, dtype=np.uint64))
                counts[lane] += np.bincount(datasets, minlength=len(self.sizes)).astype(np.uint64)
        return counts

    def counts(self, g: int) -> list[int]:
        """See Mixture."""
        found: list[int] = self._lane_counts(self._global(g)).sum(0).tolist()
        return found

    def drawn(self, g: int) -> list[int]:
        """See Mixture: where lanes are apart, more than were counted."""
        counts = self._lane_counts(self._global(g))
        count, lanes = np.uint64(self.lanes.count), np.arange(self.lanes.count, dtype=np.uint64)[:, None]
        found: list[int] = (
            np.where(counts > 0, (counts - np.uint64(1)) * count + lanes + np.uint64(1), 0).max(0).tolist()
        )
        return found

    def _position(self, dataset: int, draw: int) -> int | None:
        place, lane = divmod(draw, self.lanes.count)
        found = reference.position(self._lane_phases[lane], self.block, dataset, place)
        return None if found is None else found * self.lanes.count + lane

    def _draw(self, dataset: int, epoch: int, window: int) -> int:
        return int(self._draws(dataset, epoch, np.array([window], np.uint64))[0])

    def _draws(self, dataset: int, epoch: int, windows: U64Array) -> U64Array:
        draws = self._permute(dataset, epoch, windows, back=True)
        draws += np.uint64(epoch * self.sizes[dataset])
        return draws

    def _positions(self, dataset: int, draws: U64Array) -> I64Array:
        from conceptloader.order.many import inverse

        count, found = self.lanes.count, np.empty(draws.shape, np.int64)
        for lane, chosen in self._by_lane(draws):
            places = inverse.positions(self._lane_phases[lane], self.block, dataset, draws[chosen] // np.uint64(count))
            found[chosen] = np.where(places < 0, -1, places * count + lane)
        return found

    def io_block(self, dataset: int, window: int) -> tuple[int, int]:
        """[first, last + 1) of the windows that are read together with one."""
        size, lanes = self.sizes[dataset], self.lanes
        each = size // lanes.count
        full = (each - 1) // lanes.windows
        in_full, rest = full * lanes.count * lanes.windows, each - full * lanes.windows
        if self.names[dataset] in self.plain or window >= each * lanes.count:
            return window, window + 1
        start, width = (0, lanes.windows) if window < in_full else (in_full, rest)
        first = window - (window - start) % width
        return first, first + width

    def misfit(self, partition: Partition) -> str | None:
        """Why ranks share lanes, so that blocks are read by several of them; None if each has lanes of its own."""
        strided = partition.scheme == "strided"
        group, what = (partition.dp_size, "dp_size") if strided else (partition.group, "micro_batch_size * dp_size")
        if not self.lanes.count % group:
            return None
        near = math.ceil(self.lanes.count / group) * group
        return (
            f"order: lanes: found {self.lanes.count}, no multiple of {what} = {group}: ranks share lanes, and several "
            f"read the same blocks. The order is as configured; a run that begins anew may take {near} lanes"
        )

    def spec(self) -> dict[str, Any]:
        """See Mixture."""
        return {**super().spec(), "lanes": {**asdict(self.lanes), "plain": sorted(self.plain)}}
