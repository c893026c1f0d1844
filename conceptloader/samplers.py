"""Samplers for torch's DataLoader: which index a rank reads when. Their state never moves by iterating."""

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.utils.data import Sampler

from .errors import ConfigError, ResumeError
from .order.checks import as_count
from .order.mixture import Mixture, Phase
from .order.partition import Partition
from .order.weights import exact_weights, tempered

STATE_VERSION = 1
_CHUNK = 1024


class EpochSampler(Sampler[int]):
    """Sampler epoch e is the positions [e * n, (e + 1) * n) of an endless order, dealt out rank by rank.

    Base of the samplers below; by itself it is the sampler of a SampleDataset, whose index is a position. Iterating
    changes nothing but the iterator: the epoch is what `set_epoch` says, and `set_skip` holds for the next iterator.

    num_samples: n. num_replicas, rank: data-parallel; by default those of the process group, or 1 and 0.
    drop_last: whether the epoch's last positions that do not go round are left out, or filled up from its first ones.
    """

    def __init__(
        self,
        num_samples: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
    ) -> None:
        group = dist.is_available() and dist.is_initialized()
        self.num_replicas = num_replicas if num_replicas is not None else dist.get_world_size() if group else 1
        self.rank = rank if rank is not None else dist.get_rank() if group else 0
        Partition(micro_batch_size=1, dp_size=self.num_replicas).check_rank(self.rank)
        self.epoch_size = as_count(num_samples, "num_samples")
        self.drop_last = drop_last
        self.num_samples = (self.epoch_size + (0 if drop_last else self.num_replicas - 1)) // self.num_replicas
        self.epoch = 0
        self._skip = 0
        self._border = 0  # the first epoch that no iterator was made for

    def __len__(self) -> int:
        """Indices of this rank in an epoch."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iterator."""
        self.epoch = as_count(epoch, "epoch", 0)

    def set_skip(self, skip: int) -> None:
        """Let the next iterator, and only that one, begin after this rank's first `skip` indices of the epoch."""
        self._skip = as_count(skip, "skip", 0)

    def __iter__(self) -> "PositionIterator":
        skip, self._skip = self._skip, 0
        self._border = max(self._border, self.epoch + 1)
        return PositionIterator(self, self.epoch, min(skip, self.num_samples))

    def indices(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Dataset indices of positions of the order."""
        return positions

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON, the same on every rank. How far an epoch has come is for the trainer, or the iterator, to say."""
        return {"version": STATE_VERSION, "epoch": self.epoch, "epoch_size": self.epoch_size, **self._own_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved epoch, on any number of ranks.

        Raises ResumeError if the sampler that was saved had another order.
        """
        wanted = {"version": STATE_VERSION, "epoch_size": self.epoch_size, **self._own_state()}
        for key, value in wanted.items():
            if key != "phases" and state.get(key) != value:
                raise ResumeError(
                    f"sampler state: {key}: saved {state.get(key)!r}, now {value!r}; resume with the saved one"
                )
        self.epoch = as_count(state.get("epoch"), "sampler state: epoch", 0)
        self._border = max(self._border, self.epoch + 1)
        self._load_own(state)

    def _own_state(self) -> dict[str, Any]:
        return {}

    def _load_own(self, state: Mapping[str, Any]) -> None:
        pass


class PositionIterator(Iterator[int]):
    """One rank's indices of one epoch. Its state, for torchdata's StatefulDataLoader, is how many it has given."""

    def __init__(self, sampler: EpochSampler, epoch: int, given: int) -> None:
        self._sampler = sampler
        self._epoch = epoch
        self._seek(given)

    def _seek(self, given: int) -> None:
        self._given = given
        self._chunk: list[int] = []
        self._at = 0

    def __next__(self) -> int:
        if self._at == len(self._chunk):
            self._fill()
        index = self._chunk[self._at]
        self._at += 1
        self._given += 1
        return index

    def _fill(self) -> None:
        sampler = self._sampler
        stop = min(self._given + _CHUNK, sampler.num_samples)
        if self._given >= stop:
            raise StopIteration
        offsets = np.arange(self._given, stop, dtype=np.uint64) * np.uint64(sampler.num_replicas)
        offsets = (offsets + np.uint64(sampler.rank)) % np.uint64(sampler.epoch_size)
        self._chunk = sampler.indices(offsets + np.uint64(self._epoch * sampler.epoch_size)).tolist()
        self._at = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "given": self._given}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._epoch = state["epoch"]
        self._seek(state["given"])


class MixtureSampler(EpochSampler):
    """Indices into the concatenation of several datasets, blended by weight, each dataset in a new order every epoch.

    Same arguments as KempnerForge's sampler of this name, but any prefix of the order keeps the weights, a dataset's
    samples are never repeated before all of them were drawn, and the order does not depend on the number of ranks.

    cumulative_sizes: [0, len(first), len(first) + len(second), ...]; an epoch has as many samples as all datasets.
    weights: 0 or more, not all 0. temperature: weights ** (1 / temperature). shuffle: False for storage order.
    """

    def __init__(
        self,
        cumulative_sizes: Sequence[int],
        weights: Sequence[float],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(cumulative_sizes[-1], num_replicas, rank, drop_last)
        self._offsets = np.array(cumulative_sizes[:-1], np.uint64)
        self._sizes = np.diff(np.array(cumulative_sizes, np.int64)).tolist()
        self._names = [f"{k:06d}" for k in range(len(self._sizes))]
        self.shuffle, self.seed = shuffle, seed
        self._phases = [Phase(start=0, weights=self._weights(weights, temperature))]
        self._build()

    def update_weights(self, weights: Sequence[float], temperature: float = 1.0) -> None:
        """Other weights from the next epoch border on: from the first epoch that no iterator was made for yet.

        What was drawn before is not drawn again. Calling it with the weights in force changes nothing.
        """
        phase = Phase(start=self._border * self.epoch_size, weights=self._weights(weights, temperature))
        kept = [p for p in self._phases if p.start < phase.start]
        if not kept or kept[-1].weights != phase.weights:
            kept.append(phase)
        self._phases = kept
        self._build()

    def indices(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        datasets, _, windows = self.order.sample_many(positions)
        found: npt.NDArray[np.uint64] = self._offsets[datasets] + windows
        return found

    def _weights(self, weights: Sequence[float], temperature: float) -> dict[str, int]:
        if len(weights) != len(self._names):
            raise ConfigError(f"weights: found {len(weights)}, expected one for each of {len(self._names)} datasets")
        named = {name: weight for name, weight in zip(self._names, weights, strict=True) if weight != 0}
        return exact_weights(tempered(named, temperature) if named else {}, "weights")

    def _build(self) -> None:
        drawn = {name for phase in self._phases for name in phase.weights}
        empty = [k for k, name in enumerate(self._names) if name in drawn and not self._sizes[k]]
        if empty:
            raise ConfigError(f"weights: datasets {empty} are empty, expected weight 0 for them")
        self.order = Mixture(
            sizes=[max(1, size) for size in self._sizes],
            names=self._names,
            seed=self.seed,
            phases=self._phases,
            shuffle=self.shuffle,
        )

    def _own_state(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "sizes": self._sizes,
            "order_version": self.order.order_version,
            "phases": [{"start": phase.start, "weights": dict(phase.weights)} for phase in self._phases],
        }

    def _load_own(self, state: Mapping[str, Any]) -> None:
        try:
            self._phases = [Phase(start=phase["start"], weights=phase["weights"]) for phase in state["phases"]]
            self._build()
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ResumeError(
                f"sampler state: phases: damaged ({type(error).__name__}: {error}); take another checkpoint"
            ) from error


class DistributedSampler(MixtureSampler):
    """In place of torch's sampler of this name: no list of indices, every epoch in an order unrelated to the others."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__([0, len(dataset)], [1], num_replicas, rank, shuffle, seed, drop_last)
        self.dataset = dataset
