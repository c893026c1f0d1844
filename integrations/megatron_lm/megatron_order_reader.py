"""A migrated split: Megatron's samples, pieces of documents, read with concepts from conceptloader's datasets."""

import copy
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from megatron.core.datasets.gpt_dataset import GPTDataset

from conceptloader.base.hashing import derive_key
from conceptloader.config import Config, View
from conceptloader.config.blend import columns_of, facts_of, open_datasets
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.loader.batch.layout import Batch, BatchLayout
from conceptloader.loader.batch.open import RANDOM, decide_layout
from conceptloader.loader.batch.reader import BatchReader
from conceptloader.order.progress.spec import Member, OrderSpec
from conceptloader.storage.urls import is_url

from .dataset import Reader, SampleRules
from .megatron_order import MappedBlend, MappedGPTDataset, MappingBuilder
from .options import wanted


def view_of(dataset: Dataset, dataset_id: int, seq_length: int, tracks: Iterable[str]) -> View:
    """What a layout looks at, and a reader of pieces of the dataset."""
    name, tokens = str(dataset_id), (0, seq_length + 1)
    member = Member(dataset=name, seq_len=seq_length, windows=1, stream_fingerprint="", token_range=tokens)
    return View(
        name=name, dataset_id=dataset_id, dataset=dataset, member=member, start=0,
        tracks=tuple(track for track in tracks if track in dataset.tracks),
    )  # fmt: skip


@dataclass(frozen=True)
class StockReader:
    """Batches of a StockSplit.

    Documents end where Megatron sees them end, at its end-of-document token: masks do not change mid-run.
    """

    split: "StockSplit"
    reader: BatchReader

    def read(self, samples: npt.NDArray[np.uint64]) -> Batch:
        """The batch of sample indices uint64 [B], with `pieces`: boundaries of the pieces in the B * S inputs."""
        size = self.split.rules.seq_length
        picks = [self.split.data.sample(index) for index in samples.tolist()]
        members, parts = np.array([k for k, _ in picks], np.int64), [pieces for _, pieces in picks]
        batch = self.reader.read(samples, picked=(members, np.zeros(len(picks), np.uint64)), ranges=parts)
        pieces = [0]
        for row, (_, each) in enumerate(picks):
            borders = np.cumsum([len(piece) for piece in each])
            pieces += [row * size + border for border in borders[borders < size].tolist()] + [(row + 1) * size]
        ends = batch["input_ids"] == self.split.eod
        if self.split.rules.eod_mask_loss:
            batch["loss_mask"][ends] = 0
        ends[:, -1] = True  # a sample always ends a sequence
        batch["cu_seqlens"] = np.concatenate(([0], np.flatnonzero(ends.reshape(-1)) + 1)).astype(np.int32)
        batch["pieces"] = np.array(pieces, np.int32)
        return batch


