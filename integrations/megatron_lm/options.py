"""What a run is to read: the launcher's options, and the configuration of each of Megatron's splits.

Megatron never sees the launcher's options, so its parser needs no patch.
"""

import argparse
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)

from conceptloader.base.strict import unknown
from conceptloader.base.version import PAGES
from conceptloader.config import Config, Outputs, load_config
from conceptloader.config.replayed import replayed_segments
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.order.progress.state import OrderState

from .megatron_order import cache_of

OPTIONS = {
    "--conceptloader-config": "config",
    "--conceptloader-valid-config": "valid",
    "--conceptloader-test-config": "test",
    "--conceptloader-concept-stage": "stage",
    "--conceptloader-allow-changed": "accept",
}
"""Of the launcher, and what they are called as arguments of MegatronData."""
DATA = tuple(f"--{kind}data-path" for kind in ("", "train-", "valid-", "test-"))
DATA += ("--data-args-path", "--per-split-data-args-path")  # Megatron's options that name .bin/.idx files
_LOGITS = (
    "it compares the data of teacher and student by Megatron's arguments, which are the same for all data here",
    "write the teacher's values as columns, which belong to the tokens (conceptloader.column_writer), and read them "
    f"with outputs.columns: {PAGES}/distillation.md; or compute them on the student's micro batches "
    "(--export-kd-teacher-load)",
)
REFUSED = {
    "--fim-data": (
        "samples are as the dataset has them",
        "cut the documents before conceptloader build, or train in a loop of your own with examples/pytorch/fim.py: "
        f"{PAGES}/packing.md",
    ),
    "--logits-save-dir": _LOGITS,
    "--logits-load-dir": _LOGITS,
    "--mock-data": ("it would train on random tokens, and the configuration would have no effect", "omit one of them"),
    "--perform-rl-step": ("it trains on rollouts and builds no datasets", "start it without conceptloader"),
}
"""Megatron's options that cannot be with conceptloader's data: why, and what to do."""
WHERE = "conceptloader's state in the checkpoint"
NO_STATE = "loader"  # accepts a checkpoint without conceptloader's state
ORDER = "order"  # continues a run of Megatron's own samples in conceptloader's order
Source = Path | str | Mapping[str, Any]
"""A YAML file, or what one says."""
LOG = "log"  # takes the state that a checkpoint lacks from the run log
TOKENIZER = "tokenizer"  # accepts another end-of-document token
# Those above, and where the names of differences from a checkpoint's past begin (order/progress/resume.py).
ACCEPT = {NO_STATE, ORDER, LOG, TOKENIZER, "datasets", "exclude", "extra", "phases"}
ACCEPT |= {"seed", "block", "seq_len", "skips", "mixing"}


@dataclass(frozen=True)
class Stage:
    """Which pipeline stages get concept tensors: "first", "last", "all", "none" or a number.

    Stages are numbered through the model: virtual stage v of pipeline rank p is v * pipeline_size + p.
    """

    name: str = "last"

    def __post_init__(self) -> None:
        if self.name not in ("first", "last", "all", "none") and not self.name.isdecimal():
            raise ConfigError(
                "--conceptloader-concept-stage",
                repr(self.name),
                "first, last, all, none or a stage number",
                "pass first, last, all, none or a stage number",
            )

    def here(self, vp_stage: int | None = None) -> bool:
        """Whether the (virtual) stage of this process is meant."""
        if self.name in ("all", "none"):
            return self.name == "all"
        wanted, ranks = self._number, parallel_state.get_pipeline_model_parallel_world_size()
        if _stages() > ranks and vp_stage is None:
            raise ConfigError(
                "concepts",
                "no vp_stage with virtual pipeline stages",
                "the vp_stage that Megatron's own get_batch takes",
                "pass vp_stage to concepts()",
            )
        return bool(wanted == (vp_stage or 0) * ranks + parallel_state.get_pipeline_model_parallel_rank())

    @property
    def computes_loss(self) -> bool:
        """Whether the last stage is meant, alone or with others."""
        return self.name == "all" or (self.name != "none" and self._number == _stages() - 1)

    @property
    def _number(self) -> int:
        """Not of all or none."""
        wanted = {"first": 0, "last": _stages() - 1}[self.name] if not self.name.isdecimal() else int(self.name)
        if wanted >= _stages():
            raise ConfigError(
                "--conceptloader-concept-stage",
                f"{wanted}",
                f"0 to {_stages() - 1}, since the pipeline has {_stages()} stages",
                f"pass --conceptloader-concept-stage from 0 to {_stages() - 1}",
            )
        return wanted


