"""The DataLoader of a data stage: which samples this rank reads, and what it hands to nanotron."""

import itertools
import logging
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from conceptloader.batch.open import open_reader
from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition

from . import losses, patches
from .collator import Collator, Place, micro_batch_keys
from .run import Run
from .stage import StageDataset

logger = logging.getLogger(__name__)


def stage_dataloader(
    run: Run,
    dataset: StageDataset,
    *,
    micro_batch_size: int,
    num_workers: int,
    parallel_context: Any,
    input_pp_rank: int,
    output_pp_rank: int,
    use_position_ids: bool = False,
    use_doc_masking: bool | None = None,
    dataloader_pin_memory: bool = True,
    **unused: Any,
) -> DataLoader[Any]:
    """get_tb_dataloader for a data stage of ours."""
    if use_doc_masking and dataset.blend.config.outputs.position_ids != "document":
        logger.warning(
            "the model's _use_doc_masking is on, but attention will cross documents: position ids count from the start "
            "of the window; set outputs.position_ids: document, and outputs.loss_mask_borders: true"
        )
    if dataset.options.consume:
        patches.allow_equal_keys()
    return make_dataloader(
        dataset,
        micro_batch_size=micro_batch_size,
        parallel_context=parallel_context,
        input_pp_rank=input_pp_rank,
        output_pp_rank=output_pp_rank,
        position_ids=use_position_ids,
        num_workers=num_workers,
        pin_memory=dataloader_pin_memory,
    )


def make_dataloader(
    dataset: StageDataset,
    *,
    micro_batch_size: int,
    parallel_context: Any,
    input_pp_rank: int,
    output_pp_rank: int,
    position_ids: bool,
    num_workers: int,
    pin_memory: bool,
) -> DataLoader[Any]:
    """An endless DataLoader of this rank's micro batches, from the dataset's position on."""
    config = dataset.blend.config
    place = _place(parallel_context, input_pp_rank, output_pp_rank)
    collator = Collator(keys=micro_batch_keys(place, position_ids, dataset.options.consume), place=place)
    dataset.partition = Partition(micro_batch_size=micro_batch_size, dp_size=parallel_context.dp_pg.size())
    dataset.dp_rank = parallel_context.dp_pg.rank()
    dataset.reader = None if collator.owns_nothing else open_reader(dataset.blend, dataset.dp_rank)
    if position_ids and config.outputs.position_ids == "off":
        raise ConfigError("outputs.position_ids: off, but this model takes position ids; choose window or document")
    assert config.seq_len is not None
    if place.cp_size > 1 and config.seq_len % (2 * place.cp_size):
        raise ConfigError(
            f"seq_len: {config.seq_len} is not divisible by 2 * context_parallel_size = {2 * place.cp_size}"
        )
    patches.mend_losses()
    if dataset.options.loss_per_dataset and place.pp_rank == output_pp_rank:
        group = getattr(parallel_context, "dp_cp_pg", parallel_context.dp_pg)
        logs = group.rank() == 0 and parallel_context.tp_pg.rank() == 0
        dataset.loss_per_dataset = losses.LossPerDataset(config.names, group, logs)
    losses.activate(dataset.loss_per_dataset)
    return DataLoader(
        dataset,
        batch_sampler=MicroBatches(dataset.partition, dataset.dp_rank, dataset.consumed),
        num_workers=num_workers if dataset.reader is not None else 0,
        collate_fn=collator,
        pin_memory=pin_memory and dataset.reader is not None,
    )


def _place(parallel_context: Any, input_pp_rank: int, output_pp_rank: int) -> Place:
    cp = getattr(parallel_context, "cp_pg", None)
    return Place(
        pp_rank=parallel_context.pp_pg.rank(),
        pp_size=parallel_context.pp_pg.size(),
        input_pp_rank=input_pp_rank,
        output_pp_rank=output_pp_rank,
        cp_rank=cp.rank() if cp is not None else 0,
        cp_size=cp.size() if cp is not None else 1,
    )


class MicroBatches:
    """Endless lists of trainer sample indices: the micro batches of one data parallel rank from `consumed` on."""

    def __init__(self, partition: Partition, dp_rank: int, consumed: int) -> None:
        self.offsets = [int(offset) for offset in partition.offsets(dp_rank)]
        self.group, self.consumed = partition.group, consumed

    def __iter__(self) -> Iterator[list[int]]:
        for start in itertools.count(self.consumed, self.group):
            yield [start + offset for offset in self.offsets]
