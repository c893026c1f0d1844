"""What install() puts under run_train.py: the patches, and the run that they serve. Nothing else here patches nanotron.

Written against nanotron main, commit 2411b022 (April 2026).
"""

import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conceptloader.base.patching import Patch
from conceptloader.base.tested import warn_untested
from conceptloader.config import open_blend
from conceptloader.errors import ConfigError
from conceptloader.order.progress.runlog import RunLog

from .batches import make_dataloader
from .data import StageDataset, open_stage
from .losses import NANOTRON
from .options import NO_TOKENIZER, StandIn, is_ours, no_tokenizer, replace_in
from .state import State, check_layout

logger = logging.getLogger(__name__)

Function = Callable[..., Any]


@dataclass
class Run:
    """The run that nanotron's trainer starts; its methods stand for the functions of those names.

    config: nanotron's own, the trainer's object; None before. saved: our state in the checkpoint it resumes from, if
    any. dataset: the data stage that is trained, once run_train.py has asked for it; None for a stage of another type.
    nanosets: read those of a configuration in which nothing is of our type.
    """

    config: Any = None
    saved: State | None = None
    dataset: StageDataset | None = None
    nanosets: bool = False

    def start(self, config: Any, checkpoint: Any) -> None:
        """The trainer was given `config` and resumes from the folder `checkpoint`, or from nothing (None)."""
        self.config, self.saved, self.dataset = config, None, None
        if checkpoint is None:
            return
        if self.is_ours:
            check_layout(Path(checkpoint), config)
        if config.checkpoints.load_lr_scheduler:
            self.saved = State.read(Path(checkpoint))
        elif self.is_ours:
            logger.warning(
                "checkpoints.load_lr_scheduler is false: nanotron takes only the weights from %s and starts at step 1 "
                "again, so the data start at sample 0 again and EVERYTHING READ BEFORE THE CHECKPOINT IS READ AGAIN. "
                "Set it to true to continue the run.",
                checkpoint,
            )

    @property
    def is_ours(self) -> bool:
        """Whether the stage that nanotron trains, always the last one it is given, is of our type."""
        stages = [] if self.config is None else self.config.data_stages
        return bool(stages) and is_ours(stages[-1].data.dataset)

    def save_state(self, folder: Path) -> None:
        """Write our state into the folder of a checkpoint; a stage of another type passes it on as it was."""
        state = self.dataset.state() if self.dataset is not None else self.saved
        if state is not None:
            state.write(folder)

    def from_dict(self, original: Function, data_class: Any, data: Any, config: Any = None) -> Any:
        return original(data_class=data_class, data=replace_in(data, self.nanosets), config=config)

    def parse_ckpt_path(self, original: Function, config: Any, parallel_context: Any) -> Any:
        path = original(config=config, parallel_context=parallel_context)
        self.start(config, path)
        return path

    def from_pretrained(self, original: Function, name: Any, *args: Any, **kwargs: Any) -> Any:
        section = self.config.tokenizer if self.is_ours else None
        if section is not None and name == section.tokenizer_name_or_path and not args and not kwargs:
            return StandIn(self.config, no_tokenizer if name == NO_TOKENIZER else functools.partial(original, name))
        if name == NO_TOKENIZER:
            no_tokenizer()
        return original(name, *args, **kwargs)

    def get_tb_datasets(self, original: Function, *, config: Any, **kwargs: Any) -> Any:
        if not is_ours(config):
            return original(config=config, **kwargs)
        if self.config is None:
            raise ConfigError(
                "install",
                "no trainer that has started since the adapter was installed",
                "install() before the trainer",
                "call install() before DistributedTrainer",
            )
        asked = SimpleNamespace(**kwargs)
        if self.saved is not None and asked.parallel_context.world_pg.rank() == 0:
            _warn_of_edits(self.config)
        self.dataset = open_stage(
            open_blend(config.settings(asked.seed).with_seq_len(asked.sequence_length)),
            config.options(),
            asked.parallel_context,
            step=asked.current_iteration,
            micro_batch_size=self.config.tokens.micro_batch_size,
            global_batch_size=asked.global_batch_size,
            steps=asked.train_steps,
            saved=self.saved,
            name=self.config.data_stages[-1].name,
            in_stage=asked.consumed_samples,
            tokens=asked.consumed_tokens_per_dataset_folder,
            earlier=asked.last_stages_consumed_tokens_per_dataset_folder,
            vocabulary=self.config.model.model_config.vocab_size,
            log=Path(self.config.checkpoints.checkpoints_path),
        )
        return self.dataset, {}  # the second one is for a log that run_train.py does not write

    def get_tb_dataloader(self, original: Function, *, dataset: Any, **kwargs: Any) -> Any:
        if not isinstance(dataset, StageDataset):
            return original(dataset=dataset, **kwargs)
        return make_dataloader(dataset, **kwargs)

    def save(self, original: Function, *args: Any, root_folder: Any, parallel_context: Any, **kwargs: Any) -> None:
        # First ours: the original ends with a barrier, behind which any rank writes latest.txt.
        if parallel_context.world_pg.rank() == 0:
            self.save_state(Path(root_folder))
        original(*args, root_folder=root_folder, parallel_context=parallel_context, **kwargs)

    def sanity_check_dataloader(
        self, original: Function, *, dataloader: Any, parallel_context: Any, config: Any
    ) -> Iterator[Any]:
        """Keep concept tensors from nanotron's checks, which still see everything else.

        The checks fail where a key is equal on two data parallel ranks, or of another shape, as concept tensors may
        well be.
        """
        extra = self.dataset.options.model_inputs if self.dataset is not None else {}
        if config.general.ignore_sanity_checks or not extra:
            yield from original(dataloader=dataloader, parallel_context=parallel_context, config=config)
            return
        aside: deque[dict[str, Any]] = deque()

        def stock_keys() -> Iterator[dict[str, Any]]:
            for batch in dataloader:
                aside.append({key: batch.pop(key) for key in extra})
                yield batch

        for batch in original(dataloader=stock_keys(), parallel_context=parallel_context, config=config):
            kept = aside.popleft()
            yield {**batch, **{key: value.to("cuda") if hasattr(value, "to") else value for key, value in kept.items()}}


