"""A loader for training loops with Accelerate: its checkpoints hold what was trained, by steps of accumulation."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import torch

from conceptloader.base.tested import warn_untested
from conceptloader.config import ConfigLike
from conceptloader.errors import ConfigError
from conceptloader.loader.torch.collate import TensorBatch
from conceptloader.loader.torch.trained import EvaluationLoader, TrainedLoader

logger = logging.getLogger(__name__)


class AcceleratedLoader(TrainedLoader):
    """The loader of this process. save_state and load_state of the accelerator keep it, prepared or not.

    A micro batch is trained when its `with accelerator.accumulate(model):` has ended, with the last one of a step; save
    outside of it. In the middle of a step the gradients are not saved: a resumed run reads its micro batches again.

    accelerator: an accelerate.Accelerator. micro_batch_size: samples of a process in one batch. The global batch is
        micro_batch_size x processes x gradient_accumulation_steps; give it too, and a run on other processes that
        would change it is refused.
    options: as for make_dataloader, without those of ranks.

    Raises:
        ConfigError: An option or argument breaks a rule.
    """

    entry = replace(TrainedLoader.entry, name="Accelerate")
    remedy = "Put `with accelerator.accumulate(model):` around the step, or call acknowledge() after each step"

    def __init__(
        self,
        accelerator: Any,
        config: ConfigLike,
        *,
        micro_batch_size: int,
        global_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        warn_untested("accelerate")
        self.accelerator = accelerator
        accumulate = accelerator.gradient_accumulation_steps
        if getattr(accelerator, "parallelism_config", None) is not None:
            raise ConfigError(
                "AcceleratedLoader",
                "a parallelism_config",
                "an Accelerator without it",
                "give a TrainedLoader the dp_rank and dp_size of its mesh, register it with "
                "register_for_checkpointing, and call acknowledge() after each step",
            )
        super().__init__(
            config,
            dp_rank=accelerator.process_index,
            dp_size=accelerator.num_processes,
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size or micro_batch_size * accelerator.num_processes * accumulate,
            device=accelerator.device if accelerator.device.type == "cuda" else None,
            **{"check_ranks": True, **options},
        )
        for name in ("split_batches", "dispatch_batches"):
            if getattr(accelerator.dataloader_config, name) and accelerator.is_main_process:
                logger.warning("DataLoaderConfiguration(%s): no effect here, each process reads its own batches", name)
        self._stands()
        self._accelerates, accelerator.accumulate = accelerator.accumulate, self._accumulate
        accelerator.register_for_checkpointing(self)

    def track(self, step: int, values: dict[str, float]) -> None:
        self.accelerator.log(values, step=step)

    def _stands(self) -> None:
        self._accumulated = 0  # micro batches from here on, counted by ourselves: `step` is reset by others
        accumulate = self.accelerator.gradient_accumulation_steps
        self.check_accumulation(accumulate, "Accelerator(gradient_accumulation_steps=...)")
        # Gradients of a step that was begun are gone, so that accumulation starts at its first micro batch.
        self.accelerator.step -= self.accelerator.step % accumulate

    @contextmanager
    def _accumulate(self, *models: Any) -> Iterator[None]:
        with self._accelerates(*models):
            self._count()
            yield

    def _count(self) -> None:
        """A micro batch goes through the model: its step has to end where the global batch does."""
        before = self.position_after(self._accumulated)
        self._accumulated += 1
        if before >= self.run.yielded:
            return  # no batch of this loader; consumed_samples raises
        position, accumulate = self.position_after(self._accumulated), self.micro_batches_per_step
        steps, done = self.accelerator.sync_gradients, self._accumulated % accumulate or accumulate
        if steps != (done == accumulate) and not (steps and position == self.plan.stop):
            raise ConfigError(
                "accelerator.step",
                f"{'an' if steps else 'no'} optimizer step after {done} micro batches of a global batch: Accelerate "
                "has reset its count, as at the end of another prepared DataLoader, or by free_memory()",
                f"an optimizer step after {accumulate}, the gradient_accumulation_steps that this loader began with",
                f"give the Accelerator a GradientAccumulationPlugin(num_steps={accumulate}, sync_with_dataloader=False)"
                ", call free_memory() only between steps, and resume from the last checkpoint",
            )
        if steps:
            self.run.acknowledge(max(self.run.trained, position))

    @property
    def consumed_samples(self) -> int:
        """Samples over all processes of the steps that the accelerator has accumulated."""
        if self.position_after(self._accumulated) > self.run.yielded:
            raise ConfigError(
                "accelerator.accumulate",
                f"{self._accumulated} blocks of accumulate()",
                "a block for each micro batch of this loader, which has yielded "
                f"{self.run.yielded - self.run.began} samples",
                "pass all models of a batch to one accumulate(first, second), and train from one loader",
            )
        return self.run.trained

    @property
    def begins_at(self) -> int:
        """After a break within a step its gradients are still there: the next loop takes the rest of its batches."""
        return max(self.consumed_samples, self.position_after(self._accumulated))

    def load_state_dict(self, state: Mapping[str, Any], **options: Any) -> None:
        """For load_state, which has restored the accelerator's count of micro batches."""
        super().load_state_dict(state, **options)
        self._stands()

    @property
    def dataset(self) -> NoReturn:
        """What accelerate's skip_first_batches asks for."""
        raise ConfigError(
            "skip_first_batches",
            "a loader that load_state has put where the checkpoint was",
            "the loader of a run that begins",
            "omit skip_first_batches",
        )


