"""A dataset for torch's own DataLoader."""

from collections.abc import Sequence

import numpy as np
from torch.utils.data import Dataset

from conceptloader.base.checks import as_count
from conceptloader.batch.open import open_reader
from conceptloader.blend import ConfigLike, open_blend
from conceptloader.torch.collate import Rows, TensorBatch, to_tensors


class SampleDataset(Dataset[TensorBatch]):
    """The samples of a configuration by the trainer's sample index: map-style, for torch's DataLoader.

    Index t is any integer from 0 on; the order is shuffled and blended already, so that a sampler only assigns indices
    (EpochSampler). With `continue_from` in the configuration, index 0 is the sample at which that run is resumed: the
    key has to stay there. With collate_fn=conceptloader.collate_fn a batch arrives as it was read. For workers of any
    start method: it pickles, and it may be used by many threads.

    Args:
        config: Path of a YAML file, or what was read from one.
        num_samples: What len() says; by default the samples of all datasets together.
    """

    def __init__(self, config: ConfigLike, num_samples: int | None = None) -> None:
        self.blend, self.count_start = open_blend(config).continued()
        self._reader = open_reader(self.blend)
        self.num_samples = sum(self.blend.order.sizes) if num_samples is None else as_count(num_samples, "num_samples")

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        config = self.blend.config
        return f"<SampleDataset of {', '.join(config.names)}: {len(self):,} samples of {config.seq_len:,} tokens>"

    def __getitem__(self, index: int) -> TensorBatch:
        sample: TensorBatch = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Samples by index; read and kept together for `collate_fn`. Raises ConfigError for an invalid index."""
        samples = [self.count_start + as_count(k, "sample index", 0) for k in indices]
        batch = self._reader.read(np.array(samples, np.uint64))
        return Rows(self._reader.layout, to_tensors(batch))
