"""Which steps contain a document or a concept: from tokens to windows to samples to steps, by inverse mappings.

Nothing here scans the run: the cost is the same for a run of a thousand and of a billion samples.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.spec.columns import Ints
from conceptloader.trace.concepts import Columns, Concept, Expression, concept_windows, ids_of
from conceptloader.trace.ranges import Interval, ranges_of, samples_touching
from conceptloader.trace.run import EVERY, Run
from conceptloader.trace.samples import Seen

_FIRST = 1 << 20  # tokens that are looked at before the first answers
_ANSWERS = 1 << 16
"""About how many are looked up at once."""


@dataclass(frozen=True, kw_only=True)
class DocumentSeen(Seen):
    """A sample that holds some of a document: at which positions [start, end) of input_ids and of labels, or None.

    document: its number in the dataset. id: the one it had in the input, if any.
    """

    document: int
    id: str | None
    inputs: Interval | None
    labels: Interval | None


@dataclass(frozen=True, kw_only=True)
class ConceptSeen(Seen):
    """A sample with tokens that carry a concept: how many of its inputs, how many of its labels."""

    inputs: int
    labels: int


def locate_document(
    run: Run,
    document: str | int,
    num_samples: int | None = None,
    dataset: str | None = None,
    limit: int | None = None,
) -> list[DocumentSeen]:
    """Every sample in which a document is seen, in order.

    Args:
        run: The run, see `open_run`.
        document: Its id in the input; or its number, together with its dataset.
        num_samples: Length of the run; None: the first epoch of each dataset.
        dataset: Name of the dataset; by default any.
        limit: Only so many, the first ones; nothing after them is looked for.

    Raises:
        ConfigError: If there is no such document.
    """
    return list(itertools.islice(sightings(run, [document], num_samples, dataset), limit))


def sightings(
    run: Run, documents: Sequence[str | int], num_samples: int | None = None, dataset: str | None = None
) -> Iterator[DocumentSeen]:
    """The same of several documents, each as it is found: the samples of an epoch come before those of the next."""
    each = (one for document in documents for one in find_documents(run, document, dataset, num_samples))
    found = [_of_document(*one, num_samples) for one in each]
    return heapq.merge(*found, key=lambda one: (one.sample, one.document))


def _of_document(run: Run, index: int, number: int, num_samples: int | None) -> Iterator[DocumentSeen]:
    member = run.member(index)
    start, stop = member.dataset.document_range(number)
    name = member.dataset.document_id(number)
    if member.by_document:
        windows = np.array([number - member.view.start])
        windows = windows[(windows >= 0) & (windows < member.view.count)]
    else:
        windows = samples_touching(member, np.array([start]), np.array([stop]), 0, member.view.count)
    read = ranges_of(member, windows)  # once, of those that hold it: not of all packs of a block, in each epoch
    read = read.take((np.maximum(read.start, start) < np.minimum(read.stop, stop)) | member.by_document)
    rows = np.unique(read.row)
    for epoch in run.epochs(index, num_samples):
        for k, time in _times(run, index, windows[rows], range(epoch, epoch + 1), num_samples, by_sample=True):
            parts = read.take(np.arange(*np.searchsorted(read.row, [rows[k], rows[k] + 1])))
            for part in parts.take(parts.since > time["sample"]).joined().parts():
                inputs, labels = part.positions(start, stop)
                yield DocumentSeen(**time, document=number, id=name, inputs=inputs, labels=labels)


def excluded_since(run: Run, document: str | int, dataset: str | None = None) -> dict[tuple[str, int], int]:
    """Return from which sample on the tokens of documents are not read.

    Args:
        run: The run, see `open_run`.
        document: Its id, or its number in `dataset`.
        dataset: Name of a dataset; by default all are searched for the id.

    Returns:
        (dataset, number) of a document with excluded tokens -> the sample from which on these are not
        read, 0 if they never are.
    """
    found: dict[tuple[str, int], int] = {}
    for era, index, number in find_documents(run, document, dataset):
        view = era.member(index).view
        tokens, key = view.dataset.document_range(number), (run.data_name(era, view.name), number)
        since = max(era.first, min(view.mask.since(*tokens), view.holes.own.since(*tokens)))
        if since >= era.stop:  # what an earlier launch excluded is read again
            found.pop(key, None)
        elif since == era.first:
            found.setdefault(key, since)
        else:
            found[key] = since
    return found


def find_documents(
    run: Run, document: str | int, dataset: str | None, num_samples: int | None = None
) -> list[tuple[Run, int, int]]:
    """(run of one order, index of a member, number) of a document. Raises: see locate_document."""
    if isinstance(document, int) and dataset is None:
        raise ConfigError(
            "document",
            f"the number {document} without a dataset",
            "the dataset that has this number",
            "name the dataset, or give the document's id",
        )
    searched = _searched(run, dataset, num_samples)
    found = [
        (era, index, number)
        for era, index in searched
        for number in ([document] if isinstance(document, int) else era.member(index).dataset.find_document(document))
    ]
    if not found:
        raise ConfigError(
            "document",
            f"no {document!r} in {', '.join(sorted({era.name(index) for era, index in searched}))}",
            "an id as in the input",
            "name documents without ids by dataset and number",
        )
    return found


def _searched(run: Run, dataset: str | None, num_samples: int | None) -> list[tuple[Run, int]]:
    """(run of one order, index of a member) of the first samples. Raises ConfigError if no era has the dataset."""
    eras = list(run.eras(0, EVERY if num_samples is None else num_samples))
    names = [(era, k, member.view.name) for era in eras for k, member in enumerate(era.members) if member is not None]
    found = [(era, index) for era, index, name in names if dataset in (None, name)]
    if not found:
        known = sorted({name for era, _, name in names if era is eras[-1]})
        raise ConfigError("dataset", repr(dataset), f"one of {known}", "pass one of these datasets (--dataset)")
    return found


def locate_concept(
    run: Run, track: str, concept: str | int, num_samples: int | None = None, dataset: str | None = None
) -> Iterator[ConceptSeen]:
    """Every sample in which tokens carry a concept, by dataset and window, as they are found.

    Args:
        run: The run, see `open_run`.
        track: Track name.
        concept: Its name in the vocabulary of the track, or its id.
        num_samples: End of what is searched, in samples of the run; by default the first epoch of each dataset.
        dataset: Only this one; by default all with the track. One with an index (`conceptloader index`) is not read.

    Raises:
        ConfigError: If no dataset has the track, or none of those has the concept.
        FormatError: For an index that is corrupt or of another dataset.
    """
    searched = _searched(run, dataset, num_samples)
    return _concepts(searched, Expression.of(Concept(track, concept)), num_samples)


def locate_where(
    run: Run, where: str, num_samples: int | None = None, dataset: str | None = None
) -> Iterator[ConceptSeen]:
    """Every sample with a token for which SQL over its concepts is true; the rest as in locate_concept.

    Raises:
        ConfigError: As it does, for scores that a track lacks, and for an expression of something else.
    """
    searched = _searched(run, dataset, num_samples)
    tracks = {track for era, index in searched for track in era.member(index).dataset.concept_tracks}
    return _concepts(searched, Expression(where, tracks, tokens=True), num_samples)


def _concepts(
    searched: Sequence[tuple[Run, int]], expression: Expression, num_samples: int | None
) -> Iterator[ConceptSeen]:
    datasets = {k: era.member(index).dataset for k, (era, index) in enumerate(searched)}
    ids = ids_of(datasets, expression.concepts)
    each = {k: Columns(datasets[k], expression, some) for k, some in ids.items()}
    return (one for k, columns in each.items() for one in _concept_seen(*searched[k], columns, num_samples))


def _times(
    run: Run, index: int, windows: Ints, epochs: range, num_samples: int | None, *, by_sample: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each time that one of some windows, none of them excluded, is read: its place there, and the fields of Seen.

    by_sample: in the order of samples, not of windows.
    """
    some = max(1, len(windows) if by_sample else _ANSWERS // max(1, len(epochs)))
    stop = run.stop if num_samples is None else min(run.stop, num_samples)
    for low in range(0, len(windows), some):
        draws = [np.zeros((3, 0), np.int64)]
        for epoch in epochs:
            samples = run.blend.order.indices_of_windows(index, epoch, windows[low : low + some])
            read = np.flatnonzero((run.first <= samples) & (samples < stop))
            draws.append(np.stack([read, np.full_like(read, epoch), samples[read]]))
        found = np.concatenate(draws, 1)
        for k, epoch, sample in found[:, np.argsort(found[2 * by_sample], kind="stable")].T.tolist():
            time = {"sample": sample, "places": run.places(sample), "dataset": run.name(index), "epoch": epoch}
            yield low + k, {**time, "window": int(windows[low + k])}


def _concept_seen(run: Run, index: int, columns: Columns, num_samples: int | None) -> Iterator[ConceptSeen]:
    for found in concept_windows(run.member(index), columns, _FIRST):
        windows, begin = np.unique(found.windows, return_index=True)
        end = np.append(begin[1:], len(found.windows))
        for k, time in _times(run, index, windows, run.epochs(index, num_samples), num_samples):
            read = np.arange(begin[k], end[k])[found.since[begin[k] : end[k]] > time["sample"]]
            if len(read):
                yield ConceptSeen(**time, inputs=int(found.inputs[read].sum()), labels=int(found.labels[read].sum()))
