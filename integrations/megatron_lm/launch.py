"""What changes Megatron: four patches, listed in `patches`, and a fifth with metrics or mixing, to reach the run.

`-m conceptloader.launch` calls `install` before an unmodified script; a custom script may call it at its top.
Each patch is a method of Run, and Run calls MegatronData, which has the samples and all that follows from them.
"""

import dataclasses
import json
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.gpt_dataset import GPTDataset, MockGPTDataset

from conceptloader.base.patching import Patch
from conceptloader.base.version import PAGES
from conceptloader.errors import ConfigError
from conceptloader.loader.torch.agreement import GroupRanks
from conceptloader.loader.torch.losses import DatasetLosses
from conceptloader.order.partition import Plan
from conceptloader.order.progress.runlog import RunLog, RunStart
from conceptloader.run.observer import Observer

from . import MEGATRON, trackers
from .batches import SplitIterator, Tensors, device
from .data import MegatronData
from .dataset import ENDLESS, SFT
from .options import take_options
from .past import MEGATRON_LM, saved_in_log
from .splits import OurSplit
from .steps import first_sample, last_sample, plan_of

logger = logging.getLogger(__name__)

NOT_STARTED = "start the script with conceptloader.launch, or call install() at its top"


@dataclasses.dataclass
class Run:
    """The run of this process. `data` is there once Megatron has asked for its training data.

    given: arguments of MegatronData, as the command line says. saved: conceptloader's state in the checkpoint that was
    loaded. args: Megatron's arguments that `opened` belongs to; others are another start of the training in this
    process (--inprocess-restart). opened: all data, by what a builder says of them: a script may have several, and
    virtual stages ask for the same. mock: Megatron keeps its --mock-data. The others are for observers, see `took`.
    """

    given: Mapping[str, Any]
    saved: dict[str, Any] | None = None
    data: MegatronData | None = None
    args: Namespace | None = None
    opened: dict[str, MegatronData] = dataclasses.field(default_factory=dict)
    mock: bool = False
    losses: DatasetLosses | None = None  # of the step, where the configuration asks for them
    observers: Sequence[Observer] = ()
    reader: SplitIterator | None = None
    taken: int = 0
    group: int = 0

    def build(self, stock: Callable[[Any], Any], builder: Any) -> Any:
        """In place of BlendedMegatronDatasetBuilder.build: train, valid and test datasets of a (virtual) stage."""
        if builder.cls is MockGPTDataset:
            self.mock = True
            return stock(builder)
        from megatron.training import get_args

        config, args = config_of(builder), get_args()
        if args.dataloader_type not in (None, "single"):
            raise ConfigError(
                "--dataloader-type",
                args.dataloader_type,
                "single",
                "omit --dataloader-type: the configuration's order shuffles, repeats, resumes and can be traced",
            )
        first = first_sample(args)
        if any(one.consumed != args.consumed_train_samples for one in self.opened.values()) or self.args is not args:
            self.args, self.opened, self.data = args, {}, None
        said = [vars(config), *builder.sizes]
        key = json.dumps(said, default=lambda one: getattr(one, "unique_identifiers", None) or repr(one))
        data = self.opened.get(key) or self.open(args, config, builder.sizes)
        self.opened[key] = data
        # pretrain_gpt.py gives partial(is_dataset_built_on_rank, vp_stage=...)
        vp_stage = getattr(builder.is_built_on_rank, "keywords", {}).get("vp_stage")
        return data.datasets(is_built_on_rank=builder.is_built_on_rank, vp_stage=vp_stage, first=first)

    def open(self, args: Namespace, config: Any, sizes: Sequence[int | None]) -> MegatronData:
        """Open the data from the position of `args` on. config: GPTDatasetConfig."""
        data = MegatronData(
            **self.given,
            dataset_config=config,
            sizes=sizes,
            micro_batch_size=args.micro_batch_size,
            split=args.split if config.mock else None,
            consumed=args.consumed_train_samples,
            saved=self.saved or saved_in_log(args, self.given["accept"]),
            entry=MEGATRON_LM,
            trains=self.data is None,
        )
        data.check_tokenizer(getattr(args, "padded_vocab_size", None))
        check_attention(args, data)
        for other in self.opened.values():
            if other.shapes != data.shapes:
                raise ConfigError(
                    "BlendedMegatronDatasetBuilder",
                    "tensors of other shapes than those of the builder before",
                    "the same for training and evaluation",
                    "get both from one builder, or set max_spans and max_concepts of the tracks and one sequence "
                    "length",
                )
        if isinstance(data.train, OurSplit):
            data.sizes = [ENDLESS if size else size for size in sizes]  # sizes are as if batches never changed
        if data.trains:
            self.start(args, data, sizes[0])
        return data

    def start(self, args: Namespace, data: MegatronData, size: int | None) -> None:
        """Let `data` be those of the training, `size` samples in Megatron's words."""
        self.data = data
        plan, run = plan_of(args, data.count_start), data.run
        end = last_sample(args, plan, data.count_start, size)
        if run is None and end is not None and end > data.train.one_pass:
            logger.warning(
                "order: megatron: the run needs %d samples and Megatron's index files hold %d: it will stop there, "
                "with a StopIteration as Megatron's own loader", end, data.train.one_pass,
            )  # fmt: skip
        if run is not None:
            if run.mixing is not None and args.num_workers:  # what the option says, so that all ranks raise
                raise ConfigError(
                    "mixing",
                    f"--num-workers {args.num_workers}",
                    "0: workers would keep the old weights",
                    "pass --num-workers 0",
                )
            run.stand_at(plan, end)
            if args.rank == 0:
                run.blend.look_ahead(run.trained)
                run.look_ahead()
        self.note(data, args, plan)
        self.reader = None
        if run is not None and (run.blend.config.metrics or run.observes):
            MEGATRON.apply([dataclasses.replace(TRAINING_LOG, by=self.after_step)])
        if run is not None and run.observes:
            self.losses = DatasetLosses(list(data.train.datasets))  # on all ranks, also those that compute none
            self.losses.samples = [] if run.blend.config.writes_losses else None
        self.taken, self.group = plan.schedule.consumed, plan.partition.group
        self.observers = [] if run is None else run.watched(self.taken, trackers.track)

    def note(self, data: MegatronData, args: Namespace, plan: Plan) -> None:
        """What decides the samples from here on, in the run log."""
        if not args.save:
            return
        if data.run is not None:
            data.run.log_start(args.save, plan.schedule.step, writes=args.rank == 0)
        elif args.rank == 0:
            start = RunStart.of(data.spec, plan.schedule, plan.partition, args.seq_length)
            RunLog(args.save).append(start, data.spec)

    def iterator(self, stock: Any, iterable: Any) -> SplitIterator:
        """In place of RerunDataIterator."""
        if not self.opened and not self.mock:
            raise wrong_data("data that BlendedMegatronDatasetBuilder has not built")
        return SplitIterator(iterable, self.took)

    def took(self, reader: SplitIterator, seconds: float, mask: torch.Tensor | None) -> None:
        """A training iterator has waited so long for a micro batch; of those of virtual stages the first counts."""
        self.reader = self.reader or reader
        if reader is self.reader:
            self.taken += self.group
            batch = {} if mask is None else {"loss_mask": mask}
            for one in self.observers:
                one.yielded(self.taken - 1, self.taken, one.read(batch), seconds, 0)

    def check(self, stock: Callable[..., None], checkpoint_args: Namespace, *args: Any, **kwargs: Any) -> None:
        """Stand in for check_checkpoint_args: keep the saved state, which MegatronData compares before it reads."""
        stock(checkpoint_args, *args, **kwargs)
        self.saved = getattr(checkpoint_args, "conceptloader", None)

    def save(self, stock: Callable[..., Any], args: Namespace, *rest: Any, **kwargs: Any) -> Any:
        """In front of generate_state_dict, which puts Megatron's arguments into the checkpoint: our state among them.

        Loading calls it as well, before there are data.
        """
        if self.data is not None and self.args is args:
            args.conceptloader = self.data.state(args.consumed_train_samples)
        return stock(args, *rest, **kwargs)

    def set_weights(self, weights: Mapping[str, float], at: int | None, args: Namespace, why: str = "") -> int:
        """See launch.set_weights. All ranks compare what they are about to do."""
        data = self.data
        if data is None or data.run is None:
            raise ConfigError(
                "set_weights",
                "no data yet, or data of `order: megatron`, whose weights are fixed",
                "a training with weights that can be set",
                "call set_weights in a training step, and without `order: megatron`",
            )
        data.run.yielded_to(data.count_start + args.consumed_train_samples)
        return data.run.set_weights(weights, at, why=why, ranks=GroupRanks())

    def after_step(self, stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stand in for training_log, which all ranks call after each step, before a checkpoint."""
        data, given = self.data, self.args
        if data is not None and data.run is not None and self.losses is not None and given is not None:
            data.run.yielded_to(data.count_start + given.consumed_train_samples)
            last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
            if self.losses.samples == [] and last and not parallel_state.get_tensor_model_parallel_rank():
                raise ConfigError(
                    "metrics.losses",
                    "no losses",
                    "those of each micro batch",
                    f"call megatron_lm.add_losses in loss_func: {PAGES}/losses.md",
                )
            self.losses.end_step(data.run, GroupRanks(), device())
        return trackers.training_log(stock, *args, **kwargs)


def config_of(builder: Any) -> Any:
    """Of a BlendedMegatronDatasetBuilder: its GPTDatasetConfig. Raises ConfigError for datasets of another kind."""
    kind, known = builder.cls.__name__, {field.name for field in dataclasses.fields(builder.config)}
    sft = kind == "SFTDataset"
    if builder.cls is not GPTDataset and not (sft and "inter_document_masking" in known):
        raise wrong_data(f"datasets of class {kind}")
    setattr(builder.config, SFT, sft)
    return builder.config


def check_attention(args: Namespace, data: MegatronData) -> None:
    """Raise ConfigError for packs whose mask Megatron's attention ignores. Warn of windows, and of packs without one.

    Transformer Engine, and fused softmax, have a causal mask of their own and look at no other.
    """
    rules, packed = data.rules, isinstance(data.train, OurSplit) and data.train.blend.config.packing is not None
    if rules.inter_document_masking:
        return
    if not rules.reset_attention_mask:
        if packed and args.rank == 0:
            logger.warning("packing: documents of a pack see each other without --dataloader-inter-document-masking")
        return
    fused = args.transformer_impl != "local" or (args.masked_softmax_fusion and (args.fp16 or args.bf16))
    if fused or not rules.create_attention_mask:
        error = ConfigError(
            "--reset-attention-mask",
            "with attention that takes no mask: documents would see each other",
            "attention that separates them",
            "--dataloader-inter-document-masking (from core 0.19 on), or --transformer-impl local "
            "--no-masked-softmax-fusion without --no-create-attention-mask-in-dataloader",
        )
        if packed:
            raise error
        if args.rank == 0:
            logger.warning("%s", error)


def wrong_data(found: str) -> ConfigError:
    return ConfigError(
        sys.argv[0],
        str(found),
        "GPTDataset, in whose place conceptloader's comes: pretrain_gpt.py and scripts like it; --sft from core "
        "0.19 on",
        "start others without conceptloader.launch",
    )


def patches(run: Run) -> list[Patch]:
    """All that is changed in Megatron: what, by which method of the run, and the line that has to be there."""
    return [
        # pretrain_gpt.py calls BlendedMegatronDatasetBuilder(...).build(): every split comes from here.
        Patch(
            target="megatron.core.datasets.blended_megatron_dataset_builder:BlendedMegatronDatasetBuilder.build",
            by=run.build,
            parameters="self",
            caller="BlendedMegatronDatasetBuilder.build",
            line="datasets = self._build_blended_dataset_splits()",
        ),
        # The iterator that get_batch reads; ours keeps keys aside which get_batch would drop or slice.
        Patch(
            target="megatron.training.training:RerunDataIterator",
            by=run.iterator,
            parameters="iterable",
            caller="build_train_valid_test_data_iterators",
            line="return RerunDataIterator(iter(dataloader))",
        ),
        # The one moment at which the checkpoint's arguments are known and nothing has been read yet.
        Patch(
            target="megatron.training.checkpointing:check_checkpoint_args",
            by=run.check,
            parameters="checkpoint_args",
            caller="load_checkpoint",
            line="check_checkpoint_args(checkpoint_args",
        ),
        # The last moment before a checkpoint is written: by now Megatron has counted the samples of its steps.
        Patch(
            target="megatron.training.checkpointing:generate_state_dict",
            by=run.save,
            parameters="args",
            caller="save_checkpoint",
            line="state_dict = generate_state_dict(",
        ),
    ]


TRAINING_LOG = Patch(
    target="megatron.training.training:training_log",
    by=trackers.training_log,
    caller="train",
    line="report_memory_flag = training_log( loss_dict,",
)
"""With `metrics: true` or `mixing` only."""
_run: Run | None = None


def install() -> None:
    """Prepare this process for a Megatron script: remove conceptloader's options from sys.argv, and apply the patches.

    conceptloader.launch calls it; a custom script that is started without the launcher calls it before pretrain(). A
    second call does nothing. Without conceptloader's options the files of --data-path and related options are read in
    place; --mock-data is unchanged.

    Raises:
        ConfigError: For wrong options, and for a Megatron that the patches do not know.
    """
    global _run
    if _run is not None:
        return
    given, rest = take_options(sys.argv[1:])
    if given is None and "--mock-data" not in rest:
        raise ConfigError(
            "--conceptloader-config",
            "nothing",
            "the YAML file of the training data, or --data-path",
            "pass --conceptloader-config FILE, or --data-path",
        )
    sys.argv[1:] = rest
    if given is not None:
        run = Run(given)
        MEGATRON.apply(patches(run))
        _run = run


@MEGATRON.known()
def concepts(data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None) -> Tensors | None:
    """The concept tensors of the micro batch of this forward step: call it once in each, after get_batch, on each rank.

    Returns the keys of the tracks in docs/batch-keys.md, on all tensor-parallel ranks of the configured pipeline stages
    (--conceptloader-concept-stage), None on the others. In evaluation with another micro batch size pass that.
    """
    if _run is None or not _run.opened:
        raise ConfigError("concepts", "no data", "a training that has begun", NOT_STARTED)
    return next(iter(_run.opened.values())).concepts(data_iterator, vp_stage, micro_batch_size)  # same shapes in all


@MEGATRON.known()
def set_weights(weights: Mapping[str, float], at: int | None = None, *, why: str = "") -> int:
    """Draw datasets in other proportions from the sample `at` on, by default from the step after the present one.

    To be called on every rank, in a step or between two. From then on it is in every checkpoint and in the run log, and
    a resumed run keeps it; see Loader.set_weights. Needs --num-workers 0: worker processes hold the order as it was.

    Returns:
        The sample from which on it holds.

    Raises:
        ConfigError: The weights do not fit; nothing is changed.
    """
    from megatron.training import get_args

    args = get_args()
    if _run is None:
        raise ConfigError("set_weights", "no data", "a training that has begun", NOT_STARTED)
    if args.num_workers:
        raise ConfigError(
            "set_weights",
            f"--num-workers {args.num_workers}",
            "0: worker processes would keep the old weights",
            "pass --num-workers 0",
        )
    return _run.set_weights(weights, at, args, why)


def add_losses(losses: torch.Tensor, batch: Mapping[str, Any]) -> None:
    """Add the losses of a micro batch, for `mixing` and `metrics: {losses: true}`: in loss_func, wherever it is called.

    After each step all ranks learn what a mixture is to learn from; weights hold from the step after the next one on.
    See DatasetLosses.add; what `concepts` returns, and loss_func's loss_mask, make a batch. Without these keys nothing
    happens.
    """
    found = None if _run is None else _run.losses
    same = parallel_state.get_tensor_model_parallel_rank()  # compute all ranks of the group
    if found is not None and torch.is_grad_enabled() and not same:
        found.add(losses, batch)