@dataclass(frozen=True)
class StockSplit:
    """As splits.OurSplit.

    data: what MappingBuilder built. in_blend: our datasets in its sequence; each reads the .bin file that Megatron
    read. eod: the end-of-document token.
    """

    data: MappedGPTDataset | MappedBlend
    in_blend: Sequence[Dataset]
    config: Config
    rules: SampleRules
    eod: int

    @property
    def datasets(self) -> dict[str, Dataset]:
        """By name, in the blend's sequence."""
        names = {os.path.abspath(self.config.datasets[name].path): name for name in self.config.names}
        return {names[os.path.abspath(dataset.path)]: dataset for dataset in self.in_blend}

    @property
    def spec(self) -> OrderSpec:
        """Its members are the datasets; what decides the order are Megatron's own hashes."""
        members = {}
        names = {dataset.path: name for name, dataset in self.datasets.items()}
        for ours, stock in zip(self.in_blend, self.data.datasets, strict=True):  # a path may be given twice
            name = names[ours.path]
            members[name] = Member(
                dataset=name,
                seq_len=self.rules.seq_length,
                windows=len(stock),
                stream_fingerprint=ours.stream_fingerprint,
                token_range=(0, ours.num_tokens),
                tracks_fingerprint=ours.tracks_fingerprint,
            )
        each = [stock.unique_description_hash for stock in self.data.datasets]
        blend = {"blend": self.data.unique_description_hash} if isinstance(self.data, MappedBlend) else {}
        extra = {"megatron": {"datasets": each, "samples": len(self.data), **blend}}
        columns = columns_of(self.config, self.datasets)
        return OrderSpec(
            seed=self.config.seed, block=1, members=members, order="megatron", extra=extra, columns=columns
        )

    def facts(self) -> dict[str, Any]:
        """As Blend.facts."""
        return facts_of(self.config, self.spec)

    @property
    def one_pass(self) -> int:
        return len(self.data)

    def check(self, num_samples: int) -> None:
        """Raise ConfigError beyond the end of Megatron's index files."""
        if num_samples > len(self.data):
            raise ConfigError(
                "num_samples",
                f"{num_samples}",
                f"at most {len(self.data)}, which Megatron's index files hold",
                f"lower num_samples to {len(self.data)}",
            )

    @property
    def layout(self) -> BatchLayout:
        """Arrays of batches with concepts."""
        return self.batches(concepts=True)[0]

    def batches(self, concepts: bool) -> tuple[BatchLayout, list[View]]:
        """Their arrays, and the views that they are read of.

        The pieces of a sample may hold more spans than a window of the stream.
        """
        config, length = wanted(self.config, concepts), self.rules.seq_length
        outputs = replace(config.outputs, cu_seqlens=False, mask_document_boundaries=False)
        given = config.tracks.items()
        tracks = {name: replace(one, max_spans=min(one.max_spans or length, length)) for name, one in given}
        views = [view_of(dataset, k, length, tracks) for k, dataset in enumerate(self.in_blend)]
        layout = decide_layout(views, length, outputs, tracks)
        return replace(layout, random_key=derive_key(config.seed, RANDOM)), views

    def reader(self, concepts: bool) -> Reader:
        """Reads batches with or without concepts."""
        order: Any = None  # samples are given by their pieces
        layout, views = self.batches(concepts)
        return StockReader(self, BatchReader(order, views, layout))


def open_taken_over(
    config: Config, dataset_config: Any, sizes: Sequence[int | None], rules: SampleRules, trains: bool
) -> tuple[StockSplit, StockSplit | None, StockSplit | None]:
    """Map the index files of a run of Megatron's: its training, validation and test split.

    Raises ConfigError if there is no --data-path, an index file is missing, a .bin file has no dataset of
    conceptloader, or there is no training split.
    """
    if not dataset_config.blend and not dataset_config.blend_per_split:
        raise ConfigError(
            "order: megatron",
            "no --data-path",
            "the data of the run so far",
            "pass the run's own --data-path, with its weights and --split",
        )
    cached = copy.copy(dataset_config)
    cached.path_to_cache = config.taken_over
    built = MappingBuilder(GPTDataset, list(sizes), lambda: True, cached).build()
    datasets = list(open_datasets(config).values())
    if any(dataset.runs is not None for dataset in datasets):
        raise ConfigError(
            "order: megatron", "a view", "whole datasets", "omit the view, and name its source under `datasets`"
        )
    if any(isinstance(data, list) for data in built):
        raise ConfigError(
            "order: megatron",
            "several validation sets",
            "at most one validation set",
            "omit --multiple-validation-sets",
        )

    def split_of(data: MappedGPTDataset | MappedBlend) -> StockSplit:
        found = [dataset_of(stock, datasets) for stock in data.datasets]
        return StockSplit(data, found, config, rules, dataset_config.tokenizer.eod)

    train, valid, test = (None if data is None else split_of(data) for data in built)
    if not trains:
        train = train or valid or test  # as load_configs
    if train is None:
        raise ConfigError(
            "order: megatron",
            "a run without a training split",
            "a training split",
            "pass the --split of the run so far",
        )
    return train, valid, test


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
        "order: megatron",
        f"no dataset of the configuration that reads all of {wanted_file} in place (they read {streams})",
        "a dataset of this file",
        "adopt it with `conceptloader adopt`",
    )


def place(path: str) -> str:
    """What two names of one file have in common. A copy of a file, such as an uploaded one, is another file."""
    return path if is_url(path) else os.path.realpath(path)
