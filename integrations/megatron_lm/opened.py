"""One split with its files open: an order of ours, or one that is taken over from Megatron."""

import copy
import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from megatron.core.datasets.gpt_dataset import GPTDataset

from conceptloader.batch.layout import BatchLayout
from conceptloader.batch.open import batch_layout, open_reader
from conceptloader.blend import Blend, Config, open_blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.order.progress.resume import resume
from conceptloader.order.progress.spec import Member, OrderSpec
from conceptloader.storage.stores import is_url

from .dataset import Reader
from .resume import expect_no_past, read_state
from .samples import SampleRules
from .stock_reader import StockReader, joined_view
from .takeover import MappedGPTDataset, MappingBuilder, StockOrder


@dataclasses.dataclass(frozen=True)
class OurSplit:
    """A split in an order of ours."""

    blend: Blend
    rules: SampleRules

    @property
    def spec(self) -> OrderSpec:
        return self.blend.spec

    @property
    def seed(self) -> int:
        return self.blend.config.seed

    @property
    def one_pass(self) -> int:
        """Windows of all datasets together."""
        return sum(view.count for view in self.blend.views if view is not None)

    def check(self, num_samples: int) -> None:
        """Raise ConfigError if a run of `num_samples` samples is longer than the data may give."""
        self.blend.order.check_run(num_samples)

    def continued(self, saved: Mapping[str, Any] | None, consumed: int, accept: Collection[str]) -> "OurSplit":
        """The split with which a run goes on. Raises ResumeError if its past has changed."""
        if saved is None or not consumed:
            expect_no_past(self.spec, consumed, accept)
            return self
        return OurSplit(self.blend.resume(read_state(saved, consumed), consumed, allow_changed=accept), self.rules)

    def layout(self, concepts: bool) -> BatchLayout:
        """Arrays of a batch, with or without the concept tensors."""
        return batch_layout(self._blend(concepts))

    def reader(self, concepts: bool) -> Reader:
        """Reads samples by their index."""
        return open_reader(self._blend(concepts))

    def _blend(self, concepts: bool) -> Blend:
        config = wanted(self.blend.config, concepts)
        borders = config.outputs.loss_mask_borders or self.rules.eod_mask_loss
        outputs = dataclasses.replace(config.outputs, cu_seqlens=self.rules.needs_borders, loss_mask_borders=borders)
        return dataclasses.replace(self.blend, config=dataclasses.replace(config, outputs=outputs))


@dataclasses.dataclass(frozen=True)
class StockSplit:
    """A split of a run that is taken over. datasets: ours, in the sequence of Megatron's blend."""

    order: StockOrder
    datasets: Sequence[Dataset]
    config: Config
    rules: SampleRules
    eod: int

    @property
    def spec(self) -> OrderSpec:
        """Its members are the datasets; what decides the order are Megatron's own hashes."""
        names = {os.path.abspath(self.config.datasets[name].path): name for name in self.config.names}
        members = {}
        for ours, stock in zip(self.datasets, self.order.datasets, strict=True):
            name = names[os.path.abspath(ours.path)]
            members[name] = Member(
                dataset=name,
                seq_len=self.rules.seq_length,
                windows=len(stock),
                stream_fingerprint=ours.stream_fingerprint,
                token_range=(0, ours.num_tokens),
                tracks_fingerprint=ours.tracks_fingerprint,
            )
        extra = {"megatron": self.order.identity()}
        return OrderSpec(seed=self.config.seed, block=1, members=members, order="megatron", extra=extra)

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def one_pass(self) -> int:
        return len(self.order)

    def check(self, num_samples: int) -> None:
        """Raise ConfigError beyond the end of Megatron's index files."""
        if num_samples > len(self.order):
            raise ConfigError(f"a run of {num_samples} samples: Megatron's index files hold {len(self.order)}")

    def continued(self, saved: Mapping[str, Any] | None, consumed: int, accept: Collection[str]) -> "StockSplit":
        """Itself. Raises ResumeError if the checkpoint's past was another one."""
        if saved is None or not consumed:
            expect_no_past(self.spec, consumed, accept)
        else:
            resume(read_state(saved, consumed), self.spec, consumed, allow_changed=accept)
        return self

    def layout(self, concepts: bool) -> BatchLayout:
        """Arrays of a batch. The pieces of a sample may hold more spans than a window of the stream."""
        config, length = wanted(self.config, concepts), self.rules.seq_length
        outputs = dataclasses.replace(config.outputs, cu_seqlens=False, loss_mask_borders=False)
        tracks = {
            name: dataclasses.replace(options, max_spans=min(options.max_spans or length, length))
            for name, options in config.concepts.items()
        }
        views = [joined_view(dataset, k, length, tuple(tracks)) for k, dataset in enumerate(self.datasets)]
        return BatchLayout.of(views, length, outputs, tracks)

    def reader(self, concepts: bool) -> Reader:
        """Reads samples by their index."""
        return StockReader(self.order, self.datasets, self.layout(concepts), self.eod, self.rules.eod_mask_loss)


