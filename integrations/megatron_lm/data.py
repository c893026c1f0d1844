"""The data of a run: what Megatron's command line and our configuration say together, and where it goes on."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from megatron.core import parallel_state
from megatron.core.datasets.utils import Split

from conceptloader.batch.layout import BatchLayout
from conceptloader.batch.open import batch_layout, open_reader
from conceptloader.blend import Blend, Config, open_blend
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState

from .batches import BatchReader, ConceptReader, SplitIterator, is_first_or_last_stage
from .dataset import ConceptDataset, Reader, SampleRules, data_loader, fields_of
from .options import Stage, for_evaluation, load_configs, one_pass, wanted
from .takeover_reader import open_taken_over

logger = logging.getLogger(__name__)

Built = ConceptDataset | list[ConceptDataset | None] | None
WHERE = "conceptloader's state in the checkpoint"
NO_STATE = "loader"  # the name under which a checkpoint without our state is accepted


class SampleSource(Protocol):
    """The samples of a split: in an order of ours (OurSplit), or taken over from Megatron (takeover_reader)."""

    @property
    def spec(self) -> OrderSpec: ...

    @property
    def seed(self) -> int: ...

    @property
    def one_pass(self) -> int:
        """Samples of all datasets together."""

    def check(self, num_samples: int) -> None:
        """Raise ConfigError if a run of `num_samples` samples is longer than the data may give."""

    def resumed(self, saved: OrderSpec, consumed: int, accept: Collection[str]) -> "SampleSource":
        """The split with which a run goes on. Raises ResumeError if its past has changed."""

    def layout(self, concepts: bool) -> BatchLayout:
        """Arrays of a batch, with or without the concept tensors."""

    def reader(self, concepts: bool) -> Reader:
        """Reads samples by their index."""


@dataclass(frozen=True)
class OurSplit:
    """A split in an order of ours, see SampleSource."""

    blend: Blend
    rules: SampleRules

    @property
    def spec(self) -> OrderSpec:
        return self.blend.spec

    @property
    def seed(self) -> int:
        return self.blend.config.seed

    @property
    def one_pass(self) -> int:
        return sum(view.count for view in self.blend.views if view is not None)

    def check(self, num_samples: int) -> None:
        self.blend.order.check_run(num_samples)

    def resumed(self, saved: OrderSpec, consumed: int, accept: Collection[str]) -> "OurSplit":
        return OurSplit(self.blend.resume(saved, consumed, allow_changed=accept), self.rules)

    def layout(self, concepts: bool) -> BatchLayout:
        return batch_layout(self._blend(concepts))

    def reader(self, concepts: bool) -> Reader:
        return open_reader(self._blend(concepts))

    def _blend(self, concepts: bool) -> Blend:
        config = wanted(self.blend.config, concepts)
        borders = config.outputs.loss_mask_borders or self.rules.eod_mask_loss
        outputs = dataclasses.replace(config.outputs, cu_seqlens=self.rules.needs_borders, loss_mask_borders=borders)
        return dataclasses.replace(self.blend, config=dataclasses.replace(config, outputs=outputs))


class MegatronData:
    """The data of a run, on every rank alike. Making one opens manifests only.

    Args:
        config: YAML of the training data.
        dataset_config: Megatron's GPTDatasetConfig, which says what a sample holds. Its blend is used with
            `order: megatron` only.
        micro_batch_size: samples of a micro batch.
        valid, test: YAMLs of the evaluation data; without them `split`, as in --split, cuts it off the training data.
        stage: pipeline stages that get concept tensors, see options.Stage.
        consumed: samples that the run has trained so far.
        saved: what state() gave when the checkpoint was written; None at the start of a run.
        accept: differences from the past that are meant (progress/resume.py), "loader" for a checkpoint without state.
        sizes: train, valid and test samples that Megatron asks for; `order: megatron` finds its index files by them.

    Raises:
        ResumeError: what decided the consumed samples has changed.
        ConfigError: the YAML and Megatron's arguments do not fit each other.
    """

    def __init__(
        self,
        config: Path | str,
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
    ) -> None:
        self.dataset_config = dataset_config
        self.consumed = consumed
        self.rules = SampleRules.of(dataset_config, pad=-1)  # each dataset chooses its padding token itself
        length = self.rules.seq_length
        self._configs = load_configs(config, valid, test, split, length, dataset_config.random_seed)
        of_train = self._configs[0]
        self._no_evaluation = split is None and valid is None and test is None
        self._stock: Sequence[SampleSource | None] | None = None
        if of_train.order == "megatron":
            if sizes is None or not self._no_evaluation:
                raise ConfigError("order: megatron: takes its splits from Megatron's arguments, and needs their sizes")
            self._stock = open_taken_over(of_train, dataset_config, sizes, self.rules)
            if self._stock[0] is None:
                raise ConfigError("order: megatron: the run that is taken over has no training split")
            opened: SampleSource = self._stock[0]
        else:
            if dataset_config.blend or dataset_config.blend_per_split:
                raise ConfigError("--data-path: found with --conceptloader-config as well; give one of the two")
            opened = OurSplit(open_blend(of_train), self.rules)
        self.train = continued(opened, saved, consumed, accept)
        self.concepts = ConceptReader(
            fields=fields_of(self.train.layout(concepts=True)),
            stage=stage if isinstance(stage, Stage) else Stage(stage),
            seq_length=length,
            micro_batch_size=micro_batch_size,
            packed=self.rules.inter_document_masking,
        )
        self.get_batch = BatchReader(rules=self.rules, concepts=self.concepts)

    @property
    def spec(self) -> OrderSpec:
        """What decides the order of the training samples."""
        return self.train.spec

    def state(self, consumed: int | None = None) -> dict[str, str]:
        """What to keep with a checkpoint at `consumed` samples, or wherever Megatron's arguments say: one string."""
        return OrderState(spec=self.spec, consumed=consumed).leaf()

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
        if self._no_evaluation and self._stock is None and sizes[1] != 0:
            raise ConfigError(
                f"evaluation: {sizes[1] or 'all'} samples are asked for and there is no data; give --split or "
                "--conceptloader-valid-config, or switch it off with --eval-iters 0"
            )
        build = functools.partial(self._dataset, tokens=self._tokens(is_built_on_rank, vp_stage), vp_stage=vp_stage)
        train = None if sizes[0] == 0 else build(self.train, sizes[0], Split.train, first=first)
        return [train, self._evaluation(Split.valid, sizes[1], build), self._evaluation(Split.test, sizes[2], build)]

    def iterator(self, dataset: ConceptDataset | None, *, num_workers: int = 0) -> SplitIterator | None:
        """Micro batches of this data-parallel rank from the consumed samples on, for get_batch and the schedules."""
        if dataset is None:
            return None
        size, consumed = self.concepts.micro_batch_size, self.consumed - dataset.first
        return SplitIterator(iter(data_loader(dataset, size, consumed, num_workers)))

    def _tokens(self, is_built_on_rank: Callable[[], bool] | None, vp_stage: int | None) -> bool:
        """Whether Megatron's get_batch reads on this rank. With inter-document masking it does so on every stage."""
        if parallel_state.get_tensor_model_parallel_rank() != 0:
            return False
        asked = is_built_on_rank() if is_built_on_rank is not None else is_first_or_last_stage(vp_stage)
        return asked or self.rules.inter_document_masking

    def _dataset(
        self, opened: SampleSource, size: int | None, split: Any, *, tokens: bool, vp_stage: int | None, first: int = 0
    ) -> ConceptDataset | None:
        here = parallel_state.get_tensor_model_parallel_rank() == 0 and self.concepts.stage.here(vp_stage)
        if not tokens and not here:
            return None
        return ConceptDataset(
            opened.reader(concepts=here),
            opened.one_pass if size is None else size,
            split,
            self.dataset_config,
            fields=self.concepts.fields if here else (),
            tokens=tokens,
            first=first,
            seed=opened.seed,
        )

    def _evaluation(self, split: Any, size: int | None, build: Callable[..., ConceptDataset | None]) -> Built:
        if size == 0:
            return None
        if self._stock is not None:
            stock = self._stock[split.value]
            return None if stock is None else build(stock, size, split)
        config = self._configs[split.value]
        if config is None:
            return None

        def open_split(of: Config) -> OurSplit:
            return OurSplit(open_blend(of), self.rules)

        if split == Split.valid and getattr(self.dataset_config, "multiple_validation_sets", None):
            return [build(open_split(one_pass(config, [name])), size, split) for name in config.names]
        return build(open_split(one_pass(config) if size is None else for_evaluation(config)), size, split)


