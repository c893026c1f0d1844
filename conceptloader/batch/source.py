"""Samples by their index, without torch: what grain reads for JAX, and the base of the dataset for torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conceptloader.base.checks import as_count
from conceptloader.batch.layout import Batch
from conceptloader.batch.open import open_reader
from conceptloader.batch.record import refuse_batch_log
from conceptloader.blend import ConfigLike, open_blend
from conceptloader.errors import ConfigError
from conceptloader.order.progress.state import OrderState


class SampleSource:
    """Samples of a configuration from one of the run on, by index.

    With `continue_from` in the configuration, index 0 is the sample at which that run is resumed: the key has to stay
    there. For workers of any start method: it pickles, and it may be used by many threads.

    Args:
        config: Path of a YAML file, or what was read from one.
        num_samples: What len() says; by default the samples of all datasets together.
    """

    def __init__(self, config: ConfigLike, num_samples: int | None = None) -> None:
        self.blend, self.count_start = open_blend(config).continued()
        refuse_batch_log(self.blend, type(self).__name__)
        self._reader = open_reader(self.blend)
        self.num_samples = sum(self.blend.order.sizes) if num_samples is None else as_count(num_samples, "num_samples")

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        config = self.blend.config
        shown = f"{len(self):,} samples of {config.seq_len:,} tokens"
        return f"<{type(self).__name__} of {', '.join(config.names)}: {shown}>"

    def read(self, indices: Sequence[int]) -> Batch:
        """The batch of these samples. Raises ConfigError for an invalid index."""
        if self.blend.config.has_controller:
            raise ConfigError(
                "mixing",
                f"found with a {type(self).__name__}, whose order is fixed",
                fix="omit it, or train with make_dataloader or an adapter that observes losses",
            )
        samples = [self.count_start + as_count(k, "sample index", 0) for k in indices]
        return self._reader.read(np.array(samples, np.uint64))


class GrainSource(SampleSource):
    """A RandomAccessDataSource of grain: samples as dicts of numpy arrays, in the order of the run.

    They are shuffled and blended already: grain slices them among processes and batches them, `source[rank::ranks]`.
    With `state_dict_at` in a checkpoint the run is resumed exactly, at any number of processes.

    Args:
        config: Path of a YAML file, or what was read from one.
        num_samples: End of the run; by default the samples of all datasets together.

    Raises:
        ConfigError: An option breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
    """

    def __len__(self) -> int:
        """Samples from index 0 to the end of the run."""
        return max(0, self.num_samples - self.count_start)

    def __getitem__(self, index: int) -> Batch:
        """The sample of an index, each array without the dimension of the batch."""
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Batch]:
        """Samples that grain asks for at once."""
        batch = self.read(indices)
        return [self._reader.layout.sample(batch, k) for k in range(len(indices))]

    def state_dict_at(self, samples: int) -> dict[str, str]:
        """The state when the first `samples` indices are trained, over all processes: that of every other trainer."""
        consumed = self.count_start + as_count(samples, "samples", 0)
        return self.blend.state(consumed).leaf()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let index 0 be the sample after those that `state` says are trained.

        Raises:
            ResumeError: If what determined these has changed, or the state is corrupt or was edited.
        """
        where = "source state"
        saved = OrderState.read(state, where)
        consumed = saved.between_steps(where)
        self.blend = self.blend.resume(saved.spec, consumed)
        self._reader, self.count_start = open_reader(self.blend), consumed
