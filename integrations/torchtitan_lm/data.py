"""The data loader of a torchtitan run or validation: batches of a configuration's windows, flat but for 0.3.0.

torchtitan takes the microbatches of a step from it and saves its state between steps, so that what was yielded is
what was trained. It loads a checkpoint leaf by leaf into the state of the new loader: ours is one string. It tells its
loader no step, but its logger, before it takes the first microbatch of one; there its validator says, too, that it is
one.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from conceptloader.base.packages import imported
from conceptloader.config import load_config, open_blend
from conceptloader.config.vocabulary import check_vocabulary
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.loader import LOADER
from conceptloader.loader.batch.open import batch_layout
from conceptloader.loader.torch.collate import TensorBatch
from conceptloader.loader.torch.loader import Loader
from conceptloader.loader.torch.trained import EVALUATION, check_tensors, trained_labels

_REMEDY = (
    "pip install torchtitan==0.3.0, or take its main branch of 2026-08-20 (73aed7f6c) or later, with the packages that "
    "it requires"
)
with imported("torchtitan: the base class of its loaders", _REMEDY, "torchtitan"):
    from torchtitan.observability import structured_logger as titan_log

    try:
        from torchtitan.components.data.loader import BaseDataLoader

        FLAT = True
    except ModuleNotFoundError:  # 0.3.0, whose batches have rows
        from torchtitan.components.dataloader import BaseDataLoader

        FLAT = False

logger = logging.getLogger(__name__)


class _Loader(Loader):
    entry = replace(LOADER, name="torchtitan", keys=frozenset({"attention_masks", "input", "positions"}))


class _Validation(Loader):
    entry = replace(EVALUATION, name="a validation of torchtitan", keys=_Loader.entry.keys)


class ConceptDataLoader(BaseDataLoader):
    """Yield what torchtitan's Trainer and Validator take: ({input, positions, further tensors}, labels).

    input, positions, labels: int64 [windows * seq_len], in torchtitan 0.3.0 [windows, seq_len]; labels are -100 where
    the loss mask is 0, and where the last microbatch of a sequential pass is padded. Positions begin at 0 with each
    window, or with each document if the configuration says position_ids: document, which is where attention is cut.
    Further tensors keep their shape, but for those with a value for each token, which are as flat as the input; forward
    gets them by name, on all pipeline stages.

    Raises:
        ConfigError: An option or argument breaks a rule.
        FormatError: A file is corrupt or not as its manifest says.
        ReadError: A file cannot be read.
        ResumeError: In load_state_dict, if the state does not fit.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What stands in a configuration of torchtitan."""

        config: str = ""
        """Path of conceptloader's configuration. Its seq_len may be omitted."""
        model_inputs: tuple[str, ...] = ()
        """Further tensors of a batch for the model's forward."""
        global_batch_size: int = 0
        """Windows of a train step, over all ranks: num_tokens_per_train_step / max_context_length. With it, data that
        end do so with a whole step; 0: a step is one microbatch of each rank. A run log needs the trainer's own."""
        num_samples: int | None = None
        """End of the run in windows, over all ranks."""
        repeat: bool = True
        """False: one pass over data that have an end. The validator sets it."""
        infinite: bool = True
        """What 0.3.0 calls repeat."""
        run_log: str = ""
        """Directory of the checkpoints, to log this start there; it is made where it is missing."""
        allow_changed: tuple[str, ...] = ()
        """Changes of what determined consumed samples that are accepted, by name."""

    def __init__(
        self,
        config: Any,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any = None,
        max_context_length: int = 0,
        num_tokens_per_batch: int = 0,
        seq_len: int = 0,
        local_batch_size: int = 0,
        **_: Any,
    ) -> None:
        if not FLAT:
            max_context_length, num_tokens_per_batch = seq_len, seq_len * local_batch_size
        if not num_tokens_per_batch:
            raise ConfigError(
                "torchtitan",
                "this version tells its loader another size of batches",
                "max_context_length and num_tokens_per_batch, or those of 0.3.0, seq_len and local_batch_size",
                _REMEDY,
            )
        if num_tokens_per_batch % max_context_length:
            raise ConfigError(
                "num_tokens_per_microbatch_per_dp_rank",
                str(num_tokens_per_batch),
                f"a multiple of max_context_length, {max_context_length}",
                f"set it to a multiple of max_context_length ({max_context_length})",
            )
        if not config.config:
            raise ConfigError(
                "dataloader.config", "nothing", "the path of a configuration of conceptloader", "set dataloader.config"
            )
        blend = open_blend(load_config(config.config).with_seq_len(max_context_length))
        if blend.config.outputs.position_ids == "off":
            raise ConfigError(
                f"{config.config}: outputs.position_ids",
                "off",
                "window or document, since torchtitan needs positions",
                "set outputs.position_ids: window or document",
            )
        check_tensors(config.model_inputs, batch_layout(blend), _Loader.entry, "dataloader.model_inputs")
        if "max_seqlen" in config.model_inputs:
            raise ConfigError(
                "dataloader.model_inputs",
                "max_seqlen, an int",
                "names of tensors",
                "omit max_seqlen from dataloader.model_inputs",
            )
        sequential = blend.order.num_samples is not None
        self._repeat = config.repeat and config.infinite
        if not self._repeat and not sequential and config.num_samples is None:
            raise ConfigError(
                config.config,
                "shuffled data, which have no end, for one pass (repeat=False, as by a validator with steps=-1)",
                "data with an end",
                "set order: sequential in the configuration, or num_samples",
            )
        size = tokenizer.get_vocab_size() if hasattr(tokenizer, "get_vocab_size") else None
        remedy = "set hf_assets_path to the tokenizer that the data were built with"
        check_vocabulary(blend.datasets, size, "torchtitan's tokenizer", remedy)
        micro = num_tokens_per_batch // max_context_length
        self._options = config
        self._loaded = False
        self._arguments: dict[str, Any] = {
            "dp_rank": dp_rank,
            "dp_size": dp_world_size,
            "micro_batch_size": micro,
            "global_batch_size": config.global_batch_size or None,
            "num_samples": config.num_samples,
            "last_batch": "wrap" if sequential else None,
            "allow_changed": config.allow_changed,
        }
        self.loader: Loader = _Loader(blend, **self._arguments)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        if self.loader.run.fresh:
            self._start()
        loader = self.loader
        while True:
            position = loader.begins_at
            for batch in loader:
                if self._options.run_log:
                    self._check_step(position)
                yield self._taken(batch, position)
                position += loader.run.partition.group
            if not (self._repeat and loader.run.passes):
                return

    def _steps_behind(self) -> int:
        """Steps that torchtitan has made before the one in whose midst it asks for a microbatch."""
        step = titan_log.get_step()
        if step is None and self._options.run_log and self.loader.consumed_samples:
            raise ConfigError(
                "dataloader.run_log",
                f"no step of torchtitan's structured_logger at {self.loader.consumed_samples} samples",
                "the step of the training loop",
                "call structured_logger.set_step before each step, as Trainer.train does",
            )
        return 0 if step is None else step - 1

    def _start(self) -> None:
        # The validator sets this tag before it builds its loader; the next step of a training clears it.
        if "eval" in titan_log.get_step_tags():
            if self._options.run_log:
                raise ConfigError(
                    "dataloader.run_log",
                    "a run log in a validation, which is no run",
                    "no run log",
                    "omit dataloader.run_log in the validator",
                )
            self.loader = _Validation(self.loader.blend, **self._arguments)
            return
        behind = self._steps_behind()
        self.loader.check_ranks = dist.is_initialized()
        if behind and not self._loaded and not self.loader.dp_rank:
            logger.warning(
                "torchtitan resumes at step %d, but its checkpoint's state was not given to this loader, which begins "
                "at the first sample: what was trained before is trained again. Take dataloader out of "
                "checkpoint.exclude_from_loading unless that is meant",
                behind,
            )
        if self._options.run_log:
            self.loader.log_start(self._options.run_log, behind)

    def _check_step(self, sample: int) -> None:
        now, schedule = titan_log.get_step(), self.loader.plan.schedule
        planned = schedule.step_of(sample)
        if now is not None and planned != now - 1:
            raise ConfigError(
                "dataloader.global_batch_size",
                f"{schedule.batch_size(sample)} windows a step, but torchtitan takes sample {sample} in step {now - 1}",
                f"step {planned}: the run log would name others for a step",
                "set training.num_tokens_per_train_step / training.max_context_length",
            )

    def _taken(self, batch: TensorBatch, position: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        labels = trained_labels(batch, self.loader, position)
        inputs = {"input": batch["input_ids"], "positions": batch["position_ids"]}
        for name in self._options.model_inputs:
            inputs[name] = batch[name]
        if FLAT:
            inputs = {k: v.flatten() if v.shape == labels.shape else v for k, v in inputs.items()}
            labels = labels.flatten()
        return inputs, labels

    def state_dict(self) -> dict[str, Any]:
        """One string, equal on all ranks."""
        return dict(self.loader.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume where the state was saved, on any number of ranks. Nothing happens with an empty one."""
        if state_dict:
            self._loaded, loader = True, self.loader
            loader.load_state_dict(state_dict)
            if self._repeat and loader.run.passes and loader.consumed_samples == loader.plan.stop:
                loader.run.next_pass()

    def close(self) -> None:
        self.loader.close()
