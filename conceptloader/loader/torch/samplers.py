"""The sampler of torch's DataLoader: which index a rank reads when. Its state never moves by iterating."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from conceptloader.base.checks import as_count
from conceptloader.errors import ResumeError
from conceptloader.loader.torch.agreement import grouped
from conceptloader.order.partition import Partition
from conceptloader.order.progress.state import as_leaf, saved_count, unsealed
from conceptloader.run.ranks import launched, require_alone

logger = logging.getLogger(__name__)
_CHUNK = 1024


class EpochSampler(TorchDistributedSampler[int]):
    """Sampler epoch e is the positions [e * n, (e + 1) * n) of an endless order, assigned to ranks in turn.

    They are indices of a SampleDataset. Iterating changes nothing but the iterator: the epoch is what `set_epoch` says,
    and `set_skip` holds for the next iterator.
    To Fabric, Lightning and Ray it is a DistributedSampler, which they neither replace nor share among ranks once more.

    Args:
        num_samples: Positions of an epoch, over all ranks.
        num_replicas: Data-parallel ranks; by default the size of the process group, or 1 for a single process.
        rank: This one of them; by default that in the process group, or 0 for a single process.
        drop_last: Whether the epoch's last positions that do not go round are dropped, or padded from its first ones.
    """

    def __init__(
        self, num_samples: int, num_replicas: int | None = None, rank: int | None = None, drop_last: bool = False
    ) -> None:
        said, group = None not in (num_replicas, rank), grouped()
        if not said and group is None:
            require_alone(max(num_replicas or 1, launched()), "rank", "num_replicas")
        self.num_replicas = num_replicas if num_replicas is not None else group or 1
        self.rank = rank if rank is not None else 0 if group is None else dist.get_rank()
        Partition(micro_batch_size=1, dp_size=self.num_replicas).check_rank(self.rank)
        self.epoch_size = as_count(num_samples, "num_samples")
        self.drop_last = drop_last
        self.num_samples = self.share(self.epoch_size)
        self.epoch = 0
        self._skip = 0
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
        return PositionIterator(self, self.epoch, skip * self.num_replicas)

    def state_dict(self) -> dict[str, str]:
        """The same on every rank. How far an epoch has come is for the trainer, or the iterator, to say."""
        return as_leaf({"epoch": self.epoch, "epoch_size": self.epoch_size})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume a saved epoch, on any number of ranks.

        Raises:
            ResumeError: If the sampler that was saved had another order, or the state is corrupt.
        """
        where = "sampler state"
        self.epoch = self._saved(unsealed(state, where, "sampler"), where, ("epoch",))[0]

    def _saved(self, saved: Mapping[str, Any], where: str, keys: tuple[str, ...]) -> list[int]:
        """Numbers of a state. Raises ResumeError for one of epochs of another size, or without them."""
        size, *found = (saved_count(saved, key, where) for key in ("epoch_size", *keys))
        if size != self.epoch_size:
            raise ResumeError(
                f"{where}: epoch_size", f"{self.epoch_size}", f"{size}, as saved", f"pass num_samples={size}, as saved"
            )
        return found


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
            yield from (positions + np.uint64(self._epoch) * size).tolist()

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
        size, (epoch, consumed) = sampler.epoch_size, sampler._saved(saved, where, ("epoch", "consumed"))
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