def _warn_of_edits(config: Any) -> None:
    """Say which data stages before the present one are not as they were trained, by the run log."""
    log = RunLog(config.checkpoints.checkpoints_path)
    logged = {start.data_stage: log.config(start) for start in log.starts}
    for stage in config.data_stages[:-1]:
        trained = logged.get(stage.name)
        if trained is None or not is_ours(stage.data.dataset):
            continue
        seq_len = stage.sequence_length or config.tokens.sequence_length
        now = stage.data.dataset.settings(stage.data.seed).with_seq_len(seq_len).to_dict()
        if changed := sorted(key for key in {*now, *trained} if now.get(key) != trained.get(key)):
            logger.warning(
                "data stage %r was trained with other settings than it has now (%s): the change has no effect; put "
                "changes into the last stage", stage.name, ", ".join(changed),
            )  # fmt: skip


def patches(run: Run) -> list[Patch]:
    """What every run with nanotron main needs. Where run_train.py is the caller, there is no line to look for."""
    return [
        Patch(
            target="nanotron.config.config:from_dict",
            by=run.from_dict,
            parameters="data_class data config",
            caller="get_config_from_dict",
            line="return from_dict( data_class=config_class, data=config_dict, config=dacite.Config(",
        ),
        Patch(
            target="nanotron.trainer:parse_ckpt_path",
            by=run.parse_ckpt_path,
            parameters="config parallel_context",
            caller="DistributedTrainer.pre_init",
            line="self.init_checkpoint_path = parse_ckpt_path(config=self.config, parallel_context=",
        ),
        Patch(
            target="transformers:AutoTokenizer.from_pretrained",
            by=run.from_pretrained,
            line="tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)",
        ),
        Patch(
            target="nanotron.data.tokenized_bytes:get_tb_datasets",
            by=run.get_tb_datasets,
            parameters="config global_batch_size sequence_length train_steps current_iteration seed parallel_context "
            "consumed_samples consumed_tokens_per_dataset_folder last_stages_consumed_tokens_per_dataset_folder",
            line="train_dataset, data_log = get_tb_datasets(",
        ),
        Patch(
            target="nanotron.data.tokenized_bytes:get_tb_dataloader",
            by=run.get_tb_dataloader,
            parameters="dataset micro_batch_size num_workers consumed_samples parallel_context input_pp_rank "
            "output_pp_rank use_position_ids",
            line="dataloader = get_tb_dataloader(",
        ),
        Patch(
            target="nanotron.trainer:save",
            by=run.save,
            parameters="root_folder training_metadata parallel_context",
            caller="DistributedTrainer.save_checkpoint",
            line="save( model=self.unwrapped_model,",
        ),
        Patch(
            target="nanotron.trainer:sanity_check_dataloader",
            by=run.sanity_check_dataloader,
            parameters="dataloader parallel_context config",
            caller="DistributedTrainer._update_dataloader_based_on_training_stages",
            line="self.current_dataloader = sanity_check_dataloader( dataloader=dataloader, parallel_context=",
        ),
    ]


_run: Run | None = None


def set_weights(weights: Mapping[str, float], at: int | None = None, *, why: str = "") -> int:
    """Draw datasets in other proportions, as Loader.set_weights does, in the data stage that run_train.py trains."""
    if _run is None or _run.dataset is None:
        raise ConfigError(
            "set_weights",
            "no training of a data stage of conceptloader",
            "a training step",
            "call set_weights in a training step",
        )
    return _run.dataset.set_weights(weights, at, why=why)


class _Forward(logging.Handler):
    """What conceptloader logs, to nanotron's log: warnings of every rank, the rest of rank 0 or with `any_rank`."""

    def emit(self, record: logging.LogRecord) -> None:
        everywhere = record.levelno >= logging.WARNING or getattr(record, "any_rank", False)
        if not everywhere and int(os.environ.get("RANK", "0")):
            return
        target = logging.getLogger("nanotron.conceptloader")
        if target.isEnabledFor(record.levelno):
            # nanotron's handlers split the message by lines before it is formatted
            target.handle(target.makeRecord(target.name, record.levelno, record.pathname, record.lineno,
                                            record.getMessage(), (), None))  # fmt: skip


def install(nanosets: bool = False) -> None:
    """Add the dataset type to nanotron in this process. To be called before DistributedTrainer is made.

    Args:
        nanosets: Of a configuration without a data stage of our type, read the token files of nanotron's own
            `dataset_folder` sections where they are, as the launcher does.

    Raises:
        ConfigError: If nanotron has no longer what this adapter hooks into; nothing is copied from it.
    """
    from nanotron import __version__
    from nanotron.logging import get_logger

    warn_untested("nanotron", __version__)
    get_logger("nanotron.conceptloader")  # gives it nanotron's handlers
    ours = logging.getLogger("conceptloader")
    if not any(isinstance(handler, _Forward) for handler in ours.handlers):
        ours.addHandler(_Forward())
        ours.propagate = False
    ours.setLevel(logging.INFO)
    global _run
    _run = _run or Run(nanosets=nanosets)
    NANOTRON.apply(patches(_run))
