"""The run that nanotron's trainer has started: its config, where it resumes from, and what is saved with it."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conceptloader.errors import ConfigError

from . import dataset_args
from .state import State

if TYPE_CHECKING:
    from .stage import StageDataset

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """config: nanotron's own, the trainer's object. saved: our state in the checkpoint it resumes from, if any.

    dataset: the data stage that is trained, once run_train.py has asked for it; None for a stage of another type.
    """

    config: Any
    saved: State | None = None
    dataset: "StageDataset | None" = None

    @property
    def data_stage(self) -> Any:
        """The stage that nanotron trains: always the last one it is given."""
        return self.config.data_stages[-1]

    @property
    def is_ours(self) -> bool:
        """Whether that stage is of our type."""
        return bool(self.config.data_stages) and dataset_args.is_ours(self.data_stage.data.dataset)

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return Path(self.config.checkpoints.checkpoints_path)

    def loads_tokenizer(self, name: Any) -> bool:
        """Whether `name` is the tokenizer that run_train.py loads for a data stage of ours."""
        section = self.config.tokenizer
        return self.is_ours and section is not None and name == section.tokenizer_name_or_path

    @property
    def extra_keys(self) -> frozenset[str]:
        """Batch keys beyond those of stock models."""
        return frozenset(self.dataset.options.consume) if self.dataset is not None else frozenset()

    def save(self, folder: Path) -> None:
        """Write our state into the folder of a checkpoint; a stage of another type passes it on as it was."""
        state = self.dataset.state() if self.dataset is not None else self.saved
        if state is not None:
            state.write(Path(folder))


_active: Run | None = None


def start(config: Any, checkpoint: Any) -> None:
    """The trainer was given `config` and resumes from the folder `checkpoint`, or from nothing (None)."""
    global _active
    _active = Run(config)
    if checkpoint is None:
        return
    if config.checkpoints.load_lr_scheduler:
        _active.saved = State.read(Path(checkpoint))
    elif _active.is_ours:
        logger.warning(
            "checkpoints.load_lr_scheduler is false: nanotron takes only the weights from %s and starts at step 1 "
            "again, so the data start at sample 0 again and EVERYTHING READ BEFORE THE CHECKPOINT IS READ AGAIN. "
            "Set it to true to continue the run.",
            checkpoint,
        )


def active() -> Run | None:
    """The run of this process, if a trainer was made."""
    return _active


def require() -> Run:
    """The run. Raises ConfigError if the trainer was made before the adapter was installed."""
    if _active is None:
        raise ConfigError(
            "no trainer has started since the adapter was installed; call install() before DistributedTrainer"
        )
    return _active
