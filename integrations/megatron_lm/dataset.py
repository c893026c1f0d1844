"""The dataset that Megatron's loader asks for samples, a MegatronDataset without an index.

GPTDataset (megatron/core/datasets/gpt_dataset.py, `__getitem__` and `_get_ltor_masks_and_position_ids`) looks for the
end-of-document token; here the boundaries are given, so that they may come from the document table, and every mask is
computed without a loop over documents. Where each document ends in that token, and holds no other one, both agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from megatron.core import parallel_state
from megatron.core.datasets.megatron_dataset import MegatronDataset
from torch.utils.data import DataLoader

from conceptloader.errors import ConfigError
from conceptloader.loader.batch.layout import Batch, BatchLayout
from conceptloader.loader.torch.collate import as_tensor
from conceptloader.loader.torch.micro_batches import MicroBatches
from conceptloader.order.partition import Partition

Sample = dict[str, torch.Tensor]
Ints = npt.NDArray[np.int64]

ENDLESS = 1 << 62  # samples of a dataset without an end, which must have a length
SFT = "conceptloader_sft"  # said of a GPTDatasetConfig whose dataset is an SFTDataset
STOCK_KEYS = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")
FROM_STOCK = frozenset({"tokens", "input_ids", "labels", "loss_mask", "position_ids"})  # they go by Megatron's names


@dataclass(frozen=True)
class Field:
    """One tensor of a sample.

    `shape` leaves the batch out; `along`: the dimension of a batch that runs over the tokens and is cut for context
    parallelism, 0 for none.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...] = ()
    along: int = 0


@dataclass(frozen=True, kw_only=True)
class SampleRules:
    """What Megatron's command line says about a sample."""

    seq_length: int
    reset_position_ids: bool = False  # --reset-position-ids
    reset_attention_mask: bool = False  # --reset-attention-mask
    eod_mask_loss: bool = False  # --eod-mask-loss
    create_attention_mask: bool = True  # not --no-create-attention-mask-in-dataloader
    inter_document_masking: bool = False  # --dataloader-inter-document-masking
    by_document: bool = False  # --sft: context parallelism cuts each document, not the whole sequence
    pad: int = -1  # token id never trained on; -1 if the tokenizer has none of its own

    @property
    def needs_borders(self) -> bool:
        """Whether a sample depends on where documents start."""
        return self.reset_position_ids or self.reset_attention_mask or self.inter_document_masking

    @classmethod
    def of(cls, config: Any, pad: int) -> "SampleRules":
        """From a GPTDatasetConfig; `pad` as MegatronDataset.__init__ chose it."""
        if not config.add_extra_token_to_sequence:
            raise ConfigError(
                "add_extra_token_to_sequence",
                "False",
                "True: a window holds the label of its last token",
                "omit add_extra_token_to_sequence",
            )
        new = hasattr(config, "dynamic_context_parallel")  # what `dev` calls it
        if config.dynamic_context_parallel if new else config.hybrid_context_parallel:
            option = "--dynamic-context-parallel" if new else "--hybrid-context-parallel"
            raise ConfigError(
                option, f"{option}, which needs samples of differing length", "samples of one length", f"omit {option}"
            )
        same = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
        rules: dict[str, Any] = {name: getattr(config, name) for name in same}
        sft = getattr(config, SFT, False)
        if sft and config.create_attention_mask:
            raise ConfigError(
                "--sft",
                "no --no-create-attention-mask-in-dataloader",
                "this option with --sft",
                "add --no-create-attention-mask-in-dataloader",
            )
        rules["inter_document_masking"] = sft or getattr(config, "inter_document_masking", False)
        return cls(seq_length=config.sequence_length, pad=pad, by_document=sft, **rules)


def fields_of(layout: BatchLayout) -> tuple[Field, ...]:
    """The fields of a conceptloader sample besides GPTDataset's keys.

    Raises ConfigError for `layout: ragged`: Megatron's loader stacks samples, so all must have the same shape.
    """
    for track in layout.tracks:
        if track.ragged:
            raise ConfigError(
                f"tracks.{track.name}.layout",
                str("records" if track.decoded else "ragged"),
                "padded: Megatron needs fixed shapes",
                f"set tracks.{track.name}.layout: padded",
            )
    fields = []
    for name, spec in layout.arrays(1).items():
        if name not in FROM_STOCK:
            # BlendedDataset's dataset_id is an int16.
            dtype = torch.int16 if name == "dataset_id" else as_tensor(np.empty(0, spec.dtype)).dtype
            fields.append(Field(name, dtype, spec.shape[1:], along=int(spec.along)))
    return tuple(fields)


