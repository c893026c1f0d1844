"""What conceptloader.launch puts under an unmodified script: three patches, for the run of run.py.

Nothing else in this adapter changes Megatron.

A script of one's own has the same run, with one of the patches: see `setup`, and docs/megatron.md.
"""

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron.core.datasets.gpt_dataset import GPTDataset, MockGPTDataset

from conceptloader.base.patching import Patch
from conceptloader.errors import ConfigError

from . import MEGATRON
from .batches import SplitIterator, Tensors
from .data import MegatronData
from .dataset import SFT
from .options import Options, Stage, take_options
from .run import Run

STANDS_FOR = ("SFTDataset", "GPTFIMDataset")  # what --sft and --fim-data build, from core 0.20 on
_run: Run | None = None


def start(run: Run) -> None:
    """`run` is that of this process from now on."""
    global _run
    _run = run


def current_data() -> MegatronData:
    """The data of the run. Raises ConfigError before Megatron has asked for its datasets."""
    if _run is None or _run.data is None:
        raise ConfigError(
            "current_data", "no data yet", fix="start the script with conceptloader.launch, or call setup()"
        )
    return _run.data


def build(stock: Callable[[Any], Any], builder: Any) -> Any:
    """In place of BlendedMegatronDatasetBuilder.build, which keeps --mock-data."""
    if _run is None or builder.cls is MockGPTDataset:
        if _run is not None:
            _run.mock = True
        return stock(builder)
    kind, known = builder.cls.__name__, {field.name for field in dataclasses.fields(builder.config)}
    if builder.cls is not GPTDataset and (kind not in STANDS_FOR or "inter_document_masking" not in known):
        raise wrong_data(f"datasets of class {kind}")
    setattr(builder.config, SFT, kind == "SFTDataset")
    # pretrain_gpt.py gives partial(is_dataset_built_on_rank, vp_stage=...)
    vp_stage = getattr(builder.is_built_on_rank, "keywords", {}).get("vp_stage")
    return _run.datasets(builder.config, builder.sizes, builder.is_built_on_rank, vp_stage)


def wrong_data(found: str) -> ConfigError:
    return ConfigError(
        sys.argv[0],
        str(found),
        "GPTDataset, in whose place conceptloader's comes: pretrain_gpt.py and scripts like it, --sft and --fim-data "
        "from core 0.20 on",
        "start others without conceptloader.launch",
    )


def iterator(stock: Any, iterable: Any) -> Any:
    """In place of RerunDataIterator."""
    if _run is not None and _run.data is None and not _run.mock:
        raise wrong_data("data that BlendedMegatronDatasetBuilder has not built")
    return SplitIterator(iterable, None if _run is None else _run.took)


def check_arguments(stock: Callable[..., None], checkpoint_args: Namespace, *args: Any, **kwargs: Any) -> None:
    """In place of check_checkpoint_args: keep our state, which MegatronData compares before any data is read."""
    stock(checkpoint_args, *args, **kwargs)
    if _run is not None:
        _run.saved = getattr(checkpoint_args, "conceptloader", None)


# pretrain_gpt.py calls BlendedMegatronDatasetBuilder(...).build(): every split comes from here.
BUILD = Patch(
    target="megatron.core.datasets.blended_megatron_dataset_builder:BlendedMegatronDatasetBuilder.build",
    by=build,
    parameters="self",
    caller="BlendedMegatronDatasetBuilder.build",
    line="datasets = self._build_blended_dataset_splits()",
)
# The iterator that get_batch reads; ours keeps keys aside which get_batch would drop or slice.
ITERATOR = Patch(
    target="megatron.training.training:RerunDataIterator",
    by=iterator,
    parameters="iterable",
    caller="build_train_valid_test_data_iterators",
    line="return RerunDataIterator(iter(dataloader))",
)
# The one moment at which the checkpoint's arguments are known and nothing has been read yet.
CHECK = Patch(
    target="megatron.training.checkpointing:check_checkpoint_args",
    by=check_arguments,
    parameters="checkpoint_args",
    caller="load_checkpoint",
    line="check_checkpoint_args(checkpoint_args",
)


