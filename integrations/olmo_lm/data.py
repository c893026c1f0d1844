"""The data loader of an OLMo-core run. Its Trainer takes a rank's whole batch for a step, and saves between steps."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from conceptloader.base.packages import imported
from conceptloader.config import Blend, ConfigLike, open_blend
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.layout import BatchLayout
from conceptloader.loader.batch.open import batch_layout, open_reader
from conceptloader.loader.torch.collate import to_tensors
from conceptloader.loader.torch.trained import IGNORED, TrainedLoader, check_tensors, trained_labels

with imported("olmo_lm: OLMo-core", "pip install ai2-olmo-core", "ai2-olmo-core"):
    from olmo_core.data.collator import DataCollator
    from olmo_core.data.data_loader import DataLoaderConfig, TextDataLoaderBase
    from olmo_core.distributed.parallel import get_dp_process_group
    from olmo_core.distributed.utils import get_rank, get_world_size

_EPOCH, _TOKENS = "epoch", "tokens_processed"
_OWN = {"input_ids", "labels", "index", "instance_mask", "doc_lens", "max_doc_lens"}


class _Loader(TrainedLoader):
    entry = replace(TrainedLoader.entry, name="OLMo-core", keys=TrainedLoader.entry.keys | _OWN)


class ConceptDataLoader(TextDataLoaderBase):
    """The samples of a configuration, in batches of `global_batch_size` tokens, without end or in epochs.

    A batch has input_ids, labels (-100 where the loss mask is 0) and index: int64 [windows of this rank, ...]. Where
    documents are separate (packs, position_ids: document) or with outputs.cu_seqlens also doc_lens, int32 [windows,
    most documents], 0 beyond their number, and max_doc_lens, ints. And instance_mask, bool [windows], False if the
    whole batch has no label: OLMo-core would divide by 0, and counts windows without that mask as trained with a loss
    of 0.

    With order sequential an epoch is a pass; its last batch is padded with windows without labels.

    Args:
        config: As for make_dataloader.
        global_batch_size: In tokens, a multiple of seq_len x ranks. It may change between two steps, as by
            BatchSizeScheduler.
        epoch_samples: An epoch of the Trainer, in windows; None for none.
        model_inputs: Further tensors of a batch, which the model's forward gets by name.
        run_log: Directory of the checkpoints, to log this start there, and changes of the batch size.
        allow_changed: As for make_dataloader.
        check_ranks: False for a loader that not all processes of the run begin to read together. work_dir and others:
            OLMo-core's.

    Raises:
        ConfigError: An option breaks a rule.
        ResumeError: In load_state_dict, if the state does not fit.
    """

    def __init__(
        self,
        config: ConfigLike,
        *,
        global_batch_size: int,
        epoch_samples: int | None = None,
        model_inputs: tuple[str, ...] = (),
        run_log: str | None = None,
        allow_changed: Collection[str] = (),
        collator: Any = None,
        check_ranks: bool = True,
        **options: Any,
    ) -> None:
        collator = DataCollator(pad_token_id=0) if collator is None else collator
        super().__init__(collator=collator, global_batch_size=global_batch_size, **options)
        self._epoch: int | None = None
        self._global_batch_size: int = global_batch_size
        self.blend, self.model_inputs, self.epoch_samples = _with_documents(config), model_inputs, epoch_samples
        self._check(batch_layout(self.blend))
        self._passes = self.blend.order.num_samples is not None
        if self._passes and epoch_samples is not None:
            raise ConfigError(
                "epoch_samples",
                f"{epoch_samples} with order sequential",
                "an epoch that is a pass",
                "omit epoch_samples",
            )
        self._run_log = self._to_log = run_log  # the latter until this launch is logged
        windows = self._windows(global_batch_size)
        self.loader = _Loader(
            self.blend,
            dp_rank=self.dp_rank,
            dp_size=self.dp_world_size,
            micro_batch_size=windows // self.dp_world_size,
            global_batch_size=windows,
            epoch_samples=epoch_samples,
            last_batch="wrap" if self._passes else None,
            allow_changed=allow_changed,
            check_ranks=check_ranks and dist.is_initialized(),
        )

    def _check(self, layout: BatchLayout) -> None:
        check_tensors(self.model_inputs, layout, _Loader.entry)
        rows = {name for name, spec in layout.arrays(2).items() if spec.shape[0] == 2}
        for name in self.model_inputs:
            if name not in rows:
                raise ConfigError(
                    "model_inputs",
                    f"{name}, an array without a row for each window",
                    "arrays with a row for each window, since OLMo-core cuts batches into micro batches by rows",
                    f"set tracks.NAME.layout: padded for concepts, or omit {name} from model_inputs",
                )

    def _windows(self, tokens: int) -> int:
        """Of a step."""
        seq_len = self.blend.config.seq_len or 1
        if tokens % (seq_len * self.dp_world_size):
            raise ConfigError(
                "global_batch_size",
                f"{tokens} tokens",
                f"a multiple of seq_len {seq_len} x {self.dp_world_size} data-parallel ranks",
                f"set global_batch_size to a multiple of {seq_len * self.dp_world_size}",
            )
        return tokens // seq_len

    @property
    def global_batch_size(self) -> int:
        """Tokens of a step over all ranks."""
        return self._global_batch_size

    @global_batch_size.setter
    def global_batch_size(self, tokens: int) -> None:
        if tokens != self._global_batch_size:
            windows = self._windows(tokens)
            self.loader.resize(windows // self.dp_world_size, windows)
            self._global_batch_size = tokens
            self._count()

    def _count(self) -> None:
        self.batches_processed = self._in_epoch // self.loader.step_samples

    @property
    def _in_epoch(self) -> int:
        """Samples of the present epoch that are consumed: all of them, between its last batch and the next epoch."""
        before = 0 if self._passes else self.loader.run.count_start
        return self.loader.consumed_samples - before - ((self._epoch or 1) - 1) * (self.epoch_samples or 0)

    @property
    def total_batches(self) -> int | None:
        """Steps of an epoch; None without epochs."""
        return self.loader.run.micro_batches()

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Set the epoch. The order runs through all of them; only passes of a sequential order are alike."""
        last, self._epoch = self._epoch, (self._epoch or 0) + 1 if epoch is None else epoch
        if self._passes and last not in (None, self._epoch) and self._in_epoch == self.loader.plan.stop:
            self.loader.next_pass()
        behind, size = self.loader.consumed_samples - self.loader.run.count_start, self.epoch_samples
        if size is not None and self._epoch != last and not 0 <= self._in_epoch <= size:
            raise ConfigError(
                "reshuffle",
                f"epoch {self._epoch}",
                f"{behind // size + 1}: {behind} samples of epochs of {size} are consumed",
                "load the states of Trainer and data loader from one checkpoint",
            )

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        loader, size = self.loader, self.loader.plan.stop if self._passes else self.epoch_samples
        while size is None or self._in_epoch < size:
            if self._to_log is not None:
                loader.log_start(self._to_log, loader.plan.schedule.step_of(loader.consumed_samples))
                self._to_log = None
            tokens, before = self._global_batch_size, loader.consumed_samples
            for batch in loader:
                # OLMo-core trains a batch before it asks for the next one, and saves in between.
                loader.acknowledge()
                yield self._for_model(batch, before)
                if tokens != self._global_batch_size:
                    break
                before = loader.consumed_samples

    def _for_model(self, batch: Mapping[str, Any], before: int) -> dict[str, Any]:
        """What OLMo-core takes of a batch after this position."""
        extra = {name: batch[name] for name in self.model_inputs}
        if "sample_index" in batch:
            extra["index"] = batch["sample_index"]
        if "cu_seqlens" in batch:
            extra |= document_lengths(batch["cu_seqlens"], *batch["input_ids"].shape)
        labels = trained_labels(batch, self.loader, before)
        extra["instance_mask"] = (labels != IGNORED).any().expand(len(labels))
        return {"input_ids": batch["input_ids"], "labels": labels, **extra}

    def state_dict(self) -> dict[str, Any]:
        """What the Trainer saves: one string, and the epoch."""
        return {**self.loader.state_dict(), _EPOCH: self._epoch, _TOKENS: self.tokens_processed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where the Trainer was, on any number of ranks and with any global batch size."""
        fields = dict(state_dict)
        self._epoch, self.tokens_processed = fields.pop(_EPOCH, None), fields.pop(_TOKENS, 0)
        self.loader.load_state_dict(fields)
        self._to_log = self._run_log
        self._count()

    def get_mock_batch(self) -> dict[str, Any]:
        """The batch that comes next, for the Trainer's dry run. It does not count."""
        loader, before = self.loader, self.loader.consumed_samples
        share, end = loader.run.partition, loader.run.num_samples
        samples = share.offsets(self.dp_rank) + np.uint64(before)
        batch = open_reader(loader.blend).read(samples if end is None else samples % np.uint64(end))
        return self._for_model(to_tensors(batch), before)


def _with_documents(config: ConfigLike) -> Blend:
    """Its data, with cu_seqlens where documents are separate: models of OLMo-core take no positions."""
    blend = open_blend(config)
    outputs = blend.config.outputs
    if blend.config.separates_documents and not outputs.cu_seqlens:
        blend = replace(blend, config=replace(blend.config, outputs=replace(outputs, cu_seqlens=True)))
    return blend


def document_lengths(borders: torch.Tensor, windows: int, seq_len: int) -> dict[str, Any]:
    """doc_lens and max_doc_lens of a batch, from its cu_seqlens [n + 1]."""
    rows = borders[:-1].long() // seq_len
    counts = rows.bincount(minlength=windows)
    places = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows]
    lengths = torch.zeros(windows, int(counts.max()), dtype=torch.int32)
    lengths[rows, places] = borders.diff()
    return {"doc_lens": lengths, "max_doc_lens": lengths.amax(1).tolist()}


@DataLoaderConfig.register("conceptloader")
@dataclass
class ConceptDataLoaderConfig(DataLoaderConfig[ConceptDataLoader]):
    """A ConceptDataLoader in a configuration of OLMo-core. config: path of conceptloader's."""

    config: str
    global_batch_size: int
    work_dir: str
    epoch_samples: int | None = None
    model_inputs: tuple[str, ...] = ()
    run_log: str | None = None
    allow_changed: tuple[str, ...] = ()

    def build(self, *, mesh: Any = None, dp_process_group: Any = None, **_: Any) -> ConceptDataLoader:
        """The loader of this rank, among those of the data-parallel group."""
        if dp_process_group is None and mesh is not None:
            dp_process_group = get_dp_process_group(mesh)
        return ConceptDataLoader(
            self.config,
            global_batch_size=self.global_batch_size,
            epoch_samples=self.epoch_samples,
            model_inputs=self.model_inputs,
            run_log=self.run_log,
            allow_changed=self.allow_changed,
            work_dir=self.work_dir,
            dp_world_size=get_world_size(dp_process_group),
            dp_rank=get_rank(dp_process_group),
        )
