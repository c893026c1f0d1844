"""Masks: tokens of a dataset that give no loss from a sample on, while every sample keeps its place in the order.

A configuration says `quarantine` (ranges of corrupt tokens, which are never read) or `exclude` (documents or spans,
from a sample on). Both become masks, and all other modules know masks only: a Mask of tokens whose samples read
nothing, and Holes in samples that keep the rest.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.hashing import fingerprint
from conceptloader.base.strict import unknown
from conceptloader.blend.schema import ConceptConfig, ExcludeConfig, QuarantineConfig
from conceptloader.errors import ConfigError, ReadError
from conceptloader.format.read.bulk import ragged
from conceptloader.format.read.concepts import concept_pairs, open_index
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.paths import with_default

logger = logging.getLogger(__name__)

QUARANTINED = -1
"""`at` of tokens that must not be read: before every sample, which distinguishes it from an exclusion at sample 0."""
NEVER = np.iinfo(np.int64).max


class Mask(NamedTuple):
    """Tokens [start, stop) of a dataset from the trainer's sample `at` on; int64 [n] each, ascending and disjoint."""

    start: Ints
    stop: Ints
    at: Ints

    @classmethod
    def of(cls, start: Ints, stop: Ints, at: Ints | int) -> "Mask":
        """Of ranges in any order, none of them empty: where several hold, the earliest."""
        if not len(start):
            return NOTHING
        at = np.broadcast_to(at, start.shape)
        bounds = np.unique(np.concatenate([start, stop]))
        since = np.full(len(bounds), NEVER)
        order = np.argsort(-at, kind="stable")
        low, high = np.searchsorted(bounds, start[order]).tolist(), np.searchsorted(bounds, stop[order]).tolist()
        for a, b, one in zip(low, high, at[order].tolist(), strict=True):
            since[a:b] = one
        change = np.flatnonzero(np.diff(since, prepend=NEVER))
        found = bounds[change], np.append(bounds[change[1:]], bounds[-1]), since[change]
        return cls(*(column[found[2] < NEVER] for column in found))

    def __or__(self, other: "Mask") -> "Mask":
        return Mask.of(*map(np.concatenate, zip(self, other, strict=True)))

    def since(self, start: Any, stop: Any) -> Any:
        """From which sample on any of tokens [start, stop) is masked, of one range or of many; NEVER for none."""
        low, high = np.searchsorted(self.stop, start, side="right"), np.searchsorted(self.start, stop)
        pairs = np.stack([low, np.maximum(low, high)], -1).reshape(-1)
        found = np.minimum.reduceat(np.append(self.at, NEVER), pairs)[::2] if len(pairs) else pairs
        found = np.where(low < high, found.reshape(np.shape(low)), NEVER)
        return found if found.ndim else int(found)

    def ranges(self, at: int) -> list[tuple[int, int]]:
        """Those that are masked from `at` on, QUARANTINED or a sample."""
        some = self.at == at
        return list(zip(self.start[some].tolist(), self.stop[some].tolist(), strict=True))

    def prints(self) -> dict[int, str]:
        """`at` -> fingerprint of what is masked from there on; ascending."""
        return {at: fingerprint(self.ranges(at)) for at in np.unique(self.at).tolist()}

    def most(self, tokens: int) -> int:
        """The most of its ranges that begin in any `tokens` tokens."""
        return int((np.searchsorted(self.start, self.start + tokens) - np.arange(len(self.start))).max(initial=0))

    def pieces(self, start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """(which, start, stop, at): ranges [start, stop), cut where these begin and end; at: NEVER outside of these."""
        low, high = np.searchsorted(self.stop, start, side="right"), np.searchsorted(self.start, stop)
        inside = np.maximum(high - low, 0)
        which = np.repeat(np.arange(len(start)), 2 * inside + 1)
        first, end, at = start[which], stop[which], np.full(len(which), NEVER)
        mine, of = ragged(low, inside), np.repeat(np.arange(len(start)), inside)
        k = 2 * np.arange(len(mine)) + 1 + of  # what is between two of these has a place too, maybe empty
        first[k], end[k] = np.maximum(self.start[mine], start[of]), np.minimum(self.stop[mine], stop[of])
        at[k], end[k - 1], first[k + 1] = self.at[mine], first[k], end[k]
        kept = (first < end) | (start == stop)[which]
        return which[kept], first[kept], end[kept], at[kept]

    def closed(self, dataset: Dataset) -> NDArray[np.bool_]:
        """The shards of a dataset that are quarantined as a whole: their files, document tables too, are not opened.

        Those of a view's source never are, as a mask has tokens of the view.
        """
        if dataset.runs is not None or not (self.at < 0).any():
            return np.zeros(dataset.num_shards, np.bool_)
        start, stop = np.array(dataset.shard_starts[:-1]), np.array(dataset.shard_starts[1:])
        k = np.searchsorted(self.stop, stop)
        last = np.minimum(k, len(self.stop) - 1)
        covered: NDArray[np.bool_] = (k == last) & (self.start[last] <= start) & (self.at[last] < 0)
        return covered


NOTHING = Mask(*(np.zeros(0, np.int64) for _ in range(3)))


class Holes(NamedTuple):
    """What is taken out of samples that keep the rest.

    own: tokens that are padding, no labels, and carry no spans; the label after the last one of each range gives no
    loss either, as it is predicted from there. labels: tokens that give no loss where they are labels. within: those of
    `own` that may begin or end within a document, and so within a span.
    """

    own: Mask = NOTHING
    labels: Mask = NOTHING
    within: Mask = NOTHING


WHOLE = Holes()


def read_quarantine(entries: Sequence[QuarantineConfig], num_tokens: Mapping[str, int]) -> dict[str, Mask]:
    """Dataset -> its quarantined ranges, files read.

    num_tokens: of each dataset. Raises ConfigError for a range outside its dataset, ReadError.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for k, entry in enumerate(entries):
        ranges = [(f"quarantine[{k}].tokens", entry.tokens)] if entry.tokens else _read_ranges(entry.file or "")
        size = num_tokens[entry.dataset]
        for where, (first, end) in ranges:
            if not 0 <= first < end <= size:
                expected = f"tokens of {entry.dataset}: 0 <= first < end <= {size}"
                raise ConfigError(where, f"[{first}, {end}]", expected)
            found.setdefault(entry.dataset, []).append((first, end))
    bounds = {name: np.array(ranges, np.int64) for name, ranges in found.items()}
    return {name: Mask.of(pairs[:, 0], pairs[:, 1], QUARANTINED) for name, pairs in bounds.items()}


def read_excluded(
    entries: Sequence[ExcludeConfig], datasets: Mapping[str, Dataset], roots: Sequence[str] | None
) -> tuple[dict[str, Mask], dict[str, Holes], dict[int, int]]:
    """Dataset -> tokens whose samples read nothing, and dataset -> holes in samples; files, views and tracks read.

    Both have the datasets of which something is excluded so. The third result has, by entry, how many of its ids no
    dataset has, where there are such.

    Raises: ConfigError for ids and concepts that no dataset has, and for a view of another source; FormatError,
    ReadError.
    """
    found, unknown_ids = dict[tuple[str, str], list[tuple[Ints, Ints, Ints]]](), dict[int, int]()
    for k, entry in enumerate(entries):
        names = list(datasets) if entry.dataset is None else [entry.dataset]
        concepts = {} if entry.concept is None else _find_concept(entry.concept, datasets, names, f"exclude[{k}]")
        ids: Sequence[str] = entry.ids or ()
        if entry.file is not None:
            ids = [word for line in _read_lines(entry.file, "ids to exclude") if (word := line.strip())]
        total, missing = 0, dict.fromkeys(ids)
        for name in names:
            if entry.concept is not None:
                start, stop = _of_concept(datasets[name], entry.concept.track, concepts.get(name))
            elif entry.subset is None:
                start, stop = _of_ids(datasets[name], ids, missing)
            else:
                start, stop = _complement(datasets[name], entry.subset, roots, f"exclude[{k}].subset")
            total += len(start)
            within = ["within"] * (entry.take == "own" and (entry.concept or entry.subset) is not None)
            for kind in [entry.take, *within] if len(start) else ():
                found.setdefault((kind, name), []).append((start, stop, np.full(len(start), entry.at)))
        if not total:
            expected = "ids as in the input" if entry.concept is None else "a concept that has spans"
            raise ConfigError(f"exclude[{k}]", f"nothing of it in {', '.join(names)}", expected)
        if missing:
            unknown_ids[k] = len(missing)
            logger.warning(
                "exclude[%d]: found no document for %d ids in %s, such as %r: nothing is excluded for these",
                k, len(missing), ", ".join(names), next(iter(missing)),
            )  # fmt: skip
    masks = {key: Mask.of(*map(np.concatenate, zip(*parts, strict=True))) for key, parts in found.items()}
    samples = {name: mask for (take, name), mask in masks.items() if take == "sample"}
    holes = {
        name: Holes(*(masks.get((kind, name), NOTHING) for kind in Holes._fields))
        for take, name in masks
        if take != "sample"
    }
    return samples, holes, unknown_ids


def prints_of(mask: Mask, holes: Holes) -> tuple[tuple[int, str], ...]:
    """(at, fingerprint) of what is excluded of a dataset from `at` on; those of holes say what is taken."""
    kinds = {"": mask, "own:": holes.own, "labels:": holes.labels}
    return tuple(sorted((at, kind + found) for kind, one in kinds.items() for at, found in one.prints().items()))


def _read_lines(path: str, what: str) -> list[str]:
    """Of a text file, ended by line feeds alone: an id may hold other separators.

    Raises: ReadError that says what it is.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(f"{path}: cannot read {what}: {error}") from error


def _read_ranges(path: str) -> list[tuple[str, tuple[int, int]]]:
    """(where, range) of lines of "first end"; # starts a comment."""
    ranges = []
    for number, line in enumerate(_read_lines(path, "quarantined ranges"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            raise ConfigError(where, repr(line[:80]), "two token numbers: first end")
        ranges.append((where, (int(words[0]), int(words[1]))))
    return ranges


def _of_ids(dataset: Dataset, ids: Sequence[str], missing: dict[str, None]) -> tuple[Ints, Ints]:
    """The tokens of documents with these ids; `missing` loses those that are found."""
    found = dataset.find_documents(ids)
    for one in (one for one, having in found.items() if having):
        missing.pop(one, None)
    numbers = sorted({number for having in found.values() for number in having})
    ranges = np.array([dataset.document_range(number) for number in numbers], np.int64).reshape(-1, 2)
    some = ranges[:, 0] < ranges[:, 1]
    return ranges[some, 0], ranges[some, 1]


def _find_concept(
    concept: ConceptConfig, datasets: Mapping[str, Dataset], names: Sequence[str], where: str
) -> dict[str, int]:
    """Dataset -> the id of a concept in it, for those that know it.

    Raises ConfigError if none does, and for an id that has several names.
    """
    track = concept.track
    tracks = {name: {t for t, one in datasets[name].tracks.items() if one.codec == "concepts"} for name in names}
    having = [name for name in names if track in tracks[name]]
    if not having:
        raise unknown(f"{where}.concept.track", track, set().union(*tracks.values()), "track of concepts")
    found, known, called = dict[str, int](), set[str](), set[str]()
    for name in having:
        vocabulary = datasets[name].vocabulary(track) or ()
        known.update(vocabulary)
        if concept.id is not None and concept.id < datasets[name].tracks[track].num_ids:
            found[name] = concept.id
            called.update(vocabulary[concept.id : concept.id + 1])
        elif concept.name is not None and concept.name in vocabulary:
            found[name] = vocabulary.index(concept.name)
    if len(called) > 1:
        ways = "give its name, or the dataset"
        raise ConfigError(f"{where}.concept.id", f"{concept.id}, which is {sorted(called)}", "one concept", ways)
    if not found and concept.id is not None:
        most = max(datasets[name].tracks[track].num_ids for name in having)
        raise ConfigError(f"{where}.concept.id", concept.id, f"one below {most}, in {', '.join(having)}")
    if not found:
        raise unknown(f"{where}.concept.name", concept.name, known, "concept")
    return found


def _of_concept(dataset: Dataset, track: str, concept: int | None) -> tuple[Ints, Ints]:
    """The tokens in spans of a concept, from the index of the track, or else by reading it."""
    if concept is None:
        return NOTHING.start, NOTHING.stop
    index = open_index(dataset, track)
    if index is not None:
        found_spans: tuple[Ints, Ints] = index.spans(concept)
        return found_spans
    logger.warning(
        "%s: track %s has no index, so that each rank reads all of it for exclude; `conceptloader index %s --track %s` "
        "builds one", dataset.path, track, dataset.path, track,
    )  # fmt: skip
    found = [(NOTHING.start, NOTHING.stop)]
    for shard in range(dataset.num_shards):
        if dataset.manifest.shards.tracks[track].encoding[shard] is None:
            continue
        base = dataset.shard_starts[shard]
        for ids, start, end in concept_pairs(dataset, track, shard):
            found.append((start[ids == concept] + base, end[ids == concept] + base))
    start, end = map(np.concatenate, zip(*found, strict=True))
    return dataset.placed(start, end)[1:]


def _complement(dataset: Dataset, path: str, roots: Sequence[str] | None, where: str) -> tuple[Ints, Ints]:
    """The tokens of a dataset that a view of the same files lacks."""
    with open_dataset(path, with_default(path, roots)) as view:
        same = view.manifest.stream_fingerprint() == dataset.manifest.stream_fingerprint()
        if view.runs is None or not same:
            raise ConfigError(where, str(path), f"a view of {dataset.source}, or of what that is a view of")
        start, stop = np.append(0, view.runs.end), np.append(view.runs.source, view.manifest.num_tokens)
        some = start < stop
        return dataset.placed(start[some], stop[some])[1:]
