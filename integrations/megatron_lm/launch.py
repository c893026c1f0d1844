"""What conceptloader.launch puts under an unmodified script: four patches, and the run that they serve.

Nothing else in this adapter changes Megatron. Seen in core_v0.16.1 and in main (core 0.20).

For a script of one's own the same run, with one of the patches:

from conceptloader.integrations import megatron_lm

megatron_lm.setup("data.yaml", core_gpt_dataset_config_from_args)
...
batch = megatron_lm.get_batch(data_iterator, vp_stage)                              # in forward_step
pretrain(..., megatron_lm.train_valid_test_datasets_provider, ...)
"""

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron.core.datasets.gpt_dataset import GPTDataset, MockGPTDataset

from conceptloader.base.patching import Patch, Upstream
from conceptloader.blend import open_blend
from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition
from conceptloader.order.progress.runlog import RunLog, RunStart

from .batches import SplitIterator, Tensors
from .data import Built, MegatronData, OurSplit, continued
from .dataset import SFT, ConceptDataset, Cyclic, SampleRules, data_loader
from .options import Options, Stage, batch_schedule, first_sample, load_configs, take_options

MEGATRON = Upstream(
    name="Megatron-LM",
    seen="core_v0.16.1 and main of 2026-08 (core 0.20)",
    otherwise="use one of these, another release of conceptloader, or its train_valid_test_datasets_provider and "
    "get_batch in a script of your own",
)


@dataclass
class Run:
    """The run of this process. `data` is there once Megatron has asked for its datasets.

    dataset_config: for a script of one's own, from Megatron's arguments to a GPTDatasetConfig. saved: our state in the
    checkpoint that was loaded.
    """

    options: Options
    dataset_config: Callable[[Any], Any] | None = None
    saved: dict[str, Any] | None = None
    data: MegatronData | None = None

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
                **vars(self.options),
                dataset_config=config,
                micro_batch_size=args.micro_batch_size,
                split=args.split if config.mock else None,
                consumed=args.consumed_train_samples,
                saved=self.saved,
                sizes=sizes,
            )
            self.data.check_tokenizer(getattr(args, "padded_vocab_size", None), self.options.accept)
            if args.rank == 0 and isinstance(self.data.train, OurSplit):
                self.data.train.blend.look_ahead(args.consumed_train_samples)
            args.conceptloader = self.data.state()  # Megatron saves its arguments with every checkpoint
            if args.rank == 0 and args.save:
                schedule = batch_schedule(args).at(args.iteration, args.consumed_train_samples)
                partition = Partition(micro_batch_size=args.micro_batch_size, dp_size=args.data_parallel_size)
                Path(args.save).mkdir(parents=True, exist_ok=True)
                start = RunStart.of(self.data.spec, schedule, partition, args.seq_length)
                RunLog(args.save).append(start, self.data.spec)
        datasets = self.data.datasets(sizes, is_built_on_rank=is_built_on_rank, vp_stage=vp_stage, first=first)
        if args.dataloader_type != "external":
            return datasets
        consumed = (args.consumed_train_samples - first, args.consumed_valid_samples, 0)
        evaluated = getattr(args, "eval_micro_batch_size", None) or args.micro_batch_size
        sizes_of = (args.micro_batch_size, evaluated, evaluated)
        return [self.external(d, args, c, size) for d, c, size in zip(datasets, consumed, sizes_of, strict=True)]

    def external(self, dataset: Built, args: Namespace, consumed: int, micro_batch_size: int) -> Any:
        """An iterator in place of a dataset, for --dataloader-type external."""
        if dataset is None or isinstance(dataset, list):
            return dataset and [self.external(d, args, consumed, micro_batch_size) for d in dataset]
        return ExternalLoader(iter(data_loader(dataset, micro_batch_size, consumed, args.num_workers)), args)

    def check(self, checkpoint_args: Namespace) -> None:
        """After check_checkpoint_args: keep our state of the checkpoint, refuse a changed past before data is read."""
        from megatron.training import get_args

        args, options = get_args(), self.options
        self.saved = getattr(checkpoint_args, "conceptloader", None)
        config, *_ = load_configs(options.config, options.valid, options.test, args.split, args.seq_length, args.seed)
        if config.order == "megatron":
            return  # its index files are not mapped yet: MegatronData compares, still before any data is read
        split = OurSplit(open_blend(config), SampleRules(seq_length=args.seq_length))
        continued(split, self.saved, getattr(checkpoint_args, "consumed_train_samples", 0), options.accept)


@dataclass
class ExternalLoader:
    """What --dataloader-type external passes through: an iterator over micro batches that can save its state.

    The state is the number of samples that the trainer has consumed, asked for at the time of saving: what the loader
    has read ahead, or what another pipeline stage has read, does not enter.
    """

    batches: Iterator[Any]
    args: Namespace

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def __next__(self) -> Any:
        return next(self.batches)

    def save_state(self) -> dict[str, int]:
        """For Megatron's maybe_save_dataloader_state. Resuming needs nothing but Megatron's own consumed samples."""
        return {"version": 1, "consumed_samples": int(self.args.consumed_train_samples)}