def _stages() -> int:
    chunks = parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1
    return int(parallel_state.get_pipeline_model_parallel_world_size()) * chunks


def take_options(argv: Sequence[str]) -> tuple[dict[str, Any] | None, list[str]]:
    """(arguments of MegatronData, the words left for Megatron). None if these name no data.

    Raises ConfigError for an option of conceptloader that is unknown, renamed or misspelt, or given without data, for
    an unknown stage or difference to accept, and for options in REFUSED.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for option, name in OPTIONS.items():
        parser.add_argument(option, dest=name, nargs="+" if name == "accept" else None)
    parser.set_defaults(stage="last", accept=())
    try:
        found, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError("", str(error)) from error
    names = [word.partition("=")[0] for word in rest if word.startswith("--")]
    for name in names:
        if name.startswith("--conceptloader") or difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.8):
            raise unknown("command line", name, OPTIONS, "option")
    given = vars(found)
    has_paths = any(name in DATA for name in names)
    if found.config is None:
        for option, name in OPTIONS.items():
            alone = name in ("valid", "test") or not has_paths
            if alone and given[name] != parser.get_default(name):
                raise ConfigError(
                    option,
                    f"no --conceptloader-config with {option}",
                    "--conceptloader-config as well",
                    f"add --conceptloader-config FILE, or omit {option}",
                )
        if not has_paths:
            return None, rest
    Stage(found.stage)
    for name in names:
        if name in REFUSED:
            raise refused(name)
    for name in found.accept:
        if name.partition(".")[0] not in ACCEPT:
            raise unknown("--conceptloader-allow-changed", name.partition(".")[0], ACCEPT, "value")
    return given, rest


def refused(option: str) -> ConfigError:
    """The error for one in REFUSED."""
    why, instead = REFUSED[option]
    return ConfigError(option, f"found with conceptloader's data: {why}", fix=instead)


def in_place(given: Any, saved: Mapping[str, Any] | None, consumed: int, accept: Collection[str]) -> dict[str, Any]:
    """`config`, `valid`, `test` and `split` of the .bin/.idx files that Megatron's arguments name, where they are.

    given: has blend, blend_per_split, split and path_to_cache, as GPTDatasetConfig. A run that Megatron's own loader
    began, or that has continued with its samples, is migrated, unless `accept` says otherwise.
    """
    adopt = import_module("conceptloader.ingest.adopt.in_place")
    cache, blends = given.path_to_cache, given.blend_per_split or [given.blend, None, None]
    for weights in [blend[1] for blend in blends if blend and blend[1]]:
        if not (min(weights) >= 0 and sum(weights) > 0):
            raise ConfigError(
                "--data-path", f"weights {weights}", "weights of 0 or more, one of them above 0", "pass one above 0"
            )
    began = saved is None or OrderState.read(saved, WHERE).spec.order == "megatron"
    if consumed and began and not {ORDER, NO_STATE} & set(accept):
        paths = list(dict.fromkeys(path for blend in blends if blend for path in blend[0]))
        indices = cache_of(paths[0]) if cache is None and len(paths) == 1 else cache
        if indices is None or (cache is None and not Path(indices).is_dir()):
            raise ConfigError(
                "--data-cache-path",
                "nothing",
                "that of the run so far, whose samples were chosen by Megatron's own loader",
                "pass the --data-cache-path of that run or, to continue with other samples, "
                "--conceptloader-allow-changed loader",
            )
        return {"config": {"order": {"megatron": indices}, **adopt.datasets_in_place((paths, None), cache)}}
    of_split = [
        blend and {"weights": "by_size" if blend[1] is None else "manual", **adopt.datasets_in_place(blend, cache)}
        for blend in blends
    ]
    if given.split is not None and shares_of(given.split)[0] != (0, 1):
        check_sequences(given.split, adopt.divided_documents(blends[0][0]))
    return {**dict(zip(("config", "valid", "test"), of_split, strict=True)), "split": given.split}


def load_configs(
    config: Source | None,
    valid: Source | None,
    test: Source | None,
    split: str | None,
    seq_length: int,
    seed: int,
    trains: bool = True,
) -> tuple[Config, Config | None, Config | None]:
    """Configurations of train, valid and test, None where there is no data.

    Without files of their own, valid and test are the shares of the training data that --split gives them.
    seq_length, seed: Megatron's. The first one holds for every file, the second where a file gives none. trains: if
    not, the first one of an evaluation may stand for that of the training.

    Raises ConfigError for --split together with a file for valid or test, and for another sequence length in a file.
    """
    own = [
        None if path is None else load_config(path, defaults={"seed": seed}).with_seq_len(seq_length)
        for path in (config, valid, test)
    ]
    if split is not None:
        if own[1:] != [None, None]:
            raise ConfigError(
                f"--split {split}",
                "--split with a configuration for valid or test",
                "only one of the two",
                "omit --split",
            )
        own = [None if share is None or own[0] is None else with_share(own[0], share) for share in shares_of(split)]
    of_train, *rest = own
    if not trains:
        of_train = of_train or next(filter(None, rest))
    if of_train is None:
        option = "--train-data-path" if split is None else f"--split {split}"
        fix = "pass --train-data-path" if split is None else "raise the first number of --split"
        raise ConfigError(option, "nothing to train on", "data for training", fix)
    for evaluated in filter(None, rest):
        for name in evaluated.tracks:
            if name not in of_train.tracks:
                raise ConfigError(
                    f"tracks.{name}",
                    "a track of the evaluation configuration only",
                    "a track of the training as well: all batches have its tensors",
                    f"add tracks.{name} to the training configuration too, or remove it",
                )
    of_valid, of_test = (c and replace(c, tracks=of_train.tracks) for c in rest)
    return of_train, of_valid, of_test


@contextmanager
def in_words_of_megatron(split: str | None) -> Iterator[None]:
    """Errors name the options that say what a configuration would, not keys that nobody wrote. split: of --split."""
    words = {"seq_len": "--seq-length", **({} if split is None else {"split_documents": f"--split {split}"})}
    try:
        yield
    except (ConfigError, ResumeError) as error:
        parts = [error.path, error.expected, error.fix]
        for key, option in words.items():
            parts = [re.sub(rf"(?<![\w./-]){key}(?![\w./-])", option, part) for part in parts]
        found = error.found  # names of differences stay, by which they are allowed
        for option, key in (("--split", "extra.split_documents"), ("--seq-length", "seq_len")):
            found = found.replace(f"  {key}: saved", f"  {option} ({key}): saved")
        raise type(error)(parts[0], found, *parts[1:], code=error.code) from error


def shares_of(split: str) -> list[tuple[float, float] | None]:
    """Megatron's own reading of --split: the share of the documents that each of train, valid and test is."""
    shares: list[tuple[float, float] | None] = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))
    return shares