def continued(
    split: SampleSource, saved: Mapping[str, Any] | None, consumed: int, accept: Collection[str]
) -> SampleSource:
    """The split with which a run goes on from a checkpoint, `saved` being our state in it.

    Raises ResumeError if what decided the consumed samples has changed, or is not known.
    """
    if saved is None or not consumed:
        expect_no_past(split.spec, consumed, accept)
        return split
    return split.resumed(read_state(saved, consumed), consumed, accept)


def read_state(state: Mapping[str, Any], consumed: int) -> OrderSpec:
    """The order spec of a checkpoint at `consumed` samples.

    Raises ResumeError if it is damaged, of a later release, or of another position.
    """
    saved = OrderState.read(state, WHERE)
    if saved.consumed not in (None, consumed):
        raise ResumeError(
            f"{WHERE}: saved at {saved.consumed} consumed samples, but the run goes on at {consumed}; take the state "
            "and the count from one checkpoint. For a state at another position ask MegatronData.state(consumed)"
        )
    return saved.spec


def expect_no_past(current: OrderSpec, consumed: int, accept: Collection[str]) -> None:
    """For a checkpoint without our state. Raises ResumeError if samples were consumed, unless that is meant.

    `order: megatron` is meant to go on from a checkpoint of Megatron's own loader.
    """
    if not consumed:
        return
    if current.order == "megatron":
        logger.info("taking over a run of Megatron's own loader at %d consumed samples", consumed)
    elif NO_STATE in accept:
        logger.warning("the first %d samples came from another loader, as accepted", consumed)
    else:
        raise ResumeError(
            f"checkpoint: found {consumed} consumed samples without a state of conceptloader, so another loader chose "
            "them; expected one of ours. To go on with the samples of Megatron's loader use `order: megatron`; "
            f"to go on with sample {consumed} of this configuration, accept the difference by its name, {NO_STATE}"
        )
