"""Which configuration serves which of Megatron's splits: train, valid and test."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)

from conceptloader.blend import Config, QuarantineConfig, load_config
from conceptloader.errors import ConfigError

Share = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configs:
    """A configuration for each split, None for one that there is no data for."""

    train: Config
    valid: Config | None = None
    test: Config | None = None


def load_configs(
    train: Path | str, valid: Path | str | None, test: Path | str | None, split: str | None, seq_length: int, seed: int
) -> Configs:
    """Read the files; without files of their own, valid and test are cut off the training data by --split.

    seq_length, seed: Megatron's. The first one holds for every file, the second where a file gives none.

    Raises ConfigError for --split together with a file for valid or test, and for another sequence length in a file.
    """
    own = [None if path is None else load(path, seq_length, seed) for path in (train, valid, test)]
    assert own[0] is not None
    if split is None:
        return Configs(train=own[0], valid=own[1], test=own[2])
    if own[1] is not None or own[2] is not None:
        raise ConfigError(f"--split {split}: found with a configuration for valid or test as well; give one of the two")
    shares = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))
    parts = [None if share is None else with_share(own[0], share) for share in shares]
    if parts[0] is None:
        raise ConfigError(f"--split {split}: leaves nothing to train on")
    return Configs(train=parts[0], valid=parts[1], test=parts[2])


def load(path: Path | str, seq_length: int, seed: int) -> Config:
    """One file, at Megatron's sequence length."""
    return load_config(path, defaults={"seed": seed}).with_seq_len(seq_length)


def with_share(config: Config, share: Share) -> Config:
    """The same datasets, each cut down to [share[0], share[1]) of what its own `split` leaves."""
    datasets = {}
    for name, entry in config.datasets.items():
        low, high = entry.split or (0.0, 1.0)
        datasets[name] = dataclasses.replace(entry, split=(inside(low, high, share[0]), inside(low, high, share[1])))
    return dataclasses.replace(config, datasets=datasets)


def inside(low: float, high: float, share: float) -> float:
    """The point at `share` of [low, high]; exactly `high` at 1, so that neighbouring splits meet."""
    return high if share >= 1 else low + (high - low) * share


def for_evaluation(config: Config) -> Config:
    """Its blend at sample 0, for as long as it lasts: no phases, skips or limits of the training."""
    if config.order == "megatron":
        return config
    at_start = config.phases[0].weights if config.phases and config.phases[0].start == 0 else None
    weights = dict.fromkeys(config.datasets, 0.0) | dict(
        at_start or {name: entry.weight or 0.0 for name, entry in config.datasets.items()}
    )
    names = [name for name in config.datasets if weights.get(name)] or list(config.datasets)
    entries = {
        name: dataclasses.replace(config.datasets[name], max_epochs=None, weight=weights.get(name) or None)
        for name in names
    }
    return dataclasses.replace(config, phases=(), skip=(), datasets=entries, quarantine=quarantine_of(config, names))


def one_pass(config: Config, names: Iterable[str] | None = None) -> Config:
    """Every window of the datasets (default: all) once, in order: for --full-validation."""
    if config.order == "megatron":
        return config
    kept = list(config.datasets if names is None else names)
    entries = {name: dataclasses.replace(config.datasets[name], max_epochs=None, weight=None) for name in kept}
    return dataclasses.replace(
        config, order="sequential", phases=(), skip=(), weights="given",
        datasets=entries, quarantine=quarantine_of(config, kept),
    )  # fmt: skip


def quarantine_of(config: Config, names: Iterable[str]) -> tuple[QuarantineConfig, ...]:
    """The damaged ranges of some of the datasets."""
    kept = set(names)
    return tuple(entry for entry in config.quarantine if entry.dataset in kept)
