"""A dataset for torch's own DataLoader."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from torch.utils.data import Dataset

from conceptloader.loader.batch.source import SampleSource
from conceptloader.loader.torch.collate import Rows, TensorBatch, to_tensors
from conceptloader.order.progress.resume import ChangedPast, compare
from conceptloader.order.progress.state import OrderState


class SampleDataset(SampleSource, Dataset[TensorBatch]):
    """The samples of a configuration by the trainer's sample index: map-style, for torch's DataLoader.

    As a sequence it has `num_samples` of them. In batches, which a DataLoader reads, an index is any integer from 0 on;
    the order is shuffled and blended already, so that a sampler only assigns indices (EpochSampler). With
    collate_fn=conceptloader.collate_fn a batch arrives as it was read.

    With `continue_from` in the configuration, index 0 is the sample at which that run is resumed: the key has to stay
    there. For workers of any start method: it pickles, and it may be used by many threads.

    Args:
        config: Path of a YAML file, what was read from one, a Config, or a Blend.
        num_samples: What len() says; by default the samples of all datasets together.
        allow_changed: Names of differences from the past to accept, in `continue_from` and in load_state_dict.
    """

    @overload
    def __getitem__(self, index: int) -> TensorBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[TensorBatch]: ...
    def __getitem__(self, index: Any) -> Any:
        """The sample at an index, or those of a slice. Raises IndexError beyond len()."""
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        return self.__getitems__([self._position(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Samples by index; read and kept together for `collate_fn`. Raises ConfigError for an invalid index."""
        return Rows(self._reader.layout, to_tensors(self.read(indices)))

    def state_dict(self) -> dict[str, str]:
        """What determined the samples up to the last one read. A StatefulDataLoader saves it next to its sampler's."""
        spec = self.blend.spec.cut(self._stop)
        return OrderState(spec=spec, consumed=self._stop).leaf()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that these samples are those of the dataset that was saved; where to continue is the sampler's to say.

        Raises:
            ResumeError: If what determined them has changed, or the state is corrupt or was edited.
        """
        saved = OrderState.read(state, "dataset state")
        found = compare(saved.spec, self.blend.spec, saved.consumed)
        refused = [one for one in found if not one.is_allowed(self.run.allow_changed)]
        if refused:
            raise ChangedPast(refused, saved.consumed)
        self._stop = max(self._stop, saved.consumed)