def install() -> None:
    """Prepare this process for an unmodified Megatron script: take our options out of sys.argv, patch what must be.

    Without options of ours the files that --data-path and its kin name are read where they are; --mock-data stays.

    Raises ConfigError for wrong options, and for a Megatron that the patches do not know.
    """
    options, rest = take_options(sys.argv[1:])
    sys.argv[1:] = rest
    if options is None:
        if "--mock-data" not in rest:
            raise ConfigError("--conceptloader-config", "nothing", "the YAML file of the training data, or --data-path")
        return
    start(Run(options))
    MEGATRON.apply([BUILD, ITERATOR, CHECK])


@MEGATRON.known()
def concepts(data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None) -> Tensors | None:
    """The concept tensors of the micro batch of this forward step: call it once in each, after get_batch.

    For a custom forward_step in a script that conceptloader.launch started; on every rank.
    Returns tensors [B, ...] as BatchLayout describes them, on all tensor-parallel ranks of the configured pipeline
    stages (--conceptloader-concept-stage), None on the others. In evaluation with another micro batch size pass that.
    """
    return current_data().concepts(data_iterator, vp_stage, micro_batch_size)


@MEGATRON.known()
def set_weights(weights: Mapping[str, float], at: int | None = None) -> int:
    """Draw datasets in other proportions from the sample `at` on, by default from the step after the present one.

    To be called on every rank, in a step or between two. From then on it is in every checkpoint and in the run log, and
    a resumed run keeps it; see Loader.set_weights. Needs --num-workers 0: worker processes hold the order as it was.

    Returns: the sample from which on it holds. Raises ConfigError, and nothing is changed.
    """
    from megatron.training import get_args

    args = get_args()
    if _run is None:
        raise ConfigError("set_weights", "start the script with conceptloader.launch, or call setup()")
    if args.num_workers:
        raise ConfigError("set_weights", f"--num-workers {args.num_workers}", "0: workers would read on as ever")
    return _run.set_weights(weights, at, args)


def setup(
    config: Path | str,
    dataset_config: Callable[[Any], Any],
    *,
    valid: Path | str | None = None,
    test: Path | str | None = None,
    stage: str = "last",
    accept: Collection[str] = (),
) -> None:
    """For a script of one's own, before pretrain(): say what is read. The arguments are those of MegatronData.

    dataset_config: from Megatron's arguments to a GPTDatasetConfig, such as pretrain_gpt.py's
    core_gpt_dataset_config_from_args. One patch is applied, which compares the state in a checkpoint.
    """
    options = Options(config=config, valid=valid, test=test, stage=Stage(stage), accept=tuple(accept))
    start(Run(options, dataset_config))
    MEGATRON.apply([CHECK])


@MEGATRON.known()
def train_valid_test_datasets_provider(sizes: Sequence[int | None], vp_stage: int | None = None) -> list[Any]:
    """What pretrain() takes: train, valid and test datasets of this process, None where it reads nothing."""
    from megatron.training import get_args

    if _run is None or _run.dataset_config is None:
        raise ConfigError("train_valid_test_datasets_provider", "call conceptloader's setup() before pretrain()")
    return _run.datasets(_run.dataset_config(get_args()), sizes, None, vp_stage)


train_valid_test_datasets_provider.is_distributed = True  # type: ignore[attr-defined]  # Megatron calls it on all ranks


@MEGATRON.known()
def get_batch(data_iterator: Any, vp_stage: int | None = None) -> Tensors:
    """Megatron's tensors and the concept tensors of a micro batch, see batches.BatchReader.get_batch."""
    return current_data().get_batch(data_iterator, vp_stage)
