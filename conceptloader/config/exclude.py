"""The section `exclude` of a configuration: its entries as masks of datasets, files, subsets and tracks read."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from conceptloader.base.strict import unknown
from conceptloader.config.mask import ALWAYS, NOTHING, WHOLE, Holes, Mask
from conceptloader.config.schema import ConceptConfig, ExcludeConfig
from conceptloader.errors import ConfigError, ReadError
from conceptloader.format.read.concepts import concept_pairs
from conceptloader.format.read.dataset import Dataset, open_dataset
from conceptloader.format.read.index import open_index
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.paths import with_default
from conceptloader.storage.urls import is_url

logger = logging.getLogger(__name__)


class Excluded(NamedTuple):
    """What is excluded of a dataset.

    always: tokens that are never read; samples: tokens whose samples read nothing from a sample on; holes: what is
    taken out of samples that keep the rest. They are apart, as what is never read may change while a run lives.
    """

    always: Mask = NOTHING
    samples: Mask = NOTHING
    holes: Holes = WHOLE

    @property
    def mask(self) -> Mask:
        """Tokens whose samples read nothing."""
        return self.always | self.samples

    @property
    def prints(self) -> tuple[str | None, tuple[tuple[int, str], ...]]:
        """(fingerprint of what is never read, (at, fingerprint) of the rest); those of holes say what is taken."""
        kinds = {"": self.samples, "own:": self.holes.own, "labels:": self.holes.labels}
        found = sorted((at, kind + text) for kind, one in kinds.items() for at, text in one.prints().items())
        return self.always.prints().get(ALWAYS), tuple(found)

    def since(self, samples: Collection[int]) -> "Excluded":
        """Of what is excluded from a sample on, that which is from one of these on."""
        masks = [mask.chosen(np.isin(mask.at, list(samples))) for mask in (self.samples, *self.holes)]
        return Excluded(self.always, masks[0], Holes(*masks[1:]))


def read_excluded(
    entries: Sequence[ExcludeConfig], datasets: Mapping[str, Dataset], roots: Sequence[str] | None
) -> tuple[dict[str, Excluded], dict[int, int]]:
    """Dataset -> what is excluded of it, and, by entry, how many of its ids no dataset has, where there are such.

    Raises: ConfigError for ids and concepts that no dataset has, tokens outside of theirs, and a subset of another
    source; FormatError, ReadError.
    """
    found, unknown_ids = dict[tuple[str, str], list[tuple[Ints, Ints, Ints]]](), dict[int, int]()
    for k, entry in enumerate(entries):
        where, missing = f"exclude[{k}]", dict[str, None]()
        names = list(datasets) if entry.dataset is None else [entry.dataset]
        concepts = {} if entry.concept is None else _find_concept(entry.concept, datasets, names, where)
        if entry.ids is not None or entry.file is not None:
            lines = entry.ids or _read_lines(entry.file or "", "ids to exclude")
            missing = dict.fromkeys(word for line in lines if (word := line if entry.ids else line.strip()))
        ids, total = list(missing), 0
        for name in names:
            if entry.concept is not None:
                start, stop = _of_concept(datasets[name], entry.concept.track, concepts.get(name))
            elif entry.subset is not None:
                start, stop = _complement(datasets[name], entry.subset, roots, f"{where}.subset")
            elif ids:
                start, stop = _of_ids(datasets[name], ids, missing)
            else:
                start, stop = _of_ranges(entry, where, datasets[name].num_tokens)
            total += len(start)
            at = ALWAYS if entry.at is None else entry.at
            within = ["within"] * (entry.take == "own" and (entry.ids is None and entry.file is None))
            for kind in ["always" if entry.at is None else entry.take, *within] if len(start) else ():
                found.setdefault((kind, name), []).append((start, stop, np.full(len(start), at)))
        if not total and entry.token_file is None:
            expected = "ids as in the input" if entry.concept is None else "a concept that has spans"
            raise ConfigError(
                where, f"nothing that matches it in {', '.join(names)}", expected, f"correct or remove {where}"
            )
        if missing:
            unknown_ids[k] = len(missing)
            logger.warning(
                "exclude[%d]: found no document for %d ids in %s, such as %r: nothing is excluded for these",
                k, len(missing), ", ".join(names), next(iter(missing)),
            )  # fmt: skip
    masks = {key: Mask.of(*map(np.concatenate, zip(*parts, strict=True))) for key, parts in found.items()}

    def of(name: str, kind: str) -> Mask:
        return masks.get((kind, name), NOTHING)

    return {
        name: Excluded(of(name, "always"), of(name, "sample"), Holes(*(of(name, kind) for kind in Holes._fields)))
        for name in sorted({name for _, name in masks})
    }, unknown_ids


def _read_lines(path: str, what: str) -> list[str]:
    """Of a text file, ended by line feeds alone: an id may hold other separators.

    Raises: ReadError that says what it is.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(
            f"{path}",
            f"cannot read {what}: {error}",
            fix=f"run `ls -l {path}`: it must exist, and you must be allowed to read it",
        ) from error


def _of_ranges(entry: ExcludeConfig, where: str, size: int) -> tuple[Ints, Ints]:
    """The ranges of tokens that an entry says, or its file: lines of "first end", # starts a comment."""
    ranges = {f"{where}.tokens": entry.tokens} if entry.tokens else dict[str, tuple[int, int]]()
    for number, line in enumerate(_read_lines(entry.token_file, "ranges to exclude") if entry.token_file else (), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"{entry.token_file}, line {number}"
        if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            raise ConfigError(place, repr(line[:80]), "two token numbers: first end", f"write `first end` on {place}")
        ranges[place] = int(words[0]), int(words[1])
    for place, (first, end) in ranges.items():
        if not 0 <= first < end <= size:
            expected = f"tokens of {entry.dataset}: 0 <= first < end <= {size}"
            raise ConfigError(place, f"[{first}, {end}]", expected, f"correct {place}")
    found = np.array(list(ranges.values()), np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


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
    tracks = {name: datasets[name].concept_tracks for name in names}
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
        raise ConfigError(
            f"{where}.concept.id",
            concept.id,
            f"an id below {most}, in {', '.join(having)}",
            f"set {where}.concept.id below {most}",
        )
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
    build = f"; `conceptloader index {dataset.source} --track {track}` builds one"
    logger.warning(
        "%s: track %s has no index, so that each rank reads all of it for exclude%s",
        dataset.path, track, "" if is_url(dataset.source) else build,
    )  # fmt: skip
    found = [(NOTHING.start, NOTHING.stop)]
    for shard in range(dataset.num_shards):
        base = dataset.shard_starts[shard]
        for ids, start, end in concept_pairs(dataset, track, shard):
            found.append((start[ids == concept] + base, end[ids == concept] + base))
    start, end = map(np.concatenate, zip(*found, strict=True))
    return dataset.placed(start, end)[1:]


def _complement(dataset: Dataset, path: str, roots: Sequence[str] | None, where: str) -> tuple[Ints, Ints]:
    """The tokens of a dataset that a subset of the same files does not have."""
    with open_dataset(path, with_default(path, roots)) as view:
        same = view.manifest.stream_fingerprint() == dataset.manifest.stream_fingerprint()
        if view.runs is None or not same:
            raise ConfigError(
                where,
                str(path),
                f"a subset of {dataset.source}, or of the dataset that it is a subset of",
                f"set {where} to a subset of {dataset.source}",
            )
        start, stop = np.append(0, view.runs.end), np.append(view.runs.source, view.manifest.num_tokens)
        some = start < stop
        return dataset.placed(start[some], stop[some])[1:]
