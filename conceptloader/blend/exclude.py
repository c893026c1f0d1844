"""Documents that are taken out of a run from a sample ahead on: samples that hold any of their tokens read nothing."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from conceptloader.base.hashing import fingerprint
from conceptloader.blend.quarantine import TokenRanges, read_lines
from conceptloader.blend.schema import ExcludeConfig
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.read.ids import AMBIGUOUS, find_many
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.paths import with_default

logger = logging.getLogger(__name__)


class Excluded(NamedTuple):
    """Tokens [start, stop) of a dataset, from the trainer's sample `at` on; int64 [n] each, rising and apart."""

    start: Ints
    stop: Ints
    at: Ints

    def first_at(self, start: Any, stop: Any) -> Any:
        """From which sample on any of tokens [start, stop) is left out, of one range or of many; NEVER for none."""
        low, high = np.searchsorted(self.stop, start, side="right"), np.searchsorted(self.start, stop)
        pairs = np.stack([low, np.maximum(low, high)], -1).reshape(-1)
        found = np.minimum.reduceat(np.append(self.at, NEVER), pairs)[::2] if len(pairs) else pairs
        found = np.where(low < high, found.reshape(np.shape(low)), NEVER)
        return found if found.ndim else int(found)

    def prints(self) -> tuple[tuple[int, str], ...]:
        """(at, fingerprint of what is excluded from there on), for each `at`, rising."""
        ranges = np.stack([self.start, self.stop], 1)
        return tuple((at, fingerprint(ranges[self.at == at].tolist())) for at in np.unique(self.at).tolist())


NEVER = np.iinfo(np.int64).max
NOTHING = Excluded(*(np.zeros(0, np.int64) for _ in range(3)))


def read_excluded(
    entries: Sequence[ExcludeConfig], datasets: Mapping[str, Dataset], roots: Sequence[str] | None
) -> dict[str, Excluded]:
    """By dataset, for those of which something is excluded; files and views read.

    Raises: ConfigError for ids that no dataset has, and for a view of another source; FormatError, ReadError.
    """
    found: dict[str, list[Excluded]] = {}
    for k, entry in enumerate(entries):
        names = list(datasets) if entry.dataset is None else [entry.dataset]
        ids: Sequence[str] = entry.ids or ()
        if entry.file is not None:
            ids = [word for line in read_lines(entry.file, "ids to exclude") if (word := line.strip())]
        total, unknown = 0, dict.fromkeys(ids)
        for name in names:
            if entry.view is None:
                start, stop = _of_ids(datasets[name], ids, unknown)
            else:
                start, stop = _complement(datasets[name], entry.view, roots, f"exclude[{k}].view")
            total += len(start)
            if len(start):
                found.setdefault(name, []).append(Excluded(start, stop, np.full(len(start), entry.at)))
        if not total:
            raise ConfigError(f"exclude[{k}]", f"nothing of it in {', '.join(names)}", "ids as in the input")
        if unknown:
            logger.warning(
                "exclude[%d]: found no document for %d ids in %s, such as %r: nothing is excluded for these",
                k, len(unknown), ", ".join(names), next(iter(unknown)),
            )  # fmt: skip
    return {name: apart(*map(np.concatenate, zip(*parts, strict=True))) for name, parts in found.items()}


def _of_ids(dataset: Dataset, ids: Sequence[str], unknown: dict[str, None]) -> tuple[Ints, Ints]:
    """The tokens of documents with these ids; `unknown` loses those that are found."""
    numbers: list[int] = []
    many = np.full(len(ids), AMBIGUOUS) if dataset.runs is not None else find_many(dataset, ids)
    for one, number in zip(ids, many.tolist(), strict=True):
        having = dataset.find_document(one) if number == AMBIGUOUS else [number] if number >= 0 else []
        if having:
            unknown.pop(one, None)
        numbers += having
    ranges = np.array([dataset.document_range(number) for number in sorted(set(numbers))], np.int64).reshape(-1, 2)
    some = ranges[:, 0] < ranges[:, 1]
    return ranges[some, 0], ranges[some, 1]


def _complement(dataset: Dataset, path: str, roots: Sequence[str] | None, where: str) -> tuple[Ints, Ints]:
    """The tokens of a dataset that a view of the same files lacks."""
    with open_dataset(path, with_default(path, roots)) as view:
        same = view.manifest.stream_fingerprint() == dataset.manifest.stream_fingerprint()
        if view.runs is None or not same:
            raise ConfigError(where, str(path), f"a view of {dataset.source}, or of what that is a view of")
        start, stop = np.append(0, view.runs.end), np.append(view.runs.source, view.manifest.num_tokens)
        some = start < stop
        return dataset.placed(start[some], stop[some])[1:]


def left_out(excluded: Excluded, quarantine: TokenRanges) -> Excluded:
    """Both: what is quarantined is so from the first sample on."""
    ranges = np.array(quarantine, np.int64).reshape(-1, 2)
    quarantined = ranges[:, 0], ranges[:, 1], np.zeros(len(ranges), np.int64)
    return apart(*map(np.concatenate, zip(excluded, quarantined, strict=True)))


def apart(start: Ints, stop: Ints, at: Ints) -> Excluded:
    """Ranges [start, stop) from `at` on, in any order: where several hold, the earliest."""
    if not len(at):
        return NOTHING
    borders = np.unique(np.concatenate([start, stop]))
    since = np.full(len(borders), NEVER)
    order = np.argsort(-at, kind="stable")
    low, high = np.searchsorted(borders, start[order]).tolist(), np.searchsorted(borders, stop[order]).tolist()
    for a, b, one in zip(low, high, at[order].tolist(), strict=True):
        since[a:b] = one
    change = np.flatnonzero(np.diff(since, prepend=NEVER))
    found = borders[change], np.append(borders[change[1:]], borders[-1]), since[change]
    return Excluded(*(column[found[2] < NEVER] for column in found))
