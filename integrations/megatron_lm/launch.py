"""What conceptloader.launch puts under an unmodified script: four patches, and the run that they serve."""

import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import GPTDataset, MockGPTDataset

from conceptloader.blend import open_blend
from conceptloader.errors import ConfigError
from conceptloader.order.progress.runlog import RunLog, RunStart

from . import patches
from .data import Built, MegatronData
from .dataset import ConceptDataset
from .iterators import SplitIterator
from .loaders import ExternalLoader, data_loader
from .opened import OurSplit
from .options import Options, take_options
from .runs import batch_schedule, first_sample
from .samplers import cyclic_sampler
from .samples import SampleRules
from .splits import load_configs
from .wire import Tensors

logger = logging.getLogger(__name__)


class Run:
    """The run of this process. `data` is there once Megatron has asked for its datasets."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.saved: dict[str, Any] | None = None  # our state in the checkpoint that was loaded
        self.data: MegatronData | None = None

    def datasets(
        self,
        config: Any,
        sizes: Sequence[int | None],
        is_built_on_rank: Callable[[], bool] | None,
        vp_stage: int | None,
    ) -> list[Any]:
        """Train, valid and test datasets of this (virtual) stage. config: GPTDatasetConfig."""
        from megatron.training import get_args

        args = get_args()
        first = first_sample(args)
        if self.data is None:
            self.data = MegatronData(
                self.options.config,
                config,
                micro_batch_size=args.micro_batch_size,
                valid=self.options.valid,
                test=self.options.test,
                split=args.split if config.mock else None,
                stage=self.options.stage,
                consumed=args.consumed_train_samples,
                saved=self.saved,
                accept=self.options.accept,
                sizes=sizes,
            )
            args.conceptloader = self.data.state()  # Megatron saves its arguments with every checkpoint
            self.log_start(args)
        datasets = self.data.datasets(sizes, is_built_on_rank=is_built_on_rank, vp_stage=vp_stage, first=first)
        if args.dataloader_type != "external":
            return datasets
        consumed = (args.consumed_train_samples - first, args.consumed_valid_samples, 0)
        return [self.external(d, args, c) for d, c in zip(datasets, consumed, strict=True)]

    def external(self, dataset: Built, args: Namespace, consumed: int) -> Any:
        """An iterator in place of a dataset, for --dataloader-type external."""
        if dataset is None or isinstance(dataset, list):
            return dataset and [self.external(d, args, consumed) for d in dataset]
        loader = data_loader(
            dataset,
            consumed=consumed,
            micro_batch_size=args.micro_batch_size,
            dp_rank=parallel_state.get_data_parallel_rank(),
            dp_size=parallel_state.get_data_parallel_world_size(),
            num_workers=args.num_workers,
        )
        return ExternalLoader(loader, lambda: args.consumed_train_samples)

    def check(self, checkpoint_args: Namespace) -> None:
        """After check_checkpoint_args: keep our state of the checkpoint, refuse a changed past before data is read."""
        from megatron.training import get_args

        args, options = get_args(), self.options
        self.saved = getattr(checkpoint_args, "conceptloader", None)
        configs = load_configs(options.config, options.valid, options.test, args.split, args.seq_length, args.seed)
        if configs.train.order == "megatron":
            return  # its index files are not mapped yet: MegatronData compares, still before any data is read
        opened = OurSplit(open_blend(configs.train), SampleRules(seq_length=args.seq_length))
        opened.continued(self.saved, getattr(checkpoint_args, "consumed_train_samples", 0), options.accept)

    def log_start(self, args: Namespace) -> None:
        """Append this start to the run log beside the checkpoints, on one process."""
        if args.rank != 0 or not args.save or self.data is None:
            return
        start = RunStart(
            step=args.iteration,
            consumed=args.consumed_train_samples,
            batch=batch_schedule(args).to_list(),
            micro_batch_size=args.micro_batch_size,
            dp_size=args.data_parallel_size,
            seq_len=args.seq_length,
            spec=self.data.spec.hash,
        )
        Path(args.save).mkdir(parents=True, exist_ok=True)
        RunLog(args.save).append(start, self.data.spec)


_run: Run | None = None


def start(options: Options) -> Run:
    """The run of this process from now on."""
    global _run
    _run = Run(options)
    return _run


def current_data() -> MegatronData:
    """The data of the run. Raises ConfigError before Megatron has asked for its datasets."""
    if _run is None or _run.data is None:
        raise ConfigError("no data of conceptloader yet; start the script with conceptloader.launch, or call setup()")
    return _run.data


def install() -> None:
    """Prepare this process for an unmodified Megatron script: take our options out of sys.argv, patch what must be.

    Without options of ours everything stays as it is, for --mock-data.

    Raises ConfigError for wrong options, and for a Megatron that the patches do not know.
    """
    options, rest = take_options(sys.argv[1:])
    sys.argv[1:] = rest
    if options is None:
        if "--mock-data" not in rest:
            raise ConfigError("--conceptloader-config: missing, expected the YAML file of the training data")
        return
    run = start(options)
    patches.apply_all(
        {
            patches.BUILD: lambda stock: build_with(run, stock),
            patches.ITERATOR: lambda stock: SplitIterator,
            patches.CYCLIC: lambda stock: cyclic_sampler(stock, seed_of),
            patches.CHECK: lambda stock: check_with(run, stock),
        }
    )


def build_with(run: Run, stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Stands for BlendedMegatronDatasetBuilder.build; leaves --mock-data to it."""

    def build(self: Any) -> Any:
        if self.cls is MockGPTDataset:
            return stock(self)
        if self.cls is not GPTDataset:
            raise ConfigError(
                f"--conceptloader-config: found {self.cls.__name__}, expected GPTDataset: no --sft, no --fim-data"
            )
        # pretrain_gpt.py gives partial(is_dataset_built_on_rank, vp_stage=...)
        vp_stage = getattr(self.is_built_on_rank, "keywords", {}).get("vp_stage")
        return run.datasets(self.config, self.sizes, self.is_built_on_rank, vp_stage)

    return build


def check_with(run: Run, stock: Callable[..., None]) -> Callable[..., None]:
    """Stands for check_checkpoint_args."""

    def check(checkpoint_args: Namespace, *args: Any, **kwargs: Any) -> None:
        stock(checkpoint_args, *args, **kwargs)
        run.check(checkpoint_args)

    return check


def seed_of(dataset: Any) -> int | None:
    """The seed of a dataset of ours, None for another one."""
    return dataset.seed if isinstance(dataset, ConceptDataset) else None


def concepts(data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None) -> Tensors | None:
    """The concept tensors of the micro batch of this forward step: call it once in each, after get_batch.

    For a custom forward_step in a script that conceptloader.launch started; on every rank.
    Returns tensors [B, ...] as BatchLayout describes them, on all tensor-parallel ranks of the configured pipeline
    stages (--conceptloader-concept-stage), None on the others. In evaluation with another micro batch size pass that.
    """
    return current_data().concepts(data_iterator, vp_stage, micro_batch_size)
