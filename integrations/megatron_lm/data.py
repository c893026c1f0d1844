"""The data of a run: what Megatron's command line and our configuration say together."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from megatron.core.datasets.utils import Split

from conceptloader.errors import ConfigError
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState

from .batches import BatchReader, is_first_or_last_stage
from .dataset import ConceptDataset
from .iterators import ConceptReader, SplitIterator, Stage
from .loaders import data_loader
from .opened import Opened, StockSplit, open_split, open_taken_over
from .samples import SampleRules
from .splits import for_evaluation, load_configs, one_pass
from .wire import fields_of

Built = ConceptDataset | list[ConceptDataset | None] | None


class MegatronData:
    """The data of a run, on every rank alike. Making one opens manifests only.

    Args:
        config: YAML of the training data.
        dataset_config: Megatron's GPTDatasetConfig, which says what a sample holds. Its blend is used with
            `order: megatron` only.
        micro_batch_size: samples of a micro batch.
        valid, test: YAMLs of the evaluation data; without them `split`, as in --split, cuts it off the training data.
        stage: pipeline stages that get concept tensors, see iterators.Stage.
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
        configs = load_configs(config, valid, test, split, length, dataset_config.random_seed)
        self._configs = (configs.train, configs.valid, configs.test)
        self._no_evaluation = split is None and valid is None and test is None
        self._stock: list[StockSplit | None] | None = None
        opened: Opened
        if configs.train.order == "megatron":
            if sizes is None or not self._no_evaluation:
                raise ConfigError("order: megatron: takes its splits from Megatron's arguments, and needs their sizes")
            self._stock = open_taken_over(configs.train, dataset_config, sizes, self.rules)
            if self._stock[0] is None:
                raise ConfigError("order: megatron: the run that is taken over has no training split")
            opened = self._stock[0]
        else:
            if dataset_config.blend or dataset_config.blend_per_split:
                raise ConfigError("--data-path: found with --conceptloader-config as well; give one of the two")
            opened = open_split(configs.train, self.rules)
        self.train: Opened = opened.continued(saved, consumed, accept)
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
        loader = data_loader(
            dataset,
            consumed=self.consumed - dataset.first,
            micro_batch_size=self.concepts.micro_batch_size,
            dp_rank=parallel_state.get_data_parallel_rank(),
            dp_size=parallel_state.get_data_parallel_world_size(),
            num_workers=num_workers,
        )
        return SplitIterator(iter(loader))

    def _tokens(self, is_built_on_rank: Callable[[], bool] | None, vp_stage: int | None) -> bool:
        """Whether Megatron's get_batch reads on this rank. With inter-document masking it does so on every stage."""
        if parallel_state.get_tensor_model_parallel_rank() != 0:
            return False
        asked = is_built_on_rank() if is_built_on_rank is not None else is_first_or_last_stage(vp_stage)
        return asked or self.rules.inter_document_masking

    def _dataset(
        self, opened: Opened, size: int | None, split: Any, *, tokens: bool, vp_stage: int | None, first: int = 0
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
        if split == Split.valid and getattr(self.dataset_config, "multiple_validation_sets", None):
            return [build(open_split(one_pass(config, [name]), self.rules), size, split) for name in config.names]
        if size is None:
            return build(open_split(one_pass(config), self.rules), None, split)
        return build(open_split(for_evaluation(config), self.rules), size, split)
