"""Whether a model has an embedding for every token id of the datasets, and whether concept ids mean one thing."""

from collections.abc import Mapping

from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset


def check_vocabulary(datasets: Mapping[str, Dataset], size: int | None, what: str, remedy: str) -> None:
    """Raise ConfigError for a dataset whose tokenizer has more than the `size` ids that `what` has; None: not known.

    Datasets whose manifests name no tokenizer are taken as they are.
    """
    for name, dataset in datasets.items():
        found = dataset.tokenizer
        if size is not None and found is not None and found.vocab_size > size:
            raise ConfigError(
                f"datasets.{name}",
                f"a tokenizer, {found.name!r}, of {found.vocab_size:,} tokens",
                f"at most the {size:,} of {what}",
                remedy,
            )


def check_concepts(datasets: Mapping[str, Dataset], track: str) -> None:
    """Raise ConfigError if an id of a track is one concept in a dataset and another one in the next.

    A vocabulary may continue where another ends; datasets without one are taken as they are.
    """
    having: dict[str, str] = {}  # checksum of the vocabulary -> one dataset with it
    for name, dataset in datasets.items():
        entry = dataset.tracks[track].vocabulary
        if entry is not None and dataset.tracks[track].codec == "concepts":
            having.setdefault(entry.checksum, name)
    if len(having) < 2:
        return
    names = {name: datasets[name].vocabulary(track) or [] for name in having.values()}
    most = max(names, key=lambda name: len(names[name]))
    for name in names:
        for number, (found, other) in enumerate(zip(names[name], names[most], strict=False)):
            if found != other:
                raise ConfigError(
                    f"tracks.{track}",
                    f"id {number} as {found!r} in dataset {name}, but as {other!r} in {most}",
                    "the same concept in all datasets, as a model has one row for an id",
                    "build the datasets with one vocabulary (--vocabulary FILE), or, if you distinguish them by "
                    "dataset_id, set allow_mixed_vocabularies: true",
                )
