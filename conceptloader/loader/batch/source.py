"""Samples by their index, without torch: what grain reads for JAX, and the base of the dataset for torch."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from conceptloader.base.checks import as_count, as_integer
from conceptloader.config import Blend, ConfigLike
from conceptloader.loader.batch.layout import Batch
from conceptloader.loader.batch.open import open_reader
from conceptloader.order.partition import Partition
from conceptloader.order.progress.state import OrderState
from conceptloader.run.entry import ANY, Entry
from conceptloader.run.training import TrainingRun

logger = logging.getLogger(__name__)
_JITTER = 64  # samples by which threads of a trainer may come out of order


class SampleSource:
    """Samples of a configuration from one of the run on, by index.

    With `continue_from` in the configuration, index 0 is the sample at which that run is resumed: the key has to stay
    there. For workers of any start method: it pickles, and it may be used by many threads.

    Args:
        config: Path of a YAML file, what was read from one, a Config, or a Blend.
        num_samples: What len() says; by default the samples of all datasets together.
        allow_changed: Names of differences from the past to accept, in `continue_from`.
    """

    entry: ClassVar[Entry] = Entry(name="SampleDataset")

    def __init__(
        self, config: ConfigLike, num_samples: int | None = None, *, allow_changed: Collection[str] = ()
    ) -> None:
        partition = Partition(micro_batch_size=1, dp_size=1)
        # What another front end reads, as ConceptTrainer does with its train_dataset, is checked there.
        self.run = TrainingRun(config, ANY, partition=partition, rule=None, allow_changed=allow_changed)
        self._checked, self._watches = False, self.blend.order.num_samples is None
        self._stop = 0  # one past the last sample read
        self._last = self._reads = self._back = 0  # read before, how many were, and of them before the one before
        self._reader = open_reader(self.blend)
        if os.environ.get("RANK", "0") == "0":
            self.blend.look_ahead(self.count_start)
        self.num_samples = sum(self.blend.order.sizes) if num_samples is None else as_count(num_samples, "num_samples")

    @property
    def blend(self) -> Blend:
        """The data, in their order."""
        return self.run.blend

    @property
    def count_start(self) -> int:
        """The sample of the run that is index 0."""
        return self.run.began

    def __len__(self) -> int:
        return self.num_samples

    def _position(self, index: Any) -> int:
        """An index in [-len, len), as a sequence has them, counted from 0."""
        place = as_integer(index, "sample index")
        if not -len(self) <= place < len(self):
            raise IndexError(f"sample {place} of {len(self)}; later epochs of an EpochSampler are read in batches")
        return place % len(self)

    def __repr__(self) -> str:
        config = self.blend.config
        shown = f"{len(self):,} samples of {config.seq_len:,} tokens"
        return f"<{type(self).__name__} of {', '.join(config.names)}: {shown}>"

    def _check(self) -> None:
        if not self._checked:
            self.entry.check(self.blend.config)
            self.run.require_known()
            self._checked = True

    def read(self, indices: Sequence[int]) -> Batch:
        """The batch of these samples. Raises ConfigError for an invalid index."""
        self._check()
        samples = [self.count_start + as_count(k, "sample index", 0) for k in indices]
        self._stop = max(self._stop, max(samples, default=-1) + 1)
        self.run.check_reads(self._stop)
        if self._watches:
            self._watch(samples)
        return self._reader.read(np.array(samples, np.uint64))

    def _watch(self, samples: Sequence[int]) -> None:
        """Warn, once, where a sampler shuffles samples that are in the order of the run already."""
        self._back += sum(before > after + _JITTER for before, after in pairwise([self._last, *samples]))
        self._reads, self._last = self._reads + len(samples), samples[-1] if samples else self._last
        if self._back < 8 or 4 * self._back < self._reads:
            return
        self._watches = False
        logger.warning(
            "%s: samples are asked for out of order, lastly %s: a sampler shuffles what is shuffled already, and steps "
            "do not have the samples that phases, trace and a resume count; use shuffle=False, or "
            "conceptloader.EpochSampler", type(self).__name__, list(samples)[:8],
        )  # fmt: skip


class GrainSource(SampleSource):
    """A RandomAccessDataSource of grain: samples as dicts of numpy arrays, in the order of the run.

    They are shuffled and blended already: grain slices them among processes and batches them, `source[rank::ranks]`.
    With `state_dict_at` in a checkpoint the run is resumed exactly, at any number of processes.

    Args:
        config: Path of a YAML file, what was read from one, a Config, or a Blend.
        num_samples: End of the run; by default the samples of all datasets together.
        allow_changed: Names of differences from the past to accept, in `continue_from` and in load_state_dict.

    Raises:
        ConfigError: An option breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
    """

    entry = Entry(name="GrainSource", lacks={"cu_seqlens": "it is of a batch, and grain makes batches itself"})

    def __init__(
        self, config: ConfigLike, num_samples: int | None = None, *, allow_changed: Collection[str] = ()
    ) -> None:
        super().__init__(config, num_samples, allow_changed=allow_changed)
        self._stop = num_samples or 0  # the first read checks max_epochs for all of them

    def __len__(self) -> int:
        """Samples from index 0 to the end of the run."""
        return max(0, self.num_samples - self.count_start)

    def __getitem__(self, index: int) -> Batch:
        """The sample of an index, each array without the dimension of the batch."""
        return self._getitems([self._position(index)])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Batch]:
        """Samples that grain asks for at once."""
        batch = self.read(indices)
        return [self._reader.layout.sample(batch, k) for k in range(len(indices))]

    def state_dict_at(self, samples: int) -> dict[str, str]:
        """The state when the first `samples` indices are trained, over all processes: that of every other trainer."""
        self._check()
        consumed = self.count_start + as_count(samples, "samples", 0)
        return self.run.state(consumed).leaf()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let index 0 be the sample after those that `state` says are trained.

        Raises:
            ResumeError: If what determined these has changed, or the state is corrupt or was edited.
        """
        where = "source state"
        saved = OrderState.read(state, where)
        saved.between_steps(where)
        self._reader = self.run.resume(saved, where, read=open_reader)
