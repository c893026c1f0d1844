"""The data of a run: what Megatron's command line and our configuration say together, and where it goes on."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from megatron.core.datasets.utils import Split

from conceptloader.base.hashing import derive_key
from conceptloader.batch.layout import BatchLayout
from conceptloader.batch.open import RANDOM, decide_layout, open_reader
from conceptloader.blend import Blend, Config, open_blend
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.progress.resume import ChangedPast
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState

from . import MEGATRON
from .batches import BatchReader, SplitIterator, require_same_data, takes_tokens
from .dataset import ConceptDataset, Reader, SampleRules, data_loader, fields_of
from .options import NO_STATE, ORDER, WHERE, Stage, for_evaluation, in_place, load_configs, one_pass, wanted
from .takeover_reader import StockSplit, open_taken_over

logger = logging.getLogger(__name__)

Built = ConceptDataset | list[ConceptDataset | None] | None


@dataclass(frozen=True)
class OurSplit:
    """The samples of a split in an order of ours. Those taken over from Megatron are a takeover_reader.StockSplit.
    shared: arrays of batches with concepts, for the training and all of its evaluation alike."""

    blend: Blend
    rules: SampleRules
    shared: BatchLayout | None = None

    @property
    def spec(self) -> OrderSpec:
        return self.blend.spec

    @property
    def datasets(self) -> Mapping[str, Dataset]:
        return self.blend.datasets

    @property
    def one_pass(self) -> int:
        return sum(view.count for view in self.blend.views if view is not None)

    def check(self, num_samples: int) -> None:
        """Raise ConfigError if a run of `num_samples` samples is longer than the data may give."""
        self.blend.order.check_run(num_samples)

    def resumed(self, saved: OrderSpec, consumed: int, accept: Collection[str]) -> "OurSplit":
        """The split with which a run goes on. Raises ResumeError if its past has changed."""
        return replace(self, blend=self.blend.resume(saved, consumed, allow_changed=accept))

    def layout(self, concepts: bool, others: Sequence[Blend] = ()) -> BatchLayout:
        """Arrays of a batch, with or without the concept tensors, which hold the samples of `others` too."""
        config = self._blend(concepts).config
        views = [view for blend in (self.blend, *others) for view in blend.views]
        layout = decide_layout(views, self.rules.seq_length, config.outputs, config.concepts)
        return replace(layout, random_key=derive_key(config.seed, RANDOM))

    def reader(self, concepts: bool) -> Reader:
        return open_reader(self._blend(concepts), layout=self.shared if concepts else None)

    def _blend(self, concepts: bool) -> Blend:
        config = wanted(self.blend.config, concepts)
        borders = config.outputs.loss_mask_borders or self.rules.eod_mask_loss
        outputs = replace(config.outputs, cu_seqlens=self.rules.needs_borders, loss_mask_borders=borders)
        return replace(self.blend, config=replace(config, outputs=outputs))


SampleSource = OurSplit | StockSplit


class MegatronData:
    """The data of a run, on every rank alike, which is compared. Making one opens manifests only.

    Args:
        config: YAML of the training data; None for the files of dataset_config's blend, adopted where they are.
        dataset_config: Megatron's GPTDatasetConfig, which says what a sample holds. Its blend is used without a YAML,
            and with `order: megatron`.
        micro_batch_size: samples of a micro batch.
        valid, test: YAMLs of the evaluation data; without them `split`, as in --split, cuts it off the training data.
        stage: pipeline stages that get concept tensors, see options.Stage.
        consumed: samples that the run has trained so far.
        saved: what state() gave when the checkpoint was written; None at the start of a run.
        accept: differences from the past that are meant (progress/resume.py), "loader" for a checkpoint without state.
        sizes: train, valid and test samples that Megatron asks for; `order: megatron` finds its index files by them.
        pipeline_layout: the model's own, which says where layers of multi-token prediction are.

    Raises ResumeError as `continued`, ConfigError if the YAML and Megatron's arguments do not fit each other, or ranks
    have other data.
    """

    @MEGATRON.known()
    def __init__(
        self,
        config: Path | str | None,
        dataset_config: Any,
        *,
        micro_batch_size: int,
        valid: Path | str | None = None,
        test: Path | str | None = None,
        split: str | None = None,
        stage: Stage | str = "last",
        consumed: int = 0,
        saved: Mapping[str, Any] | None = None,
        accept: Collection[str] = (),
        sizes: Sequence[int | None] | None = None,
        pipeline_layout: Any = None,
    ) -> None:
        self.dataset_config, self.consumed = dataset_config, consumed
        self.rules = SampleRules.of(dataset_config, pad=-1)  # each dataset chooses its padding token itself
        files: dict[str, Any] = {"config": config, "valid": valid, "test": test, "split": split}
        if config is None:
            files |= in_place(dataset_config, saved, consumed, accept)
        self._configs = load_configs(**files, seq_length=self.rules.seq_length, seed=dataset_config.random_seed)
        if self.rules.by_document and self._configs[0].packing is None:
            raise ConfigError(
                "--sft",
                "a configuration without packing",
                "packs: windows would cut conversations",
                "add packing: {bins: 64}, or leave --sft out",
            )
        if self.rules.fim and self._configs[0].order == "megatron":
            raise ConfigError("order", "megatron: found with --fim-data, whose draws depend on all samples before")
        stage = stage if isinstance(stage, Stage) else Stage(stage)
        if stage.name == "none" and self._configs[0].outputs.loss_weight is not None:
            raise ConfigError("outputs.loss_weight", "found with concept stage none, whose losses have no weights")
        self._stock: Sequence[StockSplit | None] | None = None
        self.readers: list[Any] = []  # of the training
        opened: SampleSource
        if self._configs[0].order == "megatron":
            if sizes is None or any(files[name] is not None for name in ("valid", "test", "split")):
                raise ConfigError(
                    "order", "megatron: takes its splits from Megatron's arguments, and needs their sizes"
                )
            opened, *_ = self._stock = open_taken_over(self._configs[0], dataset_config, sizes, self.rules)
        else:
            if config is not None and (dataset_config.blend or dataset_config.blend_per_split):
                raise ConfigError("--data-path", "found with --conceptloader-config as well", fix="give one of the two")
            opened = OurSplit(open_blend(self._configs[0]), self.rules)
        parts: dict[str, Any] = {}
        self._whole: list[Blend | None] = [None] * 3  # all that may be read for evaluation
        for k, evaluated in enumerate(self._configs):
            if k and evaluated is not None and self._stock is None and (sizes is None or sizes[k] != 0):
                self._whole[k] = whole = open_blend(one_pass(evaluated), some_tracks=True)
                parts[Split(k).name] = replace(whole, config=evaluated)
        self.train = continued(opened, saved, consumed, accept)
        if isinstance(self.train, OurSplit):
            layout = self.train.layout(concepts=True, others=[blend for blend in self._whole if blend is not None])
            self.train = replace(self.train, shared=layout)
        else:
            layout = self.train.layout(concepts=True)
        fields = fields_of(layout)
        aligned = [field.name for field in fields if field.along]
        if aligned and self.rules.moves_tokens:
            raise ConfigError(
                self.rules.moves_tokens, f"found {aligned[0]}, which would not fit its tokens", fix="drop it"
            )
        self.batches = BatchReader(
            rules=self.rules, fields=fields, stage=stage,
            micro_batch_size=micro_batch_size, pipeline_layout=pipeline_layout,
        )  # fmt: skip
        parts["train"] = self.train.blend if isinstance(self.train, OurSplit) else self.train
        require_same_data(parts, consumed_samples=consumed, micro_batch_size=micro_batch_size, stage=stage.name)
        self.concepts, self.get_batch = self.batches.concepts, self.batches.get_batch

    @property
    def spec(self) -> OrderSpec:
        return self.train.spec

    def state(self, consumed: int | None = None) -> dict[str, str]:
        """What to keep with a checkpoint at `consumed` samples, or wherever Megatron's arguments say: one string."""
        return OrderState(spec=self.spec, consumed=consumed).leaf()

    @MEGATRON.known()
    def datasets(
        self,
        sizes: Sequence[int | None],
        *,
        is_built_on_rank: Callable[[], bool] | None = None,
        vp_stage: int | None = None,
        first: int = 0,
    ) -> list[Built]:
        """Train, valid and test datasets of the (virtual) stage of this process; None where it reads nothing.

        sizes: samples of each; 0 for none, None for one pass in order (--full-validation). is_built_on_rank: as in
        Megatron; by default true on tensor-parallel rank 0 of the first and the last stage. first: sample of the run at
        which the training dataset begins (--phase-transition-iterations).

        Raises ConfigError if there is no data for a split that has a size.
        """
        if sizes[0]:
            self.train.check(first + sizes[0])
        if sizes[1] != 0 and (self._configs if self._stock is None else self._stock)[1] is None:
            raise ConfigError(
                "evaluation",
                f"{sizes[1] or 'all'} samples are asked for and there is no data",
                fix="give --split with a second number above 0, or --conceptloader-valid-config, or switch it off "
                "with --eval-iters 0",
            )
        reads = parallel_state.get_tensor_model_parallel_rank() == 0
        asked = is_built_on_rank() if is_built_on_rank else takes_tokens(self.batches.pipeline_layout, vp_stage)
        # With inter-document masking Megatron's get_batch reads on every stage.
        tokens = reads and (asked or self.rules.inter_document_masking)
        concepts = reads and self.batches.stage.here(vp_stage)

        def build(opened: SampleSource | None, split: Any, first: int = 0) -> ConceptDataset | None:
            if opened is None or not (tokens or concepts):
                return None
            size, reader = sizes[split.value], opened.reader(concepts)
            if opened is self.train:
                self.readers.append(reader)
            return ConceptDataset(
                reader,
                opened.one_pass if size is None else size,
                split,
                self.dataset_config,
                fields=self.batches.fields if concepts else (),
                tokens=tokens,
                first=first,
            )

        built: list[Built] = [build(self.train if sizes[0] != 0 else None, Split.train, first)]
        for split in (Split.valid, Split.test):
            found = self._evaluation(split, sizes[split.value])
            built.append([build(one, split) for one in found] if isinstance(found, list) else build(found, split))
        return built

    def iterator(self, dataset: ConceptDataset | None, *, num_workers: int = 0) -> SplitIterator | None:
        """Micro batches of this data-parallel rank from the consumed samples on, for get_batch and the schedules."""
        if dataset is None:
            return None
        loader = data_loader(dataset, self.batches.micro_batch_size, self.consumed - dataset.first, num_workers)
        return SplitIterator(iter(loader))

    def _evaluation(self, split: Any, size: int | None) -> SampleSource | list[OurSplit] | None:
        """The samples of an evaluation split, or of each of its datasets; None without samples."""
        if size == 0:
            return None
        if self._stock is not None:
            stock: StockSplit | None = self._stock[split.value]
            return stock
        config, whole = self._configs[split.value], self._whole[split.value]
        if config is None or whole is None:
            return None
        assert isinstance(self.train, OurSplit)
        layout = self.train.shared

        def part(config: Config) -> OurSplit:
            datasets = {name: whole.datasets[name] for name in config.datasets}
            return OurSplit(open_blend(config, datasets, some_tracks=True), self.rules, layout)

        if split == Split.valid and getattr(self.dataset_config, "multiple_validation_sets", None):
            return [part(one_pass(config, [name])) for name in config.names]
        return part(one_pass(config) if size is None else for_evaluation(config))


