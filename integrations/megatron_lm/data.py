"""The data of a run: what Megatron's command line and a configuration say together, from the files to the model."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from megatron.core import __version__, parallel_state
from megatron.core.datasets.utils import Split

from conceptloader.base.tested import warn_untested
from conceptloader.config import open_blend
from conceptloader.config.vocabulary import check_vocabulary
from conceptloader.errors import ConfigError
from conceptloader.order.partition import Partition
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.order.progress.state import OrderState
from conceptloader.run.entry import Entry
from conceptloader.run.training import TrainingRun

from . import MEGATRON
from .batches import SplitIterator, Tensors, cut, merge_samples, require_same_data, share, takes_tokens
from .dataset import (
    ENDLESS,
    ConceptDataset,
    Field,
    SampleRules,
    SecondTraining,
    data_loader,
    fields_of,
    stock_fields,
)
from .megatron_order_reader import StockSplit, open_taken_over
from .options import TOKENIZER, Stage, check_evaluation, in_place, in_words_of_megatron, load_configs, refused
from .past import EVALUATION, OWN_SCRIPT, check_migrated, resume_run
from .splits import OurSplit, open_evaluation, with_one_layout

SampleSource = OurSplit | StockSplit
Built = ConceptDataset | list[ConceptDataset | None] | None


class MegatronData:
    """The data of a run, on every rank alike, which is compared. Making one opens manifests only.

    Args:
        config: YAML of the training data; None for the files of dataset_config's blend, adopted where they are.
        dataset_config: Megatron's GPTDatasetConfig, which says what a sample holds. Its blend is used without a YAML,
            and with `order: megatron`.
        sizes: train, valid and test samples of the run; 0 for none, None for one pass in order (--full-validation).
            Without training samples the data are an evaluation's, which has no position and no state.
        micro_batch_size: samples of a micro batch.
        valid: YAML of the validation data; without it and `test`, `split`, as in --split, cuts both off the training
            data.
        test: YAML of the test data.
        stage: pipeline stages that get concept tensors, see options.Stage.
        consumed: samples that Megatron has trained so far. Those of a run that another trainer began (`continue_from`)
            come before them.
        saved: what state() gave when the checkpoint was written; None at the start of a run.
        accept: differences from the past that are meant, as the error names them; "loader" for a checkpoint without
            state.
        pipeline_layout: the model's own, which says where layers of multi-token prediction are.
        entry: what the caller carries out.
        trains: false if other data are the run's training; the training dataset of these raises when it is read.

    Attributes:
        run: the account of the run; None with `order: megatron`, whose samples are those of Megatron's index files, and
            without a training.

    Raises:
        ResumeError: What determined consumed samples has changed, see `continued`.
        ConfigError: If the YAML and Megatron's arguments do not fit each other, if there is no data for an evaluation
            that has a size, or if ranks have other data.
    """

    @MEGATRON.known()
    def __init__(
        self,
        config: Path | str | None,
        dataset_config: Any,
        sizes: Sequence[int | None],
        *,
        micro_batch_size: int,
        valid: Path | str | None = None,
        test: Path | str | None = None,
        split: str | None = None,
        stage: str = "last",
        consumed: int = 0,
        saved: Mapping[str, Any] | None = None,
        accept: Collection[str] = (),
        pipeline_layout: Any = None,
        entry: Entry = OWN_SCRIPT,
        trains: bool = True,
    ) -> None:
        warn_untested("megatron-core", __version__)
        if hasattr(dataset_config, "fim_rate"):  # a GPTFIMDatasetConfig, which only custom scripts get to here
            raise refused("--fim-data")
        self.dataset_config, self.sizes, self.consumed = dataset_config, sizes, consumed
        self.micro_batch_size, self.stage, self.pipeline_layout = micro_batch_size, Stage(stage), pipeline_layout
        self.rules = SampleRules.of(dataset_config, pad=-1)  # each dataset chooses its padding token itself
        self._accept, self._readers = accept, list[Any]()  # readers of the training
        self.trains = trains and sizes[0] != 0
        files: dict[str, Any] = {"config": config, "valid": valid, "test": test, "split": split}
        if config is None:
            files |= in_place(dataset_config, saved, consumed, accept)
        train, self.valid, self.test = self._open(files, named=config is not None)
        self.run: TrainingRun | None = None
        self.count_start = 0
        if isinstance(train, OurSplit):
            if self.trains:
                dp_size = parallel_state.get_data_parallel_world_size()
                partition = Partition(micro_batch_size=micro_batch_size, dp_size=dp_size, scheme="contiguous")
                self.run = run = TrainingRun(train.blend, entry, partition=partition, rule=None, allow_changed=accept)
                with in_words_of_megatron(files["split"]):
                    resume_run(run, saved, consumed, accept)
                run.require_known()
                run.followers.append(self._follow)
                run.dp_rank = parallel_state.get_data_parallel_rank()
                self.count_start, train = run.count_start, replace(train, blend=run.blend)
            train, *evaluated = with_one_layout([train, *self.valid, *self.test])
            self.valid, self.test = evaluated[: len(self.valid)], evaluated[len(self.valid) :]
        elif self.trains:
            self.count_start = check_migrated(train, saved, consumed, accept)
        self.train: SampleSource = train
        self.fields = self._fields()
        opened = {"train": [train], "valid": self.valid, "test": self.test}
        named = {f"{name} {k}" if k else name: one for name, each in opened.items() for k, one in enumerate(each)}
        require_same_data(
            named, consumed_samples=self.count_start + consumed, micro_batch_size=micro_batch_size, stage=stage
        )

    def _open(self, files: Mapping[str, Any], named: bool) -> tuple[SampleSource, list[Any], list[Any]]:
        """Splits of the run, as the configurations have them from sample 0 on. named: by a YAML."""
        given, rules, sizes = self.dataset_config, self.rules, self.sizes
        train: SampleSource
        valid: list[Any]
        test: list[Any]
        configs = load_configs(**files, seq_length=rules.seq_length, seed=given.random_seed, trains=self.trains)
        for config, split in zip(configs[1:], ("valid", "test"), strict=True):
            if config is not None and files[split] is not None:
                EVALUATION.check(config)
                check_evaluation(config, f"--conceptloader-{split}-config")
        if rules.by_document and configs[0].packing is None:
            raise ConfigError(
                "--sft",
                "a configuration without packing",
                "packs: windows would cut conversations",
                "add packing: {bins: 64}, or leave --sft out",
            )
        if configs[0].loader.balance and not (rules.inter_document_masking and configs[0].taken_over is None):
            raise ConfigError(
                "loader.balance",
                "true without --dataloader-inter-document-masking, or with `order: megatron`",
                "attention that ends at documents, in conceptloader's order",
                "pass --dataloader-inter-document-masking (from core 0.19 on), or omit loader.balance",
            )
        if configs[0].outputs.loss_weight is not None and not self.stage.computes_loss:
            raise ConfigError(
                "outputs.loss_weight",
                f"with concept stage {self.stage.name}: the stage that computes the losses would not get the weights",
                "the last stage among those that get concepts",
                "pass --conceptloader-concept-stage last or all, or omit outputs.loss_weight",
            )
        if configs[0].taken_over:
            if any(files[name] is not None for name in ("valid", "test", "split")):
                raise ConfigError(
                    "order: megatron",
                    "a configuration for valid or test, or a split",
                    "the splits of Megatron's arguments",
                    "omit --conceptloader-valid-config, --conceptloader-test-config and split, and keep the "
                    "--split of the run so far",
                )
            train, *taken = open_taken_over(configs[0], given, sizes, rules, self.trains)
            valid, test = ([] if one is None else [one] for one in taken)
        else:
            if named and (given.blend or given.blend_per_split):
                raise ConfigError(
                    "--data-path",
                    "both --data-path and --conceptloader-config",
                    "one source of data",
                    "omit --data-path or --conceptloader-config",
                )
            # As in Megatron, a blend that --split cuts is one set.
            several = bool(getattr(given, "multiple_validation_sets", None)) and (named or given.split is None)
            with in_words_of_megatron(files["split"]):
                train = OurSplit(open_blend(configs[0]), rules)
                valid, test = (
                    [] if config is None or size == 0 else open_evaluation(config, size, sets, rules)
                    for config, size, sets in zip(configs[1:], sizes[1:], (several, False), strict=True)
                )
        if sizes[1] != 0 and not valid:
            raise ConfigError(
                "evaluation",
                f"no data, but {sizes[1] or 'all'} samples to evaluate on",
                "data for evaluation",
                "give --split with a second number above 0, or --conceptloader-valid-config, or switch it off "
                "with --eval-iters 0",
            )
        return train, valid, test

    def _fields(self) -> tuple[Field, ...]:
        """The fields of a sample besides Megatron's keys."""
        assert self.train.layout is not None
        fields = fields_of(self.train.layout)
        aligned = [field.name for field in fields if field.along]
        if aligned and self.rules.by_document and parallel_state.get_context_parallel_world_size() > 1:
            raise ConfigError(
                "--sft with --context-parallel-size",
                f"{aligned[0]}, which would not fit its tokens",
                "fields that are not aligned with tokens",
                f"omit {aligned[0]} from outputs.fields",
            )
        return fields

    @property
    def shapes(self) -> tuple[Any, ...]:
        """What ranks that read nothing have to know of a micro batch."""
        return self.fields, self.rules.inter_document_masking and self.rules.seq_length

    @property
    def spec(self) -> OrderSpec:
        return self.train.spec if self.run is None else self.run.blend.spec

    def state(self, consumed: int) -> dict[str, str]:
        """What to keep with a checkpoint at `consumed` samples of Megatron's count: one string."""
        position = self.count_start + consumed
        if self.run is not None:
            return self.run.state(position).leaf()
        return OrderState(spec=self.spec, consumed=position, more={"count_start": self.count_start}).leaf()

    def check_tokenizer(self, embedding: int | None) -> None:
        """Raise ConfigError for data of another tokenizer than Megatron's.

        That is: ids that the model's embedding lacks, or another end-of-document token, which may be accepted.

        Args:
            embedding: Rows of it, None if not known.
        """
        eod, remedy = getattr(self.dataset_config.tokenizer, "eod", None), "start with the tokenizer of the data"
        larger = f"raise --vocab-size, or {remedy}"
        for split in (self.train, *self.valid, *self.test):
            check_vocabulary(split.datasets, embedding, "the model's embedding (--vocab-size, padded)", larger)
            for name, dataset in split.datasets.items():
                ours = dataset.tokenizer
                if ours is None or None in (eod, ours.eos_id) or eod == ours.eos_id or TOKENIZER in self._accept:
                    continue
                raise ConfigError(
                    f"datasets.{name}",
                    f"tokens of {ours.name!r}, whose documents end with {ours.eos_id}",
                    f"{eod}, which Megatron's tokenizer has for that",
                    f"{remedy}, or, if the others mean the same, --conceptloader-allow-changed {TOKENIZER}",
                )

    def _follow(self, order: Any, start: int) -> None:
        for reader in self._readers:
            reader.follow(order)

    @MEGATRON.known()
    def datasets(
        self,
        *,
        is_built_on_rank: Callable[[], bool] | None = None,
        vp_stage: int | None = None,
        first: int = 0,
    ) -> list[Built]:
        """Train, valid and test datasets of the (virtual) stage of this process; None where it reads nothing.

        Args:
            is_built_on_rank: As in Megatron; by default true on tensor-parallel rank 0 of the first and the last stage.
            vp_stage: Of the pipeline stage, None without virtual stages.
            first: Sample of Megatron's count at which the training dataset begins (--phase-transition-iterations).

        Raises:
            ConfigError: If the run is longer than the data may give.
        """
        first += self.count_start
        if self.trains and self.sizes[0] and self.sizes[0] != ENDLESS:  # whose end has been checked
            self.train.check(first + self.sizes[0])
        reads = parallel_state.get_tensor_model_parallel_rank() == 0
        asked = is_built_on_rank() if is_built_on_rank else takes_tokens(self.pipeline_layout, vp_stage)
        # With inter-document masking Megatron's get_batch reads on every stage.
        tokens = reads and (asked or self.rules.inter_document_masking)
        concepts = reads and self.stage.here(vp_stage)

        def build(opened: SampleSource, split: Split, first: int = 0) -> ConceptDataset | None:
            if not (tokens or concepts):
                return None
            size, reader = self.sizes[split.value], opened.reader(concepts)
            if split == Split.train and not self.trains:
                reader = SecondTraining()
            if size is None or isinstance(opened, StockSplit):  # Megatron's indices are longer than it asks for
                size = opened.one_pass
            if split == Split.train:
                self._readers.append(reader if self.run is None else self.run.deal(reader))
            return ConceptDataset(
                reader,
                size,
                split,
                self.dataset_config,
                fields=self.fields if concepts else (),
                tokens=tokens,
                first=first,
                period=ENDLESS if split == Split.train or opened.spec.order == "shuffled" else opened.one_pass,
            )

        valid = [build(one, Split.valid) for one in self.valid]
        several = getattr(self.dataset_config, "multiple_validation_sets", None)
        return [
            build(self.train, Split.train, first) if self.sizes[0] != 0 else None,
            valid if several and valid else next(iter(valid), None),
            next((build(one, Split.test) for one in self.test), None),
        ]

    def iterator(self, dataset: ConceptDataset | None, *, num_workers: int = 0) -> SplitIterator | None:
        """Micro batches of this data-parallel rank from the consumed samples on, for get_batch and the schedules."""
        if dataset is None:
            return None
        consumed = self.count_start + self.consumed
        loader = data_loader(dataset, self.micro_batch_size, consumed - dataset.first, num_workers)
        return SplitIterator(iter(loader))

    def concepts(
        self, data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None
    ) -> Tensors | None:
        """Call once in each forward step, on all tensor-parallel ranks. None on other stages than the configured ones.

        Returns:
            The fields as tensors [B, ...] on the compute device. With context parallelism those along the sequence are
            cut as the tokens are; spans keep their positions in the whole sample.
        """
        if not self.stage.here(vp_stage):
            return None
        kept = None
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            if not isinstance(data_iterator, SplitIterator):
                raise ConfigError(
                    "concepts",
                    f"data iterator {type(data_iterator).__name__}",
                    "conceptloader's",
                    "start the script with conceptloader.launch, or call MegatronData.get_batch",
                )
            kept = data_iterator.take_concepts()
        return self._share(kept, self.fields, micro_batch_size)

    def get_batch(
        self, data_iterator: Any, vp_stage: int | None = None, micro_batch_size: int | None = None
    ) -> Tensors:
        """For scripts on megatron-core alone: Megatron's keys and the concept tensors.

        Call once in each forward step, on all ranks of the stage. A stage that needs nothing gets {}.

        Returns: on the first and last pipeline stage, and those with MTP layers, tokens, labels, position_ids
            int64 [B, S], loss_mask float32 [B, S] and, if the rules ask for it, attention_mask bool [B, 1, S, S]; on
            the concept stages those tensors too. Everything is cut for context parallelism. With inter_document_masking
            the samples of the micro batch are one sequence [1, B * S], and cu_seqlens int32 [n + 1] and max_seqlen
            int32 [] are there on every stage.
        """
        reads_tokens = self.rules.inter_document_masking or takes_tokens(self.pipeline_layout, vp_stage)
        extra = self.fields if self.stage.here(vp_stage) else ()
        fields = (*(stock_fields(self.rules) if reads_tokens else ()), *extra)
        if not fields:
            return {}
        batch = None
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            if data_iterator is None:
                raise ConfigError(
                    "get_batch",
                    "no data iterator on a rank that reads data",
                    "a data iterator",
                    "pass get_batch a data iterator on this rank too",
                )
            batch = next(data_iterator)
            if isinstance(data_iterator, SplitIterator) and extra:
                batch = {**batch, **data_iterator.take_concepts()}
        return self._share(batch, fields, micro_batch_size)

    def _share(self, tensors: Tensors | None, fields: Sequence[Field], micro_batch_size: int | None) -> Tensors:
        """`fields` on every tensor-parallel rank, the part of this context-parallel one."""
        known = self.micro_batch_size if torch.is_grad_enabled() else None  # Megatron evaluates without gradients
        found = share(tensors, fields, micro_batch_size or known)
        if self.rules.inter_document_masking:
            found = merge_samples(found, fields, self.rules.seq_length)
        return cut(found, fields)