class AcceleratedEvaluation(EvaluationLoader):
    """An EvaluationLoader of this process. In its loop gather_for_metrics has each sample once, in their order.

    Processes may have different numbers of rows in the last batch, which the accelerator's own cannot gather; in the
    last step of a prepared DataLoader it cuts what others gather.

    Args:
        accelerator: an accelerate.Accelerator.
        config: As for EvaluationLoader.
        options: As for EvaluationLoader, without those of ranks.
    """

    def __init__(self, accelerator: Any, config: ConfigLike, **options: Any) -> None:
        self.accelerator = accelerator
        ranks = {"dp_rank": accelerator.process_index, "dp_size": accelerator.num_processes}
        device = accelerator.device if accelerator.device.type == "cuda" else None
        super().__init__(config, **ranks, **{"device": device, **options})
        self._share = self.loader.run.partition
        offsets = [self._share.offsets(rank) for rank in range(self._share.dp_size)]
        self._order = torch.from_numpy(np.concatenate(offsets).argsort())
        self._rows = self._samples = 0  # of this process and of all, in the batch of the loop
        self._gathers, accelerator.gather_for_metrics = accelerator.gather_for_metrics, self._gather

    def __iter__(self) -> Iterator[TensorBatch]:
        left = self.loader.run.num_samples or 0
        try:
            for batch in self.loader:
                self._rows, self._samples = len(batch["input_ids"]), min(left, self._share.group)
                left -= self._share.group
                yield batch
        finally:
            self._samples = 0

    def _gather(self, input_data: Any, use_gather_object: bool = False) -> Any:
        from accelerate import utils

        if not self._samples:
            return self._gathers(input_data, use_gather_object)
        try:
            utils.recursively_apply(lambda tensor: tensor, input_data, error_on_other_type=True)
        except TypeError:
            use_gather_object = True  # as the accelerator's own
        use_gather_object |= isinstance(input_data, list | tuple) and not input_data  # objects of no rows
        if not use_gather_object:
            return utils.recursively_apply(self._whole, input_data)
        if not isinstance(input_data, list | tuple | torch.Tensor) or len(input_data) != self._rows:
            raise ConfigError(
                "gather_for_metrics",
                f"a {type(input_data).__name__} of objects",
                f"a list with an object for each of the {self._rows} samples of the batch",
                "pass such lists one by one, or others to accelerate.utils.gather_object, by process",
            )
        gathered = utils.gather_object([*input_data, *[None] * (self._share.micro_batch_size - self._rows)])
        return [gathered[place] for place in self._order[: self._samples].tolist()]

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim():
            return self.accelerator.gather(tensor)  # type: ignore[no-any-return]
        if len(tensor) != self._rows:
            raise ConfigError(
                "gather_for_metrics",
                f"a tensor of {len(tensor)} rows",
                f"{self._rows}, one for each sample of the batch",
                "pass gather_for_metrics sums of the batch, or tensors that have its rows",
            )
        missing = tensor.new_zeros(self._share.micro_batch_size - self._rows, *tensor.shape[1:])
        filled = torch.cat([tensor, missing])
        gathered: torch.Tensor = self.accelerator.gather(filled)
        return gathered[self._order.to(gathered.device)][: self._samples]