def check_sequences(split: str, divided: tuple[str, int, int] | None) -> None:
    """Raise ConfigError for files whose documents have several sequences: these are what Megatron counts.

    divided: an index of such documents, its sequences and documents.
    """
    if divided is not None:
        index, sequences, documents = divided
        raise ConfigError(
            f"--split {split}",
            f"{sequences} sequences in {documents} documents in {index}",
            "one sequence in each document: Megatron's --split counts sequences and conceptloader "
            "documents, so that other data would be held out",
            "give files for each split (--train-data-path and related options), or adopt these and use a YAML",
        )


def with_share(config: Config, share: tuple[float, float]) -> Config:
    """The same datasets, each cut down to a share of its documents.

    The share is [share[0], share[1]) of them, or of those that its own `split` leaves. A share is a sum of Megatron's,
    which may miss 1 by a rounding.
    """
    low, high = float(share[0]), min(float(share[1]), 1.0)
    if config.split_documents is not None:
        raise ConfigError(
            "split_documents",
            "split_documents with --split, which cuts the same way",
            "only one of the two",
            "omit split_documents or --split",
        )
    return replace(config, split_documents=None if (low, high) == (0, 1) else (low, high))


def check_evaluation(config: Config, option: str) -> None:
    """Raise ConfigError for what belongs to the course of a training, without effect in the file of `option`."""
    found = [key for key in ("continue_from", "skip", "exclude") if getattr(config, key)]
    found += [f"phases[{k}]" for k, phase in enumerate(config.phases) if phase.at]
    found += [f"datasets.{name}.max_epochs" for name, one in config.datasets.items() if one.max_epochs is not None]
    if found:
        raise ConfigError(
            found[0],
            f"it in the file of {option}, which is an evaluation",
            "no such key there",
            f"omit {found[0]} from the file of {option}",
        )