def stock_fields(rules: SampleRules) -> tuple[Field, ...]:
    """The tensors of a sample that GPTDataset has too."""
    length = rules.seq_length
    types = {"tokens": torch.int64, "labels": torch.int64, "loss_mask": torch.float32, "position_ids": torch.int64}
    fields = [Field(name, dtype, (length,), along=1) for name, dtype in types.items()]
    if rules.inter_document_masking:
        fields += [Field("cu_seqlens", torch.int32, (length + 1,)), Field("max_seqlen", torch.int32)]
    elif rules.create_attention_mask:
        fields.append(Field("attention_mask", torch.bool, (1, length, length), along=2))
    return tuple(fields)


def make_batch(
    tokens: Ints, labels: Ints, loss_mask: npt.NDArray[np.float32], boundaries: Ints, rules: SampleRules
) -> Sample:
    """A micro batch of B samples of S = rules.seq_length tokens.

    Args:
        tokens: int64[B, S], inputs.
        labels: int64[B, S]; label j is the target after token j.
        loss_mask: float32[B, S], with --eod-mask-loss already applied.
        boundaries: ascending positions among the B * S inputs where a document, or with
            --dataloader-inter-document-masking a sequence, starts; those of samples may be among them or not.
        rules: what the trainer's arguments ask for.

    Returns:
        tokens, labels, position_ids int64[B, S] and loss_mask float32[B, S]; with inter_document_masking also
        cu_seqlens int32[B, S + 1] (padded with S) and max_seqlen int32[B]; else, if asked for, attention_mask
        bool[B, 1, S, S], True where attention is forbidden.
    """
    size, length = tokens.shape
    row, place = np.divmod(boundaries[boundaries % length > 0], length)
    origin = np.zeros((size, length), np.int64)
    if rules.inter_document_masking or rules.reset_position_ids:
        origin[row, place] = place
    arrays = {
        "tokens": np.where(tokens == rules.pad, 0, tokens),  # a padding id may lie outside the embedding
        "labels": np.where(labels == rules.pad, 0, labels),
        "loss_mask": np.where(labels == rules.pad, np.float32(0), loss_mask),
        "position_ids": np.arange(length) - np.maximum.accumulate(origin, axis=1),
    }
    if rules.inter_document_masking:
        arrays["cu_seqlens"] = np.full((size, length + 1), length, np.int32)
        arrays["cu_seqlens"][:, 0] = 0
        arrays["cu_seqlens"][row, np.arange(1, len(row) + 1) - np.searchsorted(row, row)] = place
        arrays["max_seqlen"] = np.diff(arrays["cu_seqlens"]).max(1)
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if rules.create_attention_mask and not rules.inter_document_masking:
        mask = torch.ones((length, length), dtype=torch.bool).triu_(1)
        document = torch.zeros((size, length), dtype=torch.int32)
        if rules.reset_attention_mask:
            document[torch.from_numpy(row), torch.from_numpy(place)] = 1
        document = document.cumsum(1, dtype=torch.int32)
        batch["attention_mask"] = (mask | (document[:, :, None] != document[:, None, :]))[:, None]
    return batch


class Reader(Protocol):
    """Reads batches: conceptloader.loader.batch's readers, and megatron_order.StockReader."""

    def read(self, samples: npt.NDArray[np.uint64]) -> Batch: ...


class SecondTraining:
    """Reads no training data: those of a builder after the one whose training data are the run's."""

    def read(self, samples: npt.NDArray[np.uint64]) -> Batch:
        """Raises ConfigError: a script may ask for them, but not train on them."""
        raise ConfigError(
            "training data",
            "those of a second builder",
            "those of the first builder that is asked for training samples: a run has one order and one state",
            "give the builder of validation data the size 0 for training, or call it after the other",
        )


