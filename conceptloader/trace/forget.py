"""Which samples of a run hold any of many documents, by the inverse of the order: what is to be replayed without them.

docs/removal.md says what a run that is replayed from before the first of them still has of them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from conceptloader.format.read.bulk import equal_pairs, pairs
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.ranges import document_ranges, ranges_of, samples_holding
from conceptloader.trace.run import Run


class Sightings(NamedTuple):
    """Each time that a sample holds some of a document, also only as a label, by sample.

    Fields: the sample, the position of its dataset in Run.datasets, the document's number there.
    """

    sample: Ints
    dataset: Ints
    document: Ints


def documents_with(run: Run, ids: Sequence[str]) -> tuple[dict[str, Ints], list[str]]:
    """(dataset, as in Run.datasets -> numbers of its documents with one of these ids, ids that none has)."""
    known, numbers = set[str](), dict[str, Ints]()
    for name, dataset in run.datasets.items():
        found = dataset.find_documents(ids)
        numbers[name] = np.unique(np.array([number for having in found.values() for number in having], np.int64))
        known |= {one for one, having in found.items() if having}
    return numbers, [one for one in dict.fromkeys(ids) if one not in known]


def find_sightings(run: Run, documents: Mapping[str, Ints], num_samples: int) -> Sightings:
    """Where the first `num_samples` samples of a run hold any of some documents, given by dataset and numbers.

    Raises:
        ConfigError: If the run has read a dataset whose data are not there, which may have had them.
    """
    names = list(run.datasets)
    parts = [np.zeros((3, 0), np.int64)]
    for era in run.eras(0, num_samples):
        counts = era.blend.order.counts
        drawn = zip(counts(min(num_samples, era.stop)), counts(era.first), strict=True)
        for index in [k for k, (after, before) in enumerate(drawn) if after > before]:
            name = run.data_name(era, era.member(index).view.name)
            sample, document = _sightings(era, index, documents[name], num_samples)
            parts.append(np.stack([sample, np.full(len(sample), names.index(name)), document]))
    # Once each: a pack may hold two parts of a document, and a sample may have been trained again.
    return Sightings(*np.unique(np.concatenate(parts, 1), axis=1))


def _sightings(run: Run, index: int, numbers: Ints, num_samples: int) -> tuple[Ints, Ints]:
    """(sample, document) of samples of a member that hold any of some documents."""
    member = run.member(index)
    start, stop = document_ranges(member.dataset, numbers)
    numbers, start, stop = (column[start < stop] for column in (numbers, start, stop))
    windows = samples_holding(member, numbers, start, stop)
    read = ranges_of(member, windows)
    part, held = pairs(np.searchsorted(stop, read.start, side="right"), np.searchsorted(start, read.stop))
    which, _, samples = run.draws(index, windows, num_samples)
    pair, draw = equal_pairs(read.row[part], which)
    trained = samples[draw] < read.since[part[pair]]
    return samples[draw[trained]], numbers[held[pair[trained]]]
