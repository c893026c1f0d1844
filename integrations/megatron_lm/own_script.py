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

from .batches import Tensors
from .launch import CHECK, MEGATRON, Run, current_data, current_run, start
from .options import Options, Stage


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
    options = Options(config=config, valid=valid, test=test, stage=Stage(stage), accept=tuple(accept))
    start(Run(options, dataset_config))
    MEGATRON.apply([CHECK])


def train_valid_test_datasets_provider(sizes: Sequence[int | None], vp_stage: int | None = None) -> list[Any]:
    """What pretrain() takes: train, valid and test datasets of this process, None where it reads nothing."""
    from megatron.training import get_args

    run = current_run()
    if run is None or run.dataset_config is None:
        raise ConfigError("train_valid_test_datasets_provider: call conceptloader's setup() before pretrain()")
    return run.datasets(run.dataset_config(get_args()), sizes, None, vp_stage)


train_valid_test_datasets_provider.is_distributed = True  # type: ignore[attr-defined]  # Megatron calls it on all ranks


def get_batch(data_iterator: Any, vp_stage: int | None = None) -> Tensors:
    """Megatron's tensors and the concept tensors of a micro batch, see batches.BatchReader."""
    return current_data().get_batch(data_iterator, vp_stage)