STANDS_FOR = ("SFTDataset", "GPTFIMDataset")  # what --sft and --fim-data build
_run: Run | None = None


def start(run: Run) -> None:
    """`run` is that of this process from now on."""
    global _run
    _run = run


def current_data() -> MegatronData:
    """The data of the run. Raises ConfigError before Megatron has asked for its datasets."""
    if _run is None or _run.data is None:
        raise ConfigError("no data of conceptloader yet; start the script with conceptloader.launch, or call setup()")
    return _run.data


def build(stock: Callable[[Any], Any], builder: Any) -> Any:
    """In place of BlendedMegatronDatasetBuilder.build, which keeps --mock-data."""
    if _run is None or builder.cls is MockGPTDataset:
        return stock(builder)
    kind, known = builder.cls.__name__, {field.name for field in dataclasses.fields(builder.config)}
    if builder.cls is not GPTDataset and (kind not in STANDS_FOR or "inter_document_masking" not in known):
        raise ConfigError(
            f"--conceptloader-config: found {kind}, expected GPTDataset, or {' or '.join(STANDS_FOR)} of core 0.20"
        )
    setattr(builder.config, SFT, kind == "SFTDataset")
    # pretrain_gpt.py gives partial(is_dataset_built_on_rank, vp_stage=...)
    vp_stage = getattr(builder.is_built_on_rank, "keywords", {}).get("vp_stage")
    return _run.datasets(builder.config, builder.sizes, builder.is_built_on_rank, vp_stage)


def cyclic(stock: Any, dataset: Any, **sizes: Any) -> Any:
    """In place of MegatronPretrainingRandomSampler, which keeps datasets that are not ours (mock data)."""
    if not isinstance(dataset, ConceptDataset):
        return stock(dataset, **sizes)
    partition = Partition(micro_batch_size=sizes["micro_batch_size"], dp_size=sizes["data_parallel_size"])
    rank, consumed = sizes["data_parallel_rank"], sizes["consumed_samples"]
    return Cyclic(partition, rank, consumed, total=sizes["total_samples"], seed=dataset.seed)


def check_arguments(stock: Callable[..., None], checkpoint_args: Namespace, *args: Any, **kwargs: Any) -> None:
    """In place of check_checkpoint_args."""
    stock(checkpoint_args, *args, **kwargs)
    if _run is not None:
        _run.check(checkpoint_args)


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
    by=lambda stock, iterable: SplitIterator(iterable),
    parameters="iterable",
    caller="build_train_valid_test_data_iterators",
    line="return RerunDataIterator(iter(dataloader))",
)
# --dataloader-type cyclic: a list of torch.randperm on every rank.
CYCLIC = Patch(
    target="megatron.training.datasets.data_samplers:MegatronPretrainingRandomSampler",
    by=cyclic,
    parameters="dataset total_samples consumed_samples micro_batch_size data_parallel_rank data_parallel_size "
    "data_sharding",
    caller="build_pretraining_data_loader",
    line="batch_sampler = MegatronPretrainingRandomSampler( dataset, total_samples=len(dataset),",
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

    Without options of ours everything stays as it is, for --mock-data.

    Raises ConfigError for wrong options, and for a Megatron that the patches do not know.
    """
    options, rest = take_options(sys.argv[1:])
    sys.argv[1:] = rest
    if options is None:
        if "--mock-data" not in rest:
            raise ConfigError("--conceptloader-config: missing, expected the YAML file of the training data")
        return
    start(Run(options))
    MEGATRON.apply([BUILD, ITERATOR, CYCLIC, CHECK])


def concepts(data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None) -> Tensors | None:
    """The concept tensors of the micro batch of this forward step: call it once in each, after get_batch.

    For a custom forward_step in a script that conceptloader.launch started; on every rank.
    Returns tensors [B, ...] as BatchLayout describes them, on all tensor-parallel ranks of the configured pipeline
    stages (--conceptloader-concept-stage), None on the others. In evaluation with another micro batch size pass that.
    """
    return current_data().concepts(data_iterator, vp_stage, micro_batch_size)


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


def train_valid_test_datasets_provider(sizes: Sequence[int | None], vp_stage: int | None = None) -> list[Any]:
    """What pretrain() takes: train, valid and test datasets of this process, None where it reads nothing."""
    from megatron.training import get_args

    if _run is None or _run.dataset_config is None:
        raise ConfigError("train_valid_test_datasets_provider: call conceptloader's setup() before pretrain()")
    return _run.datasets(_run.dataset_config(get_args()), sizes, None, vp_stage)


train_valid_test_datasets_provider.is_distributed = True  # type: ignore[attr-defined]  # Megatron calls it on all ranks


def get_batch(data_iterator: Any, vp_stage: int | None = None) -> Tensors:
    """Megatron's tensors and the concept tensors of a micro batch, see batches.BatchReader.get_batch."""
    return current_data().get_batch(data_iterator, vp_stage)
