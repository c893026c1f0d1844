"""The configuration, one schema for every framework. docs/configuration.md has all keys, and agrees with this."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from conceptloader.base.checks import falls
from conceptloader.base.lazy import lazy
from conceptloader.base.strict import Count, Natural, Positive, Rule, Section, plain, unknown, within
from conceptloader.base.terminal import masked
from conceptloader.config.add_ons import ADD_ONS, add_on
from conceptloader.config.phases import Phase, Skip
from conceptloader.errors import ConfigError, FormatError
from conceptloader.kernels.arrays import LossWeight as LossWeight
from conceptloader.kernels.arrays import Outputs
from conceptloader.order.mixture import MAX_BLOCK
from conceptloader.order.progress.spec import Overflow

MAX_BINS = 4096


class GivenPath(str):
    """A path of a configuration, absolute. given: as it is written there, with ${NAME}; None if it has none."""

    given: str | None

    def __new__(cls, path: str, given: str | None = None) -> "GivenPath":
        made = super().__new__(cls, path)
        made.given = given
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetConfig(Section):
    """path: of a dataset directory.

    weight: its proportion in the blend; None if it only takes part in phases. epochs: how often it is read, in place of
    a weight: its proportion is that of so many times its windows. split: the share [from, to) of the
    dataset, moved to starts of documents. tracks: those to read; None for the ones that the section `tracks` names.
    max_epochs: how often it may be read. loss_weight: what the weights of its losses are multiplied by.
    """

    path: str
    weight: Positive | None = None
    epochs: Positive | None = None
    split: tuple[float, float] | None = None
    tracks: tuple[str, ...] | None = None
    max_epochs: Positive | None = None
    loss_weight: Annotated[float, Rule(lambda value: value >= 0, "of 0 or more")] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MegatronOrder(Section):
    """The samples of a run of Megatron-LM's own loader, by its indices. megatron: its --data-cache-path."""

    megatron: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExcludeConfig(Section):
    """From the trainer's sample `at` on, tokens of a dataset, by default of all, that are taken out.

    They are documents: those with these ids, or with the ids in a text file, one per line. Or they are tokens
    [first, end), or those of a text file of such ranges, one to a line, as `conceptloader subset --ranges` writes for
    concepts and conditions.

    at: None for tokens that are never read, as their file is corrupt: a shard of nothing else is not opened.
    take: "sample", all of each sample that has any of them; "own", the tokens themselves, and with them the loss of the
    label after them.
    """

    at: Natural | None = None
    dataset: str | None = None
    ids: tuple[str, ...] | None = None
    file: str | None = None
    tokens: tuple[Natural, Natural] | None = None
    token_file: str | None = None
    take: Literal["sample", "own"] = "sample"


