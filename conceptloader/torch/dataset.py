"""A dataset for torch's own DataLoader."""

from collections.abc import Sequence

from torch.utils.data import Dataset

from conceptloader.batch.source import SampleSource
from conceptloader.torch.collate import Rows, TensorBatch, to_tensors


class SampleDataset(SampleSource, Dataset[TensorBatch]):
    """The samples of a configuration by the trainer's sample index: map-style, for torch's DataLoader.

    Index t is any integer from 0 on; the order is shuffled and blended already, so that a sampler only assigns indices
    (EpochSampler). With collate_fn=conceptloader.collate_fn a batch arrives as it was read.

    With `continue_from` in the configuration, index 0 is the sample at which that run is resumed: the key has to stay
    there. For workers of any start method: it pickles, and it may be used by many threads.

    Args:
        config: Path of a YAML file, or what was read from one.
        num_samples: What len() says; by default the samples of all datasets together.
        allow_changed: Names of differences from the past to accept, in `continue_from`.
    """

    def __getitem__(self, index: int) -> TensorBatch:
        sample: TensorBatch = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Samples by index; read and kept together for `collate_fn`. Raises ConfigError for an invalid index."""
        return Rows(self._reader.layout, to_tensors(self.read(indices)))
