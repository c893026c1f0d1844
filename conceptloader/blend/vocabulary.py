"""Whether a model has an embedding for every token id of the datasets."""

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
                f"datasets.{name}: its tokenizer {found.name} has {found.vocab_size} tokens, expected at most the "
                f"{size} of {what}; {remedy}"
            )