T = TypeVar("T", DatasetConfig, ExcludeConfig, MegatronOrder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingConfig(Section):
    """Samples are packs of whole documents, see docs/packing.md.

    bins: packs that the documents of a block are sorted into. overflow: of a document that does not fit whole, the rest
    goes into another pack, is dropped, or the document is an error.
    """

    bins: Annotated[int, within(2, MAX_BINS)] = 64
    overflow: Literal["split", "truncate", "error"] = "split"

    @property
    def rule(self) -> tuple[int, Overflow]:
        """(bins, overflow) in the words of order specs, which are older than these."""
        words: dict[str, Overflow] = {"split": "split", "truncate": "crop", "error": "refuse"}
        return self.bins, words[self.overflow]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConceptOptions(Section):
    """How a track becomes tensors, or, with layout records, lists of what its codec makes of each record.

    max_spans per sample, max_concepts per span: None for the largest numbers that the manifests allow. overflow: a
    dataset that may hold more is an error before training, or what is too much is dropped, and, with "mark", the
    tokens of dropped spans have -2 in span_index.
    """

    layout: Literal["padded", "ragged", "records"] = "padded"
    max_spans: Count | None = None
    max_concepts: Count | None = None
    overflow: Literal["error", "truncate", "mark"] = "error"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsConfig(Section):
    """Metrics, as with `metrics: true`. losses: those of each sample are written next to the run log, too."""

    losses: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderConfig(Section):
    """num_threads read, prefetch_batches micro batches are read ahead.

    warn_after_s, timeout_s: seconds after which a blocked read is logged, and raises.

    prefetch_bytes: what may be prefetched while a slow read delays the rest and threads are idle.
    verify_files: compare a sample of each file with the manifest when it is first opened.
    balance: deal the samples of each step to ranks and micro batches so that all have about equal work of attention.
    """

    num_threads: Count = 2
    prefetch_batches: Annotated[int, within(0, 1 << 16)] = 4
    prefetch_bytes: Natural = 1 << 29
    pin_memory: bool = False
    verify_files: bool = True
    balance: bool = False
    warn_after_s: Positive = 30
    timeout_s: Positive = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Section):
    """Everything that a configuration file may say. Paths are absolute once `load_config` has read it.

    Attributes:
        version: Of this schema.
        seed: Decides the order, with the names of the datasets.
        seq_len: Tokens of a window; None where the framework says it.
        block: Samples within which the draws of a mixture are permuted.
        order: "shuffled", "sequential" (every window once, in storage order), or {megatron: the --data-cache-path of a
            Megatron run to be taken over}.
        datasets: By name, which decides the order.
        split_documents: The share [from, to) of the documents of each dataset, of what its own `split` leaves, counted
            as Megatron-LM's --split does.
        weights: "manual": those of the datasets or phases; "by_size": by their numbers of windows.
        temperature: Weights are raised to 1 / temperature.
        phases: Changes of weights, by sample.
        mixing: What sets weights while the run lives, one of {odm: options}, {doremi: options}, {file: YAML of weights}
            and {"module:Class": options}.
        replay: Directory of a run log: its changes of weights are the phases.
        skip: Jumps of the sample index.
        exclude: Documents or ranges of tokens that no sample reads, from some sample on or ever.
        packing: Whole documents in every sample, in place of windows.
        allow_mixed_tokenizers: Accept datasets of different tokenizers.
        allow_mixed_vocabularies: Accept tracks of one name with different vocabularies.
        allowed_roots: Further directories of files of the datasets.
        continue_from: A checkpoint of another trainer, directory or file: its run is resumed here, at its position. A
            checkpoint of this trainer comes first.
        outputs: Tensors of a batch.
        tracks: Tracks of a batch, by name.
        loader: Threads, prefetching, time-outs.
        metrics: Of each step go to the trainer's loggers, and losses of samples next to the run log.

    Raises:
        ConfigError: A value breaks a rule; the error names the key.
    """

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        "shuffle": "write `order: shuffled`, which is the default, or `order: sequential`",
        "sequence_length": "write `seq_len`",
        "max_length": "write `seq_len`",
        "batch_size": "the trainer says it, as micro_batch_size of make_dataloader; omit it",
    }

    file: ClassVar[str] = ""  # that it was read from, for messages; no key, since plain data have none

    version: Literal[1] = 1
    seed: int = 1234
    seq_len: Count | None = None
    block: Annotated[int, within(1, MAX_BLOCK)] = 64
    order: Literal["shuffled", "sequential"] | MegatronOrder = "shuffled"
    datasets: dict[str, DatasetConfig]
    split_documents: tuple[float, float] | None = None
    weights: Literal["manual", "by_size"] = "manual"
    temperature: Positive = 1.0
    phases: tuple[Phase, ...] = ()
    mixing: dict[str, Any] | None = None
    replay: str | None = None
    skip: tuple[Skip, ...] = ()
    exclude: tuple[ExcludeConfig, ...] = ()
    packing: PackingConfig | None = None
    allow_mixed_tokenizers: bool = False
    allow_mixed_vocabularies: bool = False
    allowed_roots: tuple[str, ...] | None = None
    continue_from: str | None = None
    outputs: Outputs = dataclasses.field(default_factory=Outputs)
    tracks: dict[str, ConceptOptions] = dataclasses.field(default_factory=dict)
    loader: LoaderConfig = dataclasses.field(default_factory=LoaderConfig)
    metrics: bool | MetricsConfig = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outputs.loss_weight is None and any(one.loss_weight is not None for one in self.datasets.values()):
            # Whoever asks whether losses are weighed asks `outputs`.
            object.__setattr__(self, "outputs", dataclasses.replace(self.outputs, loss_weight=()))
        self._check_datasets()
        self._check_phases()
        self._check_unblended()
        self._check_weights()
        self._check_exclude()
        if self.writes_losses and not self.outputs.sample_index:
            raise ConfigError(
                "outputs.sample_index", "false with metrics.losses", "true, for losses of samples", "omit it"
            )
        for key in self._sections():
            add_on(key).check(self)

    @lazy
    def names(self) -> list[str]:
        """Names of the datasets, sorted: a sample's dataset_id is a position in this list."""
        return sorted(self.datasets)

    @property
    def taken_over(self) -> str | None:
        """The --data-cache-path of the Megatron run whose samples these are, if they are those of one."""
        return self.order.megatron if isinstance(self.order, MegatronOrder) else None

    @property
    def writes_losses(self) -> bool:
        """Whether losses of samples are written next to the run log."""
        return isinstance(self.metrics, MetricsConfig) and self.metrics.losses

    @property
    def separates_documents(self) -> bool:
        """Whether position_ids are 0 where a document begins, and attention is to end there."""
        outputs = self.outputs
        return outputs.position_ids == "document" or (self.packing is not None and outputs.position_ids == "window")

    @property
    def needed_seq_len(self) -> int:
        """seq_len. Raises ConfigError if it is not set."""
        if self.seq_len is None:
            raise ConfigError(
                "seq_len", "nothing", "the number of tokens of a sample in a batch", "set seq_len in the configuration"
            )
        return self.seq_len

    def with_seq_len(self, seq_len: int) -> "Config":
        """This configuration at the framework's sequence length.

        Raises ConfigError if it gives another one itself, or outputs that are for one's own training loop only.
        """
        for key, expected in {"shared_labels": False, "loss_mask": True, "ignore_index": None}.items():
            if getattr(self.outputs, key) != expected:
                raise ConfigError(
                    f"outputs.{key}",
                    f"{getattr(self.outputs, key)}",
                    f"{expected} with a framework, which takes loss_mask itself",
                    f"omit outputs.{key}",
                )
        if self.seq_len not in (None, seq_len):
            raise ConfigError(
                "seq_len",
                f"{self.seq_len}",
                f"{seq_len}, the sequence length of the trainer",
                "omit seq_len",
            )
        return dataclasses.replace(self, seq_len=seq_len).read_from(self.file)

    def read_from(self, file: str) -> "Config":
        """This configuration, which was read from a file."""
        object.__setattr__(self, "file", file)
        return self

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of the block say which file the key stands in, if it was read from one."""
        try:
            yield
        except (ConfigError, FormatError) as error:
            if not self.file:
                raise
            raise error.within(self.file) from error

    def with_paths(self, change: Callable[[str, str], str]) -> "Config":
        """This configuration with change(path, its key) in place of each path."""

        def changed(section: T, where: str, *names: str) -> T:
            given = {name: path for name in names if (path := getattr(section, name)) is not None}
            other = copy(section)  # what else it has is checked
            for name, path in given.items():
                object.__setattr__(other, name, change(path, f"{where}.{name}"))
            return other

        sections: dict[str, Any] = {key: add_on(key).with_paths(it, change) for key, it in self._sections().items()}
        return dataclasses.replace(
            self,
            datasets={name: changed(entry, f"datasets.{name}", "path") for name, entry in self.datasets.items()},
            exclude=tuple(
                changed(entry, f"exclude[{k}]", "file", "token_file") for k, entry in enumerate(self.exclude)
            ),
            allowed_roots=None
            if self.allowed_roots is None
            else tuple(change(root, f"allowed_roots[{k}]") for k, root in enumerate(self.allowed_roots)),
            order=changed(self.order, "order", "megatron") if isinstance(self.order, MegatronOrder) else self.order,
            replay=self.replay and change(self.replay, "replay"),
            continue_from=self.continue_from and change(self.continue_from, "continue_from"),
            **sections,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data of which `load_config` makes an equal configuration; keys without a value are omitted.

        ${NAME} stays, and passwords that URLs hold are masked: what runs keep travels with checkpoints.
        """
        data: dict[str, Any] = plain(
            self.with_paths(lambda path, key: masked(getattr(path, "given", None) or path.replace("${", "$${")))
        )
        return data

    def _check_datasets(self) -> None:
        if not self.datasets:
            raise ConfigError("datasets", "no dataset", "at least one dataset", "set datasets.NAME.path")
        for name, dataset in self.datasets.items():
            if "@" in name:
                raise ConfigError(
                    f"datasets.{name}",
                    "@ in a name, where it marks a change of seq_len",
                    "another name",
                    f"rename datasets.{name} to a name without @",
                )
            if not dataset.path:
                raise ConfigError(
                    f"datasets.{name}.path",
                    "''",
                    "the directory of a dataset",
                    f"set datasets.{name}.path, or remove datasets.{name}",
                )
        splits = {f"datasets.{name}.split": dataset.split for name, dataset in self.datasets.items()}
        for key, split in {**splits, "split_documents": self.split_documents}.items():
            if split is not None and not 0 <= split[0] < split[1] <= 1:
                raise ConfigError(
                    key, list(split), "[from, to], 0 <= from < to <= 1", f"set {key}: [0, 0.9], or other shares"
                )

    def _check_phases(self) -> None:
        starts = [phase.at for phase in self.phases]
        low = falls(starts)
        if low is not None:
            raise ConfigError(
                f"phases[{low}].at",
                str(starts[low]),
                f"more than {starts[low - 1]}, where the phase before it starts",
                f"set phases[{low}].at above {starts[low - 1]}",
            )
        for k, phase in enumerate(self.phases):
            if not phase.weights:
                raise ConfigError(
                    f"phases[{k}].weights",
                    "no weights",
                    "a weight for at least one dataset",
                    f"set phases[{k}].weights.NAME, or remove this phase",
                )
            self._check_known(phase.weights, f"phases[{k}].weights.")
        if self.replay == "":
            raise ConfigError("replay", "''", "the directory of a run log", "set replay to it, or omit replay")
        if self.replay and self.phases:
            raise ConfigError(
                "phases",
                "phases with replay, which sets weights too",
                "weights in one place",
                "omit phases, and set datasets.NAME.weight",
            )
        if starts[:1] == [0] and self.phases[0].ramp is not None:
            raise ConfigError(
                "phases[0].ramp", "a ramp from sample 0 on", "weights before it", "omit it, or set phases[0].at above 0"
            )

    def _check_known(self, names: Any, where: str) -> None:
        for name in names:
            if name not in self.datasets:
                raise unknown(f"{where}{name}", name, self.datasets, "dataset")

    def _check_unblended(self) -> None:
        if self.order == "shuffled":
            return
        unused = {
            "phases": self.phases,
            "mixing": self.mixing is not None,
            "replay": self.replay is not None,
            "skip": self.skip,
            "weights": self.weights == "by_size",
        }
        unused["metrics"] = self.taken_over is not None and self.metrics
        for name, dataset in self.datasets.items():
            own = {"weight": dataset.weight, "epochs": dataset.epochs, "max_epochs": dataset.max_epochs}
            unused |= {f"datasets.{name}.{key}": value for key, value in own.items()}
        for key, found in unused.items():
            if found:
                order = "megatron" if self.taken_over else self.order
                raise ConfigError(key, f"{key} with order {order}, which does not use it", f"no {key}", f"omit {key}")

    def _check_weights(self) -> None:
        if self.order != "shuffled":
            return
        given = {name: None for name, dataset in self.datasets.items() if dataset.weight is not None}
        often = {name: None for name, dataset in self.datasets.items() if dataset.epochs is not None}
        at_start = bool(self.phases) and self.phases[0].at == 0
        if often and (given or at_start or self.temperature != 1):
            raise ConfigError(
                f"datasets.{next(iter(often))}.epochs",
                "weights, phases[0].at: 0 or a temperature as well",
                "the proportions in one place",
                "omit datasets.NAME.weight and temperature, and set phases[0].at above 0, or omit epochs",
            )
        given |= often
        if given and not often and (self.weights == "by_size" or at_start):
            other = "weights: by_size" if self.weights == "by_size" else "phases[0], which starts at 0,"
            raise ConfigError(
                f"datasets.{next(iter(given))}.weight",
                f"{other} as well",
                "the proportions in one place",
                f"omit datasets.NAME.weight, or {other}",
            )
        if self.weights == "by_size":
            if at_start:
                raise ConfigError(
                    "phases[0].at",
                    "0 with weights: by_size",
                    "the proportions in one place",
                    "omit weights, or set phases[0].at above 0",
                )
            return
        in_phases = {name for phase in self.phases for name in phase.weights}
        for name in self.datasets:
            alone = len(self.datasets) == 1 and not at_start
            if name not in given and name not in in_phases and not alone and self.replay is None:
                raise ConfigError(
                    f"datasets.{name}.weight",
                    "no weight, and no phase names it",
                    "a weight for each dataset",
                    f"set datasets.{name}.{'epochs' if often else 'weight'} or weights: by_size, or remove the dataset",
                )
        if not given and not at_start and len(self.datasets) > 1 and self.replay is None:
            raise ConfigError(
                "datasets",
                "no weight for the samples before the first phase",
                "a weight for at least one dataset",
                "set datasets.NAME.weight",
            )

    def _sections(self) -> dict[str, Mapping[str, Any]]:
        """Those that rooms above carry out, by their keys."""
        return {key: section for key in ADD_ONS if isinstance(section := getattr(self, key, None), Mapping)}

    def _check_exclude(self) -> None:
        ways = ("ids", "file", "tokens", "token_file")
        for k, out in enumerate(self.exclude):
            where = f"exclude[{k}]"
            self._check_known([] if out.dataset is None else [out.dataset], f"{where}.dataset: ")
            given = [way for way in ways if getattr(out, way) is not None]
            if len(given) != 1:
                raise ConfigError(
                    where,
                    ", ".join(given) or "nothing",
                    f"one of {', '.join(ways)}",
                    f"keep a single one of these keys in {where}",
                )
            if self.taken_over:
                raise ConfigError(
                    "exclude", "order megatron, whose samples are not windows", "no exclude with it", "omit exclude"
                )
            ranges = given[0] in ("tokens", "token_file")
            if out.dataset is None and ranges:
                raise ConfigError(f"{where}.dataset", "nothing", f"the dataset of {given[0]}", f"set {where}.dataset")
            if out.at is None and (not ranges or out.take != "sample"):
                expected = (
                    "the first sample to which it applies; only tokens and token_file with take: sample need none"
                )
                raise ConfigError(f"{where}.at", "nothing", expected, f"set {where}.at")
            if out.tokens is not None and out.tokens[0] >= out.tokens[1]:
                raise ConfigError(
                    f"{where}.tokens",
                    list(out.tokens),
                    "[first, end], first < end",
                    f"set {where}.tokens: [first, end]",
                )
