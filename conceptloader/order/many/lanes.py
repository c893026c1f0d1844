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
from conceptloader.order import reference
from conceptloader.order.kernels import I64Array, KernelTables, U64Array
from conceptloader.order.many.lane_kernels import locate_in_lanes, permute_many
from conceptloader.order.mixture import Mixture
from conceptloader.order.partition import Partition
from conceptloader.order.permutation import MAX_N, as_positions, is_compiled
from conceptloader.order.reference import LANES_VERSION, MAX_LANE_WINDOWS, MAX_LANES, MAX_OPEN, Lanes, PhaseOrder


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
    def _lane_arrays(self) -> Any:
        """Of locate_in_lanes. Some numbers are below 0, and kernels calculate modulo 2**64."""
        _, _, _, *trees, _, block = self._phase_arrays
        of_phases = [[(p.start, p.start - p.passed * self.block, p.key, *p.base) for p in q] for q in self._lane_phases]
        table = np.array([[[x % (1 << 64) for x in numbers] for numbers in lane] for lane in of_phases], np.uint64)
        starts, origins, keys, bases = (np.ascontiguousarray(table[..., k]) for k in (0, 1, 2, slice(3, None)))
        return starts, origins, keys, *trees, bases, block

    @lazy
    def _lane_numbers(self) -> tuple[np.uint64, np.uint64, np.uint64]:
        return np.uint64(self.lanes.count), np.uint64(self.lanes.windows), np.uint64(self.lanes.open)

    @lazy
    def _is_plain(self) -> npt.NDArray[np.bool_]:
        return np.array([name in self.plain for name in self.names])

    @lazy
    def kernel_tables(self) -> KernelTables | None:
        """None: kernels that read are told the windows."""
        return None

    @property
    def deviation(self) -> float:
        """As ever, but of a lane, which begins in the midst of a mixture; all together rarely come near their sum."""
        return 2 * super().deviation

    def _in_lanes(self, lanes: I64Array, places: U64Array) -> tuple[I64Array, U64Array]:
        """(datasets, draws in their lane) of samples of lanes; quickest where lanes, and places in each, rise."""
        datasets, draws = np.empty(places.shape, np.int64), np.empty(places.shape, np.uint64)
        if is_compiled(places.size):
            scratch = np.empty(self._room, np.uint64)
            locate_in_lanes(places, lanes, datasets, draws, self._lane_arrays, scratch)
            return datasets, draws
        for lane in np.unique(lanes).tolist():
            found = reference.locate_many(self._lane_phases[lane], self.block, places[lanes == lane].tolist())
            datasets[lanes == lane], draws[lanes == lane] = np.array(found, np.int64).reshape(-1, 2).T
        return datasets, draws

    def _by_lane(self, numbers: U64Array) -> Iterator[tuple[int, I64Array]]:
        """(lane, indices into `numbers` of what is of it), where number modulo lanes is the lane."""
        lanes = numbers % np.uint64(self.lanes.count)
        order = np.lexsort((numbers, lanes))
        found = (part.tolist() for part in np.unique(lanes[order], return_index=True, return_counts=True))
        return ((lane, order[first : first + count]) for lane, first, count in zip(*found, strict=True))

    def locate_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array]:
        g = self.skips.global_indices(as_positions(positions, MAX_N, "sample index"))
        flat, count = g.reshape(-1), np.uint64(self.lanes.count)
        lanes, places = flat % count, flat // count
        order = np.lexsort((places, lanes))
        datasets, draws = np.empty(flat.shape, np.int64), np.empty(flat.shape, np.uint64)
        datasets[order], draws[order] = self._in_lanes(lanes[order].astype(np.int64), places[order])
        return datasets.reshape(g.shape), (draws * count + lanes).reshape(g.shape)

    def sample_many(self, positions: npt.ArrayLike) -> tuple[I64Array, U64Array, U64Array]:
        datasets, draws = self.locate_many(positions)
        sizes = self._window_arrays[0][datasets]
        epochs = draws // sizes
        order = np.argsort(datasets, kind="stable", axis=None)
        windows, places = np.empty(draws.size, np.uint64), (draws % sizes).reshape(-1)[order]
        windows[order] = self._permute(datasets.reshape(-1)[order], epochs.reshape(-1)[order], places)
        return datasets, epochs, windows.reshape(draws.shape)

    def _permute(self, datasets: I64Array, epochs: U64Array, numbers: U64Array, back: bool = False) -> U64Array:
        """Windows of places in epochs of datasets, or the other way round; quickest where datasets rise."""
        out, tables = np.empty(len(numbers), np.uint64), np.empty((2, reference.TABLE_MAX + 2), np.uint64)
        if is_compiled(len(numbers)):
            known = *self._window_arrays[:2], self._is_plain
            permute_many(numbers, datasets, epochs, known, self._lane_numbers, back, tables, out)
            return out
        given = datasets.tolist(), epochs.tolist(), numbers.tolist()
        for x, (dataset, epoch, i) in enumerate(zip(*given, strict=True)):
            size, key = self.sizes[dataset], reference.epoch_key(self._keys[dataset], epoch)
            if self._is_plain[dataset]:
                out[x] = reference.unpermute(i, size, key) if back else reference.permute(i, size, key)
            else:
                one = reference.lane_unpermute if back else reference.lane_permute
                out[x] = one(i, size, key, self.lanes)
        return out

    def _lane_counts(self, g: int) -> U64Array:
        """Draws of each dataset in each lane before global sample g: [lanes, datasets]."""
        counts = np.zeros((self.lanes.count, len(self.sizes)), np.uint64)
        is_compiled(self.lanes.count * self.block)
        for lane, phases in enumerate(self._lane_phases):
            place = -((lane - g) // self.lanes.count)
            phase = [phase for phase in phases if phase.start <= place][-1]
            border = place - (place - phase.start) % self.block
            counts[lane] = phase.counts(border, self.block)
            if place > border:
                places = np.arange(border, place, dtype=np.uint64)
                datasets, _ = self._in_lanes(np.full(len(places), lane), places)
                counts[lane] += np.bincount(datasets, minlength=len(self.sizes)).astype(np.uint64)
        return counts

    def counts(self, g: int) -> list[int]:
        found: list[int] = self._lane_counts(self._global(g)).sum(0).tolist()
        return found

    def drawn(self, g: int) -> list[int]:
        """See Mixture: where lanes are apart, more than were counted."""
        counts, one = self._lane_counts(self._global(g)), np.uint64(1)
        count, lanes = np.uint64(self.lanes.count), np.arange(self.lanes.count, dtype=np.uint64)[:, None]
        found: list[int] = np.where(counts > 0, (counts - one) * count + lanes + one, 0).max(0).tolist()
        return found

    def _position(self, dataset: int, draw: int) -> int | None:
        place, lane = divmod(draw, self.lanes.count)
        found = reference.position(self._lane_phases[lane], self.block, dataset, place)
        return None if found is None else found * self.lanes.count + lane

    def _draw(self, dataset: int, epoch: int, window: int) -> int:
        return int(self._draws(dataset, epoch, np.array([window], np.uint64))[0])

    def _draws(self, dataset: int, epoch: int, windows: U64Array) -> U64Array:
        of = np.full(len(windows), dataset), np.full(len(windows), epoch, np.uint64)
        draws = self._permute(*of, windows, back=True)
        draws += np.uint64(epoch * self.sizes[dataset])
        return draws

    def _positions(self, dataset: int, draws: U64Array) -> I64Array:
        from conceptloader.order import inverse

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
        return {**super().spec(), "lanes": {**asdict(self.lanes), "plain": sorted(self.plain)}}
