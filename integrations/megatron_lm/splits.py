"""The samples of Megatron's splits in an order of conceptloader's: what is opened, and the arrays of batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conceptloader.base.hashing import derive_key
from conceptloader.config import Blend, Config, open_blend
from conceptloader.config.blend import open_datasets
from conceptloader.format.read.dataset import Dataset
from conceptloader.loader.batch.layout import BatchLayout
from conceptloader.loader.batch.open import RANDOM, decide_layout, open_reader
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.order.progress.spec import OrderSpec

from .dataset import SampleRules
from .options import for_evaluation, one_pass, wanted


@dataclass(frozen=True)
class OurSplit:
    """A split in conceptloader's order. Those migrated from Megatron are a megatron_order_reader.StockSplit.

    layout: arrays of batches with concepts, for the training and all of its evaluation alike; None until all are open.
    """

    blend: Blend
    rules: SampleRules
    layout: BatchLayout | None = None

    @property
    def spec(self) -> OrderSpec:
        return self.blend.spec

    @property
    def datasets(self) -> Mapping[str, Dataset]:
        return self.blend.datasets

    @property
    def one_pass(self) -> int:
        return sum(view.count for view in self.blend.views if view is not None)

    def check(self, num_samples: int) -> None:
        """Raise ConfigError if a run of `num_samples` samples is longer than the data may give."""
        self.blend.order.check_run(num_samples)

    def reader(self, concepts: bool) -> BatchReader:
        """Reads batches with or without concepts."""
        return open_reader(self.configured(concepts), layout=self.layout if concepts else None)

    def configured(self, concepts: bool) -> Blend:
        """The blend with the outputs that a reader needs."""
        config = wanted(self.blend.config, concepts)
        borders = config.outputs.mask_document_boundaries or self.rules.eod_mask_loss
        outputs = replace(config.outputs, cu_seqlens=self.rules.needs_borders, mask_document_boundaries=borders)
        return replace(self.blend, config=replace(config, outputs=outputs))


def open_evaluation(config: Config, size: int | None, several: bool, rules: SampleRules) -> list[OurSplit]:
    """The samples of an evaluation split, or, with `several`, of each of its datasets, in the configuration's sequence.

    size: None for one pass in order. Tracks of the training may be missing.
    """
    if several:
        configs = [one_pass(config, [name]) for name in config.datasets]  # Megatron names them by position
    else:
        configs = [one_pass(config) if size is None else for_evaluation(config)]
    opened = open_datasets(config)
    return [OurSplit(open_blend(one, {name: opened[name] for name in one.datasets}, some_tracks=True), rules)
            for one in configs]  # fmt: skip


def with_one_layout(splits: Sequence[OurSplit]) -> list[OurSplit]:
    """The training and all of its evaluation, with batches of the same arrays, which hold the samples of each."""
    train = splits[0]
    config = train.configured(concepts=True).config
    views = [view for split in splits for view in split.blend.views]
    layout = decide_layout(views, train.rules.seq_length, config.outputs, config.tracks)
    layout = replace(layout, random_key=derive_key(config.seed, RANDOM))
    return [replace(split, layout=layout) for split in splits]
