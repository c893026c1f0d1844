"""Which steps contain a document or a concept: from tokens to windows to samples to steps, by inverse mappings.

Nothing here scans the run: the cost is the same for a run of a thousand and of a billion samples.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.trace.concepts import Columns, Expression, ids_of
from conceptloader.trace.ranges import Holding, held, runs_of_samples, samples_touching
from conceptloader.trace.run import EVERY, Run
from conceptloader.trace.samples import Seen

_FIRST = 1 << 20  # tokens that are looked at before the first answers


@dataclass(frozen=True, kw_only=True)
class Sighting(Seen):
    """A sample that holds tokens that were looked for: how many of its inputs, how many of its labels.

    document, id: whose they are, its number in the dataset and its id in the input, if it was asked for.
    """

    inputs: int
    labels: int
    document: int | None = None
    id: str | None = None


def locate_documents(
    run: Run, documents: Sequence[str | int], num_samples: int | None = None, dataset: str | None = None
) -> Iterator[Sighting]:
    """Every sample in which one of some documents is seen, in order, as they are found.

    Args:
        run: The run, see `open_run`.
        documents: Their ids in the input; or their numbers, together with their dataset.
        num_samples: Length of the run; None: the first epoch of each dataset.
        dataset: Name of the dataset; by default any.

    Raises:
        ConfigError: If there is no such document.
    """
    found, searched = list[tuple[Run, int, int]](), _searched(run, dataset, num_samples)
    for document in documents:
        if isinstance(document, int) and dataset is None:
            problem, fix = f"the number {document} without a dataset", "name the dataset, or give the document's id"
            raise ConfigError("document", problem, "the dataset that has this number", fix)
        known = len(found)
        for era, index in searched:
            named = [document] if isinstance(document, int) else era.member(index).dataset.find_document(document)
            found += [(era, index, number) for number in named]
        if len(found) == known:
            problem = f"no {document!r} in {', '.join(sorted({era.name(index) for era, index in searched}))}"
            fix = "name documents without ids by dataset and number"
            raise ConfigError("document", problem, "an id as in the input", fix)
    each = [_of_document(*one, num_samples) for one in found]
    return heapq.merge(*each, key=lambda one: (one.sample, one.document))


def locate_where(
    run: Run, where: str, num_samples: int | None = None, dataset: str | None = None
) -> Iterator[Sighting]:
    """Every sample with a token for which SQL over its concepts is true, by parts of the data, as they are found.

    Args:
        run: The run, see `open_run`.
        where: The expression, such as "'red' in concepts".
        num_samples: As for documents.
        dataset: Only this one; by default all with the tracks. One with an index (`conceptloader index`) is not read.

    Raises:
        ConfigError: If no dataset has a track, a concept or scores, and for an expression of something else.
        FormatError: For an index that is corrupt or of another dataset.
    """
    searched = dict(enumerate(_searched(run, dataset, num_samples)))
    datasets = {k: era.member(index).dataset for k, (era, index) in searched.items()}
    expression = Expression(where, {track for one in datasets.values() for track in one.concept_tracks}, tokens=True)
    ids = ids_of(datasets, expression.concepts)
    each = [(*searched[k], Columns(datasets[k], expression, some)) for k, some in ids.items()]
    return (one for era, index, columns in each for one in _of_tokens(era, index, columns, num_samples))


def _searched(run: Run, dataset: str | None, num_samples: int | None) -> list[tuple[Run, int]]:
    """(run of one order, index of a member) of the first samples. Raises ConfigError if no era has the dataset."""
    eras = list(run.eras(0, EVERY if num_samples is None else num_samples))
    names = [(era, k, member.view.name) for era in eras for k, member in enumerate(era.members) if member is not None]
    found = [(era, index) for era, index, name in names if dataset in (None, name)]
    if not found:
        known = sorted({name for era, _, name in names if era is eras[-1]})
        raise ConfigError("dataset", repr(dataset), f"one of {known}", "pass one of these datasets (--dataset)")
    return found


def _of_document(run: Run, index: int, number: int, num_samples: int | None) -> Iterator[Sighting]:
    member = run.member(index)
    start, end = (np.array([one]) for one in member.dataset.document_range(number))
    low, high = 0, member.view.count
    if member.by_document:
        low, high = max(0, number - member.view.start), min(high, number - member.view.start + 1)
    if start < end:
        held_by = held(member, samples_touching(member, start, end, low, high), start, end)
        name = member.dataset.document_id(number)
        yield from _sightings(run, index, held_by, num_samples, document=number, id=name)


def _of_tokens(run: Run, index: int, columns: Columns, num_samples: int | None) -> Iterator[Sighting]:
    member = run.member(index)
    for low, high, first, last in runs_of_samples(member, columns.chunk, _FIRST):
        found = columns.tokens(first, last)
        windows = samples_touching(member, *found, low, high)
        yield from _sightings(run, index, held(member, windows, *found), num_samples)


def _sightings(run: Run, index: int, found: Holding, num_samples: int | None, **more: Any) -> Iterator[Sighting]:
    """Each time that one of these windows is read, the samples of an epoch before those of the next."""
    stop = run.stop if num_samples is None else min(run.stop, num_samples)
    for epoch in run.epochs(index, num_samples):
        samples = run.blend.order.indices_of_windows(index, epoch, found.windows)
        read = np.flatnonzero((run.first <= samples) & (samples < np.minimum(found.since, stop)))
        read = read[np.argsort(samples[read], kind="stable")]
        begins = np.flatnonzero(np.diff(samples[read], prepend=-1))
        if len(read):
            columns = samples[read[begins]], found.windows[read[begins]]
            counts = (np.add.reduceat(column[read], begins) for column in (found.inputs, found.labels))
            for sample, window, inputs, labels in zip(*(one.tolist() for one in (*columns, *counts)), strict=True):
                time = {"sample": sample, "places": run.places(sample), "dataset": run.name(index), "epoch": epoch}
                yield Sighting(**time, window=window, inputs=inputs, labels=labels, **more)
