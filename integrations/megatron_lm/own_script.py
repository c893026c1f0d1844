"""For a Megatron-LM pretraining script of one's own: a datasets provider and a get_batch, a few lines of change.

from conceptloader.integrations import megatron_lm

megatron_lm.setup("data.yaml", core_gpt_dataset_config_from_args)
...
batch = megatron_lm.get_batch(data_iterator, vp_stage)                              # in forward_step
pretrain(..., megatron_lm.train_valid_test_datasets_provider, ...)
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from conceptloader.errors import ConfigError

from . import patches
from .iterators import Stage
from .launched import Run, check_with, current_data, start
from .options import Options
from .wire import Tensors

_setup: tuple[Run, Callable[[Any], Any]] | None = None


def setup(
    config: Path | str,
    dataset_config: Callable[[Any], Any],
    *,
    valid: Path | str | None = None,
    test: Path | str | None = None,
    stage: str = "last",
    accept: Collection[str] = (),
) -> None:
    """Say what is read, before pretrain() is called. The arguments are those of MegatronData.

    dataset_config: from Megatron's arguments to a GPTDatasetConfig, such as pretrain_gpt.py's
    core_gpt_dataset_config_from_args. One patch is applied, which compares the state in a checkpoint.
    """
    global _setup
    options = Options(
        config=Path(config),
        valid=None if valid is None else Path(valid),
        test=None if test is None else Path(test),
        stage=Stage(stage),
        accept=tuple(accept),
    )
    run = start(options)
    patches.apply_all({patches.CHECK: lambda stock: check_with(run, stock)})
    _setup = run, dataset_config


def train_valid_test_datasets_provider(sizes: Sequence[int | None], vp_stage: int | None = None) -> list[Any]:
    """What pretrain() takes: train, valid and test datasets of this process, None where it reads nothing."""
    from megatron.training import get_args

    if _setup is None:
        raise ConfigError("train_valid_test_datasets_provider: call conceptloader's setup() before pretrain()")
    run, dataset_config = _setup
    return run.datasets(dataset_config(get_args()), sizes, None, vp_stage)


train_valid_test_datasets_provider.is_distributed = True  # type: ignore[attr-defined]  # Megatron calls it on all ranks


def get_batch(data_iterator: Any, vp_stage: int | None = None) -> Tensors:
    """Megatron's tensors and the concept tensors of a micro batch, see BatchReader."""
    return current_data().get_batch(data_iterator, vp_stage)
