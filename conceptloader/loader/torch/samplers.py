"""Samplers for torch's DataLoader: which index a rank reads when. Their state never moves by iterating."""

import logging
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from conceptloader.base.checks import as_count, as_integer
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.mixture import ORDER_VERSION, Mixture
from conceptloader.order.partition import Partition
from conceptloader.order.progress.state import Plain, as_leaf, saved_count, unsealed
from conceptloader.order.segments import Segment
from conceptloader.order.weights import tempered

logger = logging.getLogger(__name__)
_CHUNK = 1024


class EpochSampler(TorchDistributedSampler[int]):
    """Sampler epoch e is the positions [e * n, (e + 1) * n) of an endless order, assigned to ranks in turn.

    Base of the samplers below; by itself it is the sampler of a SampleDataset, whose index is a position. Iterating
    changes nothing but the iterator: the epoch is what `set_epoch` says, and `set_skip` holds for the next iterator.
    To Fabric, Lightning and Ray it is a DistributedSampler, which they neither replace nor share among ranks once more.

    Args:
        num_samples: Positions of an epoch, over all ranks.
        num_replicas: Data-parallel ranks; by default the size of the process group, or 1.
        rank: This one of them; by default that in the process group, or 0.
        drop_last: Whether the epoch's last positions that do not go round are dropped, or padded from its first ones.
    """

    def __init__(
        self, num_samples: int, num_replicas: int | None = None, rank: int | None = None, drop_last: bool = False
    ) -> None:
        group = dist.is_available() and dist.is_initialized()
        self.num_replicas = num_replicas if num_replicas is not None else dist.get_world_size() if group else 1
        self.rank = rank if rank is not None else dist.get_rank() if group else 0
        Partition(micro_batch_size=1, dp_size=self.num_replicas).check_rank(self.rank)
        self.epoch_size = as_count(num_samples, "num_samples")
        self.drop_last = drop_last
        self.num_samples = self.share(self.epoch_size)
        self.epoch = 0
        self._skip = 0
        self._border = 0  # the first epoch that no iterator was made for
        self._asked: int | None = None  # what set_epoch said since an index was given

    def __len__(self) -> int:
        """Indices of this rank in an epoch."""
        return self.num_samples

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.num_replicas}, epoch {self.epoch}"
        return f"<{type(self).__name__} of {self.epoch_size:,} samples: {where}>"

    def share(self, positions: int) -> int:
        """How many of so many positions, the last ones of an epoch, this rank takes."""
        return (positions + (0 if self.drop_last else self.num_replicas - 1)) // self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iterator, also of one that a StatefulDataLoader resumes."""
        self.epoch = self._asked = as_count(epoch, "epoch", 0)

    def set_skip(self, skip: int) -> None:
        """Let the next iterator, and only that one, begin after this rank's first `skip` indices of the epoch."""
        self._skip = as_count(skip, "skip", 0)

    def __iter__(self) -> "PositionIterator":
        skip, self._skip = self._skip, 0
        self._border = max(self._border, self.epoch + 1)
        return PositionIterator(self, self.epoch, skip * self.num_replicas)

    def indices(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Dataset indices of positions of the order."""
        return positions

    def state_dict(self) -> dict[str, str]:
        """The same on every rank. How far an epoch has come is for the trainer, or the iterator, to say."""
        return as_leaf({"epoch": self.epoch, "epoch_size": self.epoch_size, **self._own_state()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume a saved epoch, on any number of ranks.

        Raises:
            ResumeError: If the sampler that was saved had another order, or the state is corrupt.
        """
        saved = unsealed(state, "sampler state", "sampler")
        wanted = {"epoch_size": self.epoch_size, **self._own_state()}
        for key in sorted({*wanted, *saved} - {"epoch", "segments"}):
            old, new = saved.get(key), wanted.get(key)
            if old != new:
                raise ResumeError(
                    f"sampler state: {key}", f"{new!r}", f"{old!r}, as saved", f"pass {key}={old!r}, as saved"
                )
        epoch = saved_count(saved, "epoch", "sampler state")
        self._load_own(saved)
        self.epoch = epoch
        self._border = max(self._border, epoch + 1)

    def _own_state(self) -> Plain:
        return {}

    def _load_own(self, saved: Plain) -> None:
        pass


class PositionIterator(Iterator[int]):
    """One rank's indices of one epoch, from its position `first` on, which counts over all ranks.

    Its state, for torchdata's StatefulDataLoader, is a position over all ranks too: any number of ranks can resume
    there, and each position is assigned once.
    """

    def __init__(self, sampler: EpochSampler, epoch: int, first: int) -> None:
        self._sampler = sampler
        self._seek(epoch, first)

    def _seek(self, epoch: int, first: int) -> None:
        self._epoch, self._first, self._given = epoch, first, 0
        self._rest = self._indices()

    def __next__(self) -> int:
        index = next(self._rest)
        self._sampler._asked = None
        self._given += 1
        return index

    def _indices(self) -> Iterator[int]:
        """Many at once, since a call costs as much as a thousand indices in it."""
        sampler, first = self._sampler, self._first + self._sampler.rank
        size, ranks = np.uint64(sampler.epoch_size), sampler.num_replicas
        stop = sampler.share(max(0, sampler.epoch_size - self._first))
        for start in range(0, stop, _CHUNK):
            given = np.arange(start, min(start + _CHUNK, stop), dtype=np.uint64)
            positions = (given * np.uint64(ranks) + np.uint64(first)) % size
            yield from sampler.indices(positions + np.uint64(self._epoch) * size).tolist()

    def state_dict(self) -> dict[str, str]:
        """The same on every rank that has given as many."""
        size, consumed = self._sampler.epoch_size, self._first + self._given * self._sampler.num_replicas
        return as_leaf({"epoch": self._epoch, "epoch_size": size, "consumed": min(consumed, size)})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a saved position, on any number of ranks.

        A StatefulDataLoader hands states on when it is iterated, after the loop has called set_epoch: an epoch after
        the saved one is read from its beginning.

        Raises ResumeError if the state is corrupt, of an epoch of another size, or of one after that of set_epoch.
        """
        where, sampler = "sampler iterator state", self._sampler
        saved = unsealed(state, where, "sampler's iterator")
        epoch, size, consumed = (saved_count(saved, key, where) for key in ("epoch", "epoch_size", "consumed"))
        if size != sampler.epoch_size:
            raise ResumeError(
                f"{where}: epoch_size",
                f"{sampler.epoch_size}",
                f"{size}, as saved",
                f"pass epoch_size={size}, as saved",
            )
        asked = epoch if sampler._asked is None else sampler._asked
        if asked < epoch:
            raise ResumeError(
                where,
                f"epoch {epoch}, after set_epoch({asked})",
                f"an epoch up to {asked}",
                f"call set_epoch({epoch}) before the loop, as the run that was saved did",
            )
        if asked > epoch and consumed < size:
            logger.warning(
                "%s: set_epoch(%d) leaves %d samples of epoch %d unread", where, asked, size - consumed, epoch
            )
        if asked == epoch and consumed == size:
            logger.warning(
                "%s: it was saved at the end of epoch %d: without set_epoch(%d) the loop gets no sample, or that epoch "
                "again", where, epoch, epoch + 1,
            )  # fmt: skip
        sampler.epoch = asked
        self._seek(asked, consumed if asked == epoch else 0)


class MixtureSampler(EpochSampler):
    """Indices into the concatenation of several datasets, blended by weight, each dataset in a new order every epoch.

    Same arguments as KempnerForge's sampler of this name, but any prefix of the order keeps the weights, a dataset's
    samples are never repeated before all of them were drawn, and the order does not depend on the number of ranks.

    Args:
        cumulative_sizes: [0, len(first), len(first) + len(second), ...]; an epoch has as many samples as all datasets.
        weights: One for each dataset, 0 or more, not all 0.
        num_replicas: Data-parallel ranks; by default the size of the process group, or 1.
        rank: This one of them; by default that in the process group, or 0.
        shuffle: False for storage order.
        seed: Decides the order.
        drop_last: Whether the epoch's last positions that do not go round are dropped, or padded from its first ones.
        temperature: Weights ** (1 / temperature).
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
        self.shuffle, self.seed = bool(shuffle), as_integer(seed, "seed")
        self._build([Segment(at=0, weights=self._weights(weights, temperature))])

    def update_weights(self, weights: Sequence[float], temperature: float = 1.0) -> None:
        """Other weights from the next epoch boundary on: from the first epoch that no iterator was made for yet.

        What was drawn before is not drawn again. Calling it with the weights in force changes nothing.
        """
        new = Segment(at=self._border * self.epoch_size, weights=self._weights(weights, temperature))
        kept = [one for one in self.order.segments if one.at < new.at]
        self._build(kept if kept and kept[-1].weights == new.weights else [*kept, new])

    def indices(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        datasets, _, windows = self.order.sample_many(positions)
        return self._offsets[datasets] + windows

    def _weights(self, weights: Sequence[float], temperature: float) -> dict[str, float]:
        if len(weights) != len(self._names):
            raise ConfigError(
                "weights",
                len(weights),
                f"a weight for each of {len(self._names)} datasets",
                f"pass {len(self._names)} weights",
            )
        named = {name: weight for name, weight in zip(self._names, weights, strict=True) if weight != 0}
        return tempered(named, temperature) if named else {}

    def _build(self, segments: Sequence[Segment]) -> None:
        self.order = Mixture(
            sizes=self._sizes, names=self._names, seed=self.seed, segments=segments, shuffle=self.shuffle
        )

    def _own_state(self) -> Plain:
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "sizes": self._sizes,
            # Those that the run began with, which a sampler of others refuses; their ratios.
            "weights": [self.order.segments[0].weights.get(name, 0) for name in self._names],
            "order_version": ORDER_VERSION,
            "segments": [{"at": one.at, "weights": dict(one.weights)} for one in self.order.segments],
        }

    def _load_own(self, saved: Plain) -> None:
        try:
            self._build([Segment(at=one["at"], weights=one["weights"]) for one in saved["segments"]])
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ResumeError(
                "sampler state",
                f"corrupt segments ({type(error).__name__}: {error})",
                "the segments as saved",
                "pass load_state_dict the state of another checkpoint",
            ) from error


class DistributedSampler(MixtureSampler):
    """In place of torch's sampler of this name: no list of indices, every epoch in an order unrelated to the others.

    Args:
        dataset: Anything with a length.
        num_replicas: Data-parallel ranks; by default the size of the process group, or 1.
        rank: This one of them; by default that in the process group, or 0.
        shuffle: False for storage order.
        seed: Decides the order, together with the epoch.
        drop_last: Whether the epoch's last positions that do not go round are dropped, or padded from its first ones.
    """

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
        self.dataset = dataset  # type: ignore[assignment] # for torch's class a Dataset