class ConceptDataset(MegatronDataset):  # type: ignore[misc]
    """`num_samples` samples of an order, from sample `first` of it on. Building one reads no data.

    Args:
        reader: reads the order's samples with document boundaries (outputs.cu_seqlens) and, if
            --eod-mask-loss asks for it, with no loss across them.
        num_samples: its length.
        split: Megatron's Split, which decides how its loader treats it.
        config: Megatron's GPTDatasetConfig.
        fields: those of a sample besides GPTDataset's keys; none on a stage that gets no concepts.
        tokens: whether a sample has GPTDataset's keys at all. A middle stage with concepts does without.
        first: first sample of this data stage (--phase-transition-iterations).
        period: samples after which the order begins again, as an evaluation in order does.
    """

    def __init__(
        self,
        reader: Reader,
        num_samples: int,
        split: Any,
        config: Any,
        *,
        fields: Sequence[Field] = (),
        tokens: bool = True,
        first: int = 0,
        period: int = ENDLESS,
    ) -> None:
        super().__init__(reader, "conceptloader", None, num_samples, split, config)
        self.rules = SampleRules.of(config, self._pad_token_id)
        self.fields, self.tokens, self.first, self.period = tuple(fields), tokens, first, period

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        raise ConfigError(
            "ConceptDataset",
            "another build than by BlendedMegatronDatasetBuilder's own loop",
            "a start by conceptloader.launch",
            "start the script with python -m conceptloader.launch",
        )

    build_low_level_dataset = numel_low_level_dataset

    def __len__(self) -> int:
        return int(self.num_samples)

    def __getitem__(self, index: int | None) -> Sample:
        """Sample `index`, counted from `first`. None gives sample 0 without loss, for the padding of a batch."""
        if index is None:
            sample: Sample = self.__getitems__([0])[0]
            return {**sample, "loss_mask": torch.zeros_like(sample["loss_mask"])} if self.tokens else sample
        alone: Sample = self.__getitems__([index])[0]
        return alone

    def __getitems__(self, indices: Sequence[int]) -> "Samples":
        """The samples of a micro batch, read together."""
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"sample {index}: expected 0 <= index < {len(self)}")
        samples = np.array(indices, np.uint64) + np.uint64(self.first)
        batch = self.dataset.read(samples % np.uint64(self.period))
        made: Sample = {}
        if self.tokens:
            starts = np.asarray(batch.get("cu_seqlens", ()), np.int64)
            self._check_documents(samples, starts)
            pieces = batch.get("pieces", starts) if self.rules.inter_document_masking else starts
            made = make_batch(
                batch["input_ids"], batch["labels"], batch["loss_mask"], np.asarray(pieces, np.int64), self.rules
            )
        for field in self.fields:
            made[field.name] = as_tensor(np.asarray(batch[field.name])).to(field.dtype)
        if "dataset_id" in batch:
            made["dataset_id"] = as_tensor(batch["dataset_id"]).to(torch.int16)
        return Samples(made, len(indices))

    def _check_documents(self, samples: npt.NDArray[np.uint64], starts: Ints) -> None:
        parts, length = 2 * parallel_state.get_context_parallel_world_size(), self.rules.seq_length
        odd = starts[starts % length % parts > 0] if self.rules.by_document and parts > 2 else ()
        for number in (samples[at // length] for at in odd):
            raise ConfigError(
                "--sft",
                f"documents of other lengths, in sample {number}",
                f"multiples of {parts}, twice the context parallel size",
                f"build the dataset with --chat and --pad-to-multiple-of {parts}",
            )


class Samples(Sequence[Sample]):
    """The samples of a micro batch, also as one: `stacked` has their tensors [B, ...] as they were read."""

    def __init__(self, stacked: Sample, size: int) -> None:
        self.stacked, self._size = stacked, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, row: Any) -> Any:
        """The sample of a row."""
        return {name: tensor[row] for name, tensor in self.stacked.items()}

    @staticmethod
    def stack(samples: Any) -> Sample:
        """collate_fn of a DataLoader over a ConceptDataset."""
        return samples.stacked  # type: ignore[no-any-return]


def data_loader(dataset: ConceptDataset, micro_batch_size: int, consumed: int, num_workers: int) -> DataLoader[Any]:
    """A torch DataLoader over this data-parallel rank's samples from `consumed` on, as --dataloader-type single."""
    dp_size = parallel_state.get_data_parallel_world_size()
    partition = Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, scheme="contiguous")
    return DataLoader(
        dataset,
        batch_sampler=MicroBatches(partition, parallel_state.get_data_parallel_rank(), consumed, len(dataset)),
        collate_fn=Samples.stack,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=num_workers > 0,
    )
