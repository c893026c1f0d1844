"""The DataLoader of a data stage: micro batches of nanotron, for every position in the pipeline.

The rule of nanotron's PipelineBlock: of each key exactly one pipeline rank holds the tensor, all others hold a
TensorPointer to it, and every rank has the same keys. The owner is the stage that uses the key, so nothing is sent.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from conceptloader.base.strict import unknown
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.open import batch_layout, open_reader
from conceptloader.loader.torch.collate import as_tensor
from conceptloader.loader.torch.micro_batches import MicroBatches

from . import losses
from .data import StageDataset

logger = logging.getLogger(__name__)


def micro_batch_keys(
    first: int, last: int, stages: int, position_ids: bool, model_inputs: Mapping[str, str]
) -> dict[str, tuple[str, int]]:
    """Key of a micro batch -> (key of our batch that it comes from, the pipeline rank that holds it).

    first, last: pipeline ranks of the embedding and of the loss, of so many `stages`. Keys are Qwen2's with
    `position_ids`, else those of Llama and Starcoder2; and those of `model_inputs`.
    """
    keys = {
        "input_ids": ("input_ids", first),
        **({"position_ids": ("position_ids", first)} if position_ids else {"input_mask": ("input_ids", first)}),
        "label_ids": ("labels", last),
        "label_mask": ("loss_mask", last),
    }
    for name, stage in model_inputs.items():
        rank = {"first": first, "last": last}.get(stage, -1)
        rank = int(stage) if rank < 0 else rank
        if rank >= stages:
            raise ConfigError(
                "nanotron.model_inputs",
                f"pipeline rank {rank}",
                f"0 to {stages - 1} in this run",
                "set nanotron.model_inputs to a rank in this range",
            )
        keys.setdefault(name, (name, rank))
    return keys


@dataclass(frozen=True, kw_only=True)
class Collator:
    """For a DataLoader: a batch of conceptloader (None on ranks that own nothing) to nanotron's micro batch.

    keys: see micro_batch_keys. pp_rank, cp_rank, cp_size: of this process. cut: names in the batch of what runs along
    the inputs, of which context parallel ranks take their part.
    """

    keys: Mapping[str, tuple[str, int]]
    pp_rank: int
    cp_rank: int = 0
    cp_size: int = 1
    cut: frozenset[str] = frozenset()

    @property
    def owns_nothing(self) -> bool:
        """True on a rank that needs no data at all."""
        return all(owner != self.pp_rank for _, owner in self.keys.values())

    def __call__(self, batch: Any) -> dict[str, Any]:
        from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer

        return {
            name: self._tensor(name, source, batch) if owner == self.pp_rank else TensorPointer(group_rank=owner)
            for name, (source, owner) in self.keys.items()
        }

    def _tensor(self, name: str, source: str, batch: Mapping[str, Any]) -> torch.Tensor:
        if source not in batch:
            offered = [key for key, value in batch.items() if isinstance(value, np.ndarray)]
            raise unknown(f"nanotron.model_inputs.{name}", name, offered, "key of a batch")
        value = batch[source]
        if not isinstance(value, np.ndarray):
            raise ConfigError(
                f"nanotron.model_inputs.{name}",
                f"a {type(value).__name__}",
                "a tensor, as nanotron moves nothing else",
                f"remove {name} from nanotron.model_inputs",
            )
        if name == "input_mask":
            value = np.ones(value.shape, np.bool_)
        elif name == "label_mask":
            value = value != 0
        if self.cp_size > 1 and source in self.cut:
            part = value.shape[1] // self.cp_size
            value = value[:, self.cp_rank * part : (self.cp_rank + 1) * part]
        return as_tensor(np.ascontiguousarray(value))


class _Timed(DataLoader[Any]):
    """Tells the dataset how long each micro batch was waited for."""

    def __iter__(self) -> Any:
        start = time.monotonic()
        for batch in super().__iter__():
            self.dataset.took(time.monotonic() - start, batch["label_mask"])  # type: ignore[attr-defined]
            yield batch
            start = time.monotonic()


def make_dataloader(
    dataset: StageDataset,
    *,
    parallel_context: Any,
    input_pp_rank: int,
    output_pp_rank: int,
    num_workers: int,
    use_position_ids: bool = False,
    use_doc_masking: bool = False,
    dataloader_pin_memory: bool = True,
    **unused: Any,
) -> DataLoader[Any]:
    """An endless DataLoader of this rank's micro batches, from the dataset's position on. Takes what nanotron gives.

    Raises ConfigError for what the model, or this layout, cannot take.
    """
    run, context = dataset.run, parallel_context
    config = run.blend.config
    pp, cp = context.pp_pg, getattr(context, "cp_pg", None)  # nanotron 0.4 has no context parallelism
    dataset.num_workers = num_workers
    if run.mixing is not None:
        dataset.check_workers(f"mixing.{run.mixing.kind}")
    layout = batch_layout(run.blend)
    # position_ids stay whole: nanotron's ring attention derives the sequence lengths from them.
    along = {name for name, spec in layout.arrays(1).items() if spec.along}
    cut = frozenset({"input_ids", "labels", *along} - {"position_ids"})  # also those that are views of `tokens`
    model_inputs = dataset.options.model_inputs
    keys = micro_batch_keys(input_pp_rank, output_pp_rank, pp.size(), use_position_ids, model_inputs)
    collator = Collator(keys=keys, pp_rank=pp.rank(), cut=cut)
    if cp is not None:
        collator = Collator(keys=keys, pp_rank=pp.rank(), cut=cut, cp_rank=cp.rank(), cp_size=cp.size())
    if use_position_ids and config.outputs.position_ids == "off":
        raise ConfigError(
            "outputs.position_ids",
            "off",
            "window or document, since this model takes position ids",
            "set outputs.position_ids: window or document",
        )
    assert config.seq_len is not None
    if collator.cp_size > 1 and config.seq_len % (2 * collator.cp_size):
        raise ConfigError(
            "seq_len",
            f"{config.seq_len}",
            f"a multiple of 2 * context_parallel_size = {2 * collator.cp_size}",
            f"set tokens.sequence_length to a multiple of {2 * collator.cp_size}",
        )
    if config.packing is not None and not use_position_ids and context.world_pg.rank() == 0:
        logger.warning(
            "packing: this model takes no position ids, so that its attention crosses the documents of a pack; of "
            "nanotron's own models Qwen2 keeps them apart"
        )
    if use_doc_masking and not config.separates_documents:
        logger.warning(
            "the model's _use_doc_masking is on, but attention will cross documents: position ids count from the "
            "start of the window; set outputs.position_ids: document, and outputs.mask_document_boundaries: true"
        )
    group = getattr(context, "dp_cp_pg", context.dp_pg)
    first = pp.rank() == output_pp_rank and context.tp_pg.rank() == 0
    dataset.logs = first and group.rank() == 0
    # A mixture that learns needs the losses on all ranks. Those of one tensor-parallel group compute the same.
    computes = first and run.takes_losses
    if run.observes:
        dataset.losses = losses.StepLosses(config.names, context.world_pg, computes)
        dataset.losses.means.samples = [] if config.writes_losses else None
    losses.activate(dataset.losses if computes else None)
    reader = run.deal(open_reader(run.blend, dataset.dp_rank, layout))
    dataset.reader = None if collator.owns_nothing else reader
    return _Timed(
        dataset,
        batch_sampler=MicroBatches(run.partition, dataset.dp_rank, run.yielded),
        num_workers=num_workers if dataset.reader is not None else 0,
        collate_fn=collator,
        pin_memory=dataloader_pin_memory and dataset.reader is not None,
    )
