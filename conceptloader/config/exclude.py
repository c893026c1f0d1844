"""The section `exclude` of a configuration: its entries as masks of datasets, files of ids and ranges read."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from conceptloader.config.mask import ALWAYS, NOTHING, Mask
from conceptloader.config.ranges import check_range, read_lines, read_ranges
from conceptloader.config.schema import ExcludeConfig
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints

logger = logging.getLogger(__name__)


class Excluded(NamedTuple):
    """What is excluded of a dataset.

    always: tokens that are never read; samples: tokens whose samples read nothing from a sample on; own: tokens that
    are padding in samples that keep the rest, no labels, and carry no spans, while the label after the last one of each
    range gives no loss either, as it is predicted from there; within: those of `own` that may begin or end within a
    document, and so within a span. They are apart, as what is never read may change while a run lives.
    """

    always: Mask = NOTHING
    samples: Mask = NOTHING
    own: Mask = NOTHING
    within: Mask = NOTHING

    @property
    def mask(self) -> Mask:
        """Tokens whose samples read nothing."""
        return self.always | self.samples

    @property
    def prints(self) -> tuple[str | None, tuple[tuple[int, str], ...]]:
        """(fingerprint of what is never read, (at, fingerprint) of the rest); those of `own` say so."""
        kinds = {"": self.samples, "own:": self.own}
        found = sorted((at, kind + text) for kind, one in kinds.items() for at, text in one.prints().items())
        return self.always.prints().get(ALWAYS), tuple(found)

    def since(self, samples: Collection[int]) -> "Excluded":
        """Of what is excluded from a sample on, that which is from one of these on."""
        return Excluded(self.always, *(mask.chosen(np.isin(mask.at, list(samples))) for mask in self[1:]))


def read_excluded(
    entries: Sequence[ExcludeConfig], datasets: Mapping[str, Dataset], past: bool = False
) -> tuple[dict[str, Excluded], dict[int, int]]:
    """Dataset -> what is excluded of it, and, by entry, how many of its ids no dataset has, where there are such.

    past: whether ranges of earlier tracks are taken, by who compares them with those of a run.

    Raises: ConfigError for ids that no dataset has, tokens outside of theirs, and ranges of another dataset or other
    tracks; FormatError, ReadError.
    """
    found, unknown_ids = dict[tuple[str, str], list[tuple[Ints, Ints, Ints]]](), dict[int, int]()
    for k, entry in enumerate(entries):
        where, missing = f"exclude[{k}]", dict[str, None]()
        names = list(datasets) if entry.dataset is None else [entry.dataset]
        by_id = entry.ids is not None or entry.file is not None
        if by_id:
            lines = read_lines(entry.file or "", "ids to exclude") if entry.ids is None else entry.ids
            missing = dict.fromkeys(word for line in lines if (word := line if entry.ids else line.strip()))
        ids, total = list(missing), 0
        for name in names:
            if by_id:
                start, stop = _of_ids(datasets[name], ids, missing).T
            elif entry.token_file is not None:
                start, stop = read_ranges(entry.token_file, datasets[name], past).T
            else:
                assert entry.tokens is not None
                check_range(*entry.tokens, f"{where}.tokens", datasets[name].num_tokens)
                start, stop = np.array([entry.tokens], np.int64).T
            total += len(start)
            at = ALWAYS if entry.at is None else entry.at
            within = ["within"] * (entry.take == "own" and not by_id)
            for kind in ["always" if entry.at is None else entry.take, *within] if len(start) else ():
                found.setdefault((kind, name), []).append((start, stop, np.full(len(start), at)))
        if by_id and not total:
            raise ConfigError(
                where,
                f"nothing that matches it in {', '.join(names)}",
                "ids as in the input",
                f"correct or remove {where}",
            )
        if missing:
            unknown_ids[k] = len(missing)
            logger.warning(
                "exclude[%d]: found no document for %d ids in %s, such as %r: nothing is excluded for these",
                k, len(missing), ", ".join(names), next(iter(missing)),
            )  # fmt: skip
    masks = {key: Mask.of(*map(np.concatenate, zip(*parts, strict=True))) for key, parts in found.items()}
    return {
        name: Excluded(*(masks.get((kind, name), NOTHING) for kind in ("always", "sample", "own", "within")))
        for name in sorted({name for _, name in masks})
    }, unknown_ids


def _of_ids(dataset: Dataset, ids: Sequence[str], missing: dict[str, None]) -> Ints:
    """int64 [n, 2]: the tokens of documents with these ids; `missing` loses those that are found."""
    found = dataset.find_documents(ids)
    for one in (one for one, having in found.items() if having):
        missing.pop(one, None)
    numbers = sorted({number for having in found.values() for number in having})
    ranges = np.array([dataset.document_range(number) for number in numbers], np.int64).reshape(-1, 2)
    return ranges[ranges[:, 0] < ranges[:, 1]]
