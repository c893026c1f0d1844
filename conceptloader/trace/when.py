"""When a document or a concept is seen: from tokens to windows to samples to steps, through the inverse of each.

Nothing here looks through the run: an answer costs the same for a run of a thousand and of a billion samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conceptloader.errors import ConfigError
from conceptloader.trace.concepts import concept_windows
from conceptloader.trace.run import Interval, Run
from conceptloader.trace.samples import Seen


@dataclass(frozen=True, kw_only=True)
class DocumentSeen(Seen):
    """A sample that holds some of a document: at which positions [start, end) of input_ids and of labels, or None."""

    document: int
    inputs: Interval | None
    labels: Interval | None


@dataclass(frozen=True, kw_only=True)
class ConceptSeen(Seen):
    """A sample with tokens that carry a concept: how many of its inputs, how many of its labels."""

    inputs: int
    labels: int


def when_document(
    run: Run, document: str | int, num_samples: int | None = None, dataset: str | None = None
) -> list[DocumentSeen]:
    """Every sample in which a document is seen, in order.

    document: its id in the input; or its number, together with its dataset. num_samples: length of the run; None: the
    first epoch of each dataset.

    Raises ConfigError if there is no such document.
    """
    if isinstance(document, int) and dataset is None:
        raise ConfigError(f"document: found the number {document}; say of which dataset, or give the document's id")
    indices = run.find(dataset)
    found = [
        (index, number)
        for index in indices
        for number in ([document] if isinstance(document, int) else run.member(index).dataset.find_document(document))
    ]
    if not found:
        raise ConfigError(
            f"document: found no {document!r} in {', '.join(sorted(map(run.name, indices)))}, expected an id as in the "
            "input; documents without ids are asked for by dataset and number"
        )
    seen = []
    for index, number in found:
        member = run.member(index)
        for window, part in member.parts_with(number):
            inputs, labels = part.positions(*member.dataset.document_range(number))
            for time in _times(run, index, window, num_samples):
                seen.append(DocumentSeen(**time, document=number, inputs=inputs, labels=labels))
    return sorted(seen, key=lambda one: (one.sample, one.document))


def when_concept(
    run: Run, track: str, concept: str | int, num_samples: int | None = None, dataset: str | None = None
) -> Iterator[ConceptSeen]:
    """Every sample in which tokens carry a concept, by dataset and window, as they are found.

    concept: its name in the vocabulary of the track, or its id. num_samples, dataset: as in when_document.

    Raises ConfigError if no dataset has the track, or none that has it knows the name.
    """
    ids = _concept_ids(run, run.find(dataset), track, concept)
    return (
        ConceptSeen(**time, inputs=inputs, labels=labels)
        for index, number in ids.items()
        for window, inputs, labels in concept_windows(run.member(index), track, number)
        for time in _times(run, index, window, num_samples)
    )


def _times(run: Run, index: int, window: int, num_samples: int | None) -> Iterator[dict[str, Any]]:
    """Each time that a window is read: the fields of Seen."""
    for epoch in run.epochs(index, num_samples):
        sample = run.blend.order.index_of_window(index, epoch, window)
        if sample is not None and (num_samples is None or sample < num_samples):
            places = run.places(sample)
            yield {"sample": sample, "places": places, "dataset": run.name(index), "epoch": epoch, "window": window}


def _concept_ids(run: Run, indices: Sequence[int], track: str, concept: str | int) -> dict[int, int]:
    """Index of each member that knows the concept -> its id there."""
    tracks = {index: run.member(index).dataset.tracks for index in indices}
    known = {index: [name for name, entry in of.items() if entry.codec == "concepts"] for index, of in tracks.items()}
    having = [index for index, names in known.items() if track in names]
    if not having:
        raise ConfigError(
            f"track: found {track!r}, expected one that holds concepts: {sorted(set().union(*known.values()))}"
        )
    if isinstance(concept, int):
        return dict.fromkeys(having, concept)
    vocabularies = {index: run.member(index).dataset.vocabulary(track) or [] for index in having}
    found = {index: names.index(concept) for index, names in vocabularies.items() if concept in names}
    if not found:
        all_names = sorted(set().union(*vocabularies.values()))
        raise ConfigError(
            f"concept: found {concept!r}, expected one of {len(all_names)} names in the vocabulary of track {track}, "
            f"such as {', '.join(all_names[:10])}"
        )
    return found