Opened = OurSplit | StockSplit


def wanted(config: Config, concepts: bool) -> Config:
    """The configuration without what Megatron makes itself, and without concepts where none are asked for.

    Raises ConfigError for position ids, which Megatron's command line decides.
    """
    if config.outputs.position_ids == "document":
        raise ConfigError("outputs.position_ids: found document; with Megatron say --reset-position-ids instead")
    outputs = dataclasses.replace(config.outputs, position_ids="off")
    if concepts:
        return dataclasses.replace(config, outputs=outputs)
    outputs = dataclasses.replace(outputs, document_ids=False, sample_index=False)
    return dataclasses.replace(config, outputs=outputs, concepts={})


def open_split(config: Config, rules: SampleRules) -> OurSplit:
    """Open a configuration in an order of ours."""
    return OurSplit(open_blend(config), rules)


def open_taken_over(config: Config, dataset_config: Any, sizes: Sequence[int | None], rules: SampleRules) -> list[Any]:
    """Map the index files of a run of Megatron's: a StockSplit or None for each of its splits.

    Raises ConfigError if there is no --data-path, an index file is missing, or a .bin file has no dataset of ours.
    """
    if not dataset_config.blend and not dataset_config.blend_per_split:
        raise ConfigError("order: megatron: found no --data-path; pass the run's own, with its weights and --split")
    cached = copy.copy(dataset_config)
    cached.path_to_cache = config.megatron_cache
    built = MappingBuilder(GPTDataset, list(sizes), lambda: True, cached).build()
    datasets = [
        open_dataset(config.datasets[name].path, roots=config.roots, check_files=config.loader.check_files)
        for name in config.names
    ]
    if config.quarantine:
        raise ConfigError("quarantine: not with order megatron, whose samples are not windows; leave it out")
    return [None if data is None else stock_split(data, datasets, config, dataset_config, rules) for data in built]


def stock_split(
    data: Any, datasets: Sequence[Dataset], config: Config, dataset_config: Any, rules: SampleRules
) -> StockSplit:
    """One mapped split with the datasets of ours that read its .bin files."""
    if isinstance(data, list):
        raise ConfigError("order: megatron: several validation sets are not supported; take the run over without them")
    order = StockOrder(data)
    found = [dataset_of(stock, datasets) for stock in order.datasets]
    return StockSplit(order, found, config, rules, dataset_config.tokenizer.eod)


def dataset_of(stock: MappedGPTDataset, datasets: Sequence[Dataset]) -> Dataset:
    """The dataset that reads the same .bin file, or object, from its first token to its last."""
    wanted_file = place(f"{stock.dataset_path}.bin")
    index = stock.dataset.index
    tokens = int(index.sequence_pointers[-1]) // index.dtype_size + int(index.sequence_lengths[-1])
    streams = {}
    for dataset in datasets:
        files = {place(dataset.files.path("stream.bin", shard)) for shard in range(dataset.num_shards)}
        if files == {wanted_file} and dataset.num_tokens == tokens:
            return dataset
        streams[dataset.path] = sorted(files)[:3]
    raise ConfigError(
        f"order: megatron: no dataset of the configuration reads all of {wanted_file} in place (they read {streams}); "
        "adopt it with `conceptloader adopt`"
    )


def place(path: str) -> str:
    """What two names of one file have in common. A copy of a file, such as an uploaded one, is another file."""
    return path if is_url(path) else os.path.realpath(path)