def for_evaluation(config: Config) -> Config:
    """Its blend at sample 0, for as long as it lasts: no phases, skips or limits of the training."""
    weights = {name: entry.weight for name, entry in config.datasets.items()}
    replayed = replayed_segments(config)
    if replayed:
        config = replace(config, weights="manual", temperature=1.0)  # both are in what is replayed
    phases: tuple[Any, ...] = replayed or config.phases
    if phases and phases[0].at == 0:
        weights = dict(phases[0].weights)
    kept = {name: weights[name] for name in config.datasets if weights.get(name)}
    return _reduced(config, kept or dict.fromkeys(config.datasets))


def one_pass(config: Config, names: Iterable[str] | None = None) -> Config:
    """Every window of the datasets (default: all) once, in order: for --full-validation."""
    weights = dict.fromkeys(config.datasets if names is None else names)
    return _reduced(config, weights, order="sequential", weights="manual")


def _reduced(config: Config, kept: Mapping[str, float | None], **changes: Any) -> Config:
    """Some of the datasets with their weights, without what belongs to the course of a training."""
    if config.taken_over:
        return config
    given = config.datasets
    datasets = {n: replace(given[n], max_epochs=None, weight=w) for n, w in kept.items()}
    corrupt = tuple(entry for entry in config.exclude if entry.at is None and entry.dataset in kept)
    course: dict[str, Any] = {"phases": (), "skip": (), "mixing": None, "replay": None, "metrics": False}
    return replace(config, **{**course, "datasets": datasets, "exclude": corrupt, **changes})


def wanted(config: Config, concepts: bool) -> Config:
    """The configuration without what Megatron makes itself, and without concepts where none are asked for.

    Raises ConfigError for position ids, which Megatron's command line decides.
    """
    if config.outputs.position_ids == "document":
        raise ConfigError(
            "outputs.position_ids",
            "document",
            "no value: Megatron's options decide",
            "omit outputs.position_ids, and pass --reset-position-ids",
        )
    outputs = replace(config.outputs, position_ids="off")
    if not concepts:
        decide = ("position_ids", "mask_document_boundaries", "loss_on_eos", "dataset_id")  # tokens and their loss
        outputs = Outputs(sample_index=False, **{name: getattr(outputs, name) for name in decide})
        bare = {name: replace(entry, loss_weight=None) for name, entry in config.datasets.items()}
        config = replace(config, datasets=bare)
    return replace(config, outputs=outputs, tracks=config.tracks if concepts else {})
