"""The dataset of a NeMo Automodel run, for `_target_` in its YAML. Its losses know labels, and no masks or weights."""

from collections.abc import Collection, Sequence

from conceptloader.base.tested import warn_untested
from conceptloader.blend import ConfigLike
from conceptloader.errors import ConfigError
from conceptloader.run.entry import Entry
from conceptloader.torch.collate import Rows
from conceptloader.torch.dataset import SampleDataset
from conceptloader.torch.trained import trained_labels


class AutomodelSamples(SampleDataset):
    """A SampleDataset whose labels are -100 where the loss mask is 0.

    Raises:
        ConfigError: For loss weights.
    """

    entry = Entry(name="AutomodelSamples")

    def __init__(
        self, config: ConfigLike, num_samples: int | None = None, *, allow_changed: Collection[str] = ()
    ) -> None:
        warn_untested("nemo-automodel")
        super().__init__(config, num_samples, allow_changed=allow_changed)
        if self.blend.config.outputs.loss_weight is not None:
            raise ConfigError(
                "outputs.loss_weight",
                "weights, but the losses of Automodel take none: it would train as if all were 1",
                "no weights",
                "omit outputs.loss_weight, or use conceptloader.SampleDataset with a loss of your own",
            )

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """See SampleDataset."""
        rows = super().__getitems__(indices)
        rows.batch["labels"] = trained_labels(rows.batch)
        return rows