def continued(
    split: SampleSource, saved: Mapping[str, Any] | None, consumed: int, accept: Collection[str]
) -> SampleSource:
    """The split with which a run goes on from a checkpoint at `consumed` samples; saved: our state in it, which one of
    Megatron's own loader has not (`order: megatron`).

    Raises ResumeError if what decided the consumed samples has changed, or the state is missing, or does not fit.
    """
    if not consumed:
        return split
    if saved is not None:
        state = OrderState.read(saved, WHERE)
        if state.consumed not in (None, consumed):
            raise ResumeError(
                WHERE,
                f"saved at {state.consumed} consumed samples, but the run goes on at {consumed}",
                fix="take the state and the count from one checkpoint, or ask for another one: "
                "MegatronData.state(consumed)",
            )
        if state.spec.order == "megatron" != split.spec.order:
            if ORDER not in accept:
                raise ResumeError(
                    "order",
                    f"the first {consumed} samples were those of Megatron's own loader, and the configuration has an "
                    "order of ours",
                    fix="keep `order: megatron` and the command line of that run. Where its index files end, go on "
                    f"with sample {consumed} of ours: --conceptloader-accept {ORDER}",
                )
            logger.warning("the first %d samples were Megatron's; windows of ours may hold tokens of theirs", consumed)
            return split
        try:
            return split.resumed(state.spec, consumed, accept)
        except ChangedPast as error:
            raise ResumeError("", f"{error.refusal}--conceptloader-accept {' '.join(error.keys)}") from error
    if split.spec.order == "megatron":
        logger.info("taking over a run of Megatron's own loader at %d consumed samples", consumed)
    elif NO_STATE in accept:
        logger.warning("the first %d samples came from another loader, as accepted", consumed)
    else:
        raise ResumeError(
            "checkpoint",
            f"found {consumed} consumed samples without a state of conceptloader, so another loader chose them",
            fix="expected one of ours. Go on with those of Megatron's loader by `order: megatron`, or with sample "
            f"{consumed} of this configuration: accept the difference by its name, {NO_STATE}",
        )
    return split
