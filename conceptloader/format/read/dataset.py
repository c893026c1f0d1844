"""An open dataset: numpy in, numpy out, no knowledge of ranks.

A view has the files of its source, and numbers tokens and documents of its own: run k is document k.
"""

import operator
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.lazy import lazy
from conceptloader.base.shown import Shown
from conceptloader.base.terminal import masked
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.bulk import (
    check_tokens,
    document_ranges,
    documents_of,
    items_of,
    pairs,
    ragged,
    read_items,
    records_of,
    spans_of,
    wider,
)
from conceptloader.format.read.columns import Columns
from conceptloader.format.read.files import Files, Found, FoundView, require_same
from conceptloader.format.read.ids import find_each, id_of
from conceptloader.format.read.values import Documents, Sample, Spans
from conceptloader.format.spec.codecs import Codec, register_lacking, registered
from conceptloader.format.spec.columnfile import holes_kind, holes_size, items_kind, unpack_holes
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.layout import DENSE, OFFSET
from conceptloader.format.spec.shardtable import ShardTable
from conceptloader.format.spec.viewfile import Runs
from conceptloader.format.spec.vocabulary import Concept, load_concepts, load_vocabulary
from conceptloader.storage.source import Range
from conceptloader.storage.threads import shared_threads

_DOCUMENTS = 1 << 20  # whose lengths are read at a time


def open_dataset(
    path: str | os.PathLike[str],
    roots: Sequence[str | os.PathLike[str]] | None = None,
    verify_files: bool = True,
) -> "Dataset":
    """Open a dataset directory: reads and checks its manifest, opens no shard.

    Args:
        path: A directory, or a URL of an object store (s3://, gs://, az://, http(s)://, ...; docs/object-stores.md).
        roots: Directories that may hold files of the dataset; by default the directory that holds `path`, so that
            joined and adopted neighbours work.
        verify_files: When files are first opened, compare a sample of each with the manifest, and the manifest with
            what it was; False leaves sizes and times.

    Returns:
        The dataset, to be read by any number of threads.

    Raises:
        FormatError: For an incomplete or corrupt dataset.
        ConfigError: For wrong arguments.
        ReadError: A file cannot be read.
    """
    return open_found(Found(path, roots, verify_files))


def open_found(found: Found, table: ShardTable | None = None) -> "Dataset":
    """See open_dataset. table: of its shards, if it was checked before."""
    try:
        return Dataset(found.files(table), verify_files=found.check)
    except FoundView as view:
        files = Found(view.source, view.roots.roots, found.check).files()
        return Dataset(files, view, _runs(files, view), found.check)


def share_of(documents: int, a: float, b: float) -> tuple[int, int]:
    """[first, stop) of the share [a, b) of so many documents: to the nearest one, halves to the even one."""
    return round(a * float(documents)), round(b * float(documents))


def _reopen(identity: str, codecs: Mapping[str, Codec], *arguments: Any) -> "Dataset":
    """A dataset in another process. Raises: FormatError if it was rebuilt in the meantime, and see open_dataset."""
    register_lacking(codecs)
    dataset = open_dataset(*arguments)
    if arguments[-1]:  # verify_files
        require_same(dataset.path, dataset.identity, identity)
    return dataset


class Cut(NamedTuple):
    """Pieces of token ranges.

    They are the range, the shard, its tokens [first, end), the token of the dataset that its first would be; of a view,
    the run. int64 [n] each.
    """

    row: Ints
    shard: Ints
    first: Ints
    end: Ints
    base: Ints
    run: Ints


class Dataset(Shown):
    """An open dataset: token ranges, documents, windows. Made by `open_dataset`.

    Safe to use from many threads and after a fork; pickles as its path and options, for spawned workers. Its tokens are
    numbered through all of its shards. All methods raise FormatError for corrupt files, ReadError when the operating
    system fails, and ConfigError for a range or a track that does not exist.

    viewed: of a view, its manifest; None in a dataset with files of its own. source: the path of the one with the
    files. tracks: those that users name; stored_tracks: each level of these; levels: by track, those that hold spans of
    it; what takes a track's name takes all of these.

    Args:
        files: Its files.
        view: What was found in its place, for which these are the files of the source.
        runs: Of a view; None for a dataset with files of its own.
        verify_files: See `open_dataset`.
    """

    def __init__(
        self, files: Files, view: FoundView | None = None, runs: Runs | None = None, verify_files: bool = True
    ) -> None:
        self.files, self.runs, self.manifest, roots = files, runs, files.manifest, files.roots
        self.path = self.source = roots.directory
        manifest, self.viewed = files.manifest, None if view is None else view.view
        self.num_tokens = manifest.num_tokens if runs is None else int(runs.first[-1])
        self.num_documents = manifest.num_documents
        self.mode, self.tokenizer, self.num_shards = manifest.mode, manifest.tokenizer, len(manifest.shards)
        self.field_names = list(manifest.layouts[0].extra_fields(manifest.tracks))
        tables = manifest.shards.tracks
        self.levels = {
            name: (name, *(level for level in levels[1:] if tables[level].records.any()))
            for name, levels in manifest.levels.items()
        }
        self.stored_tracks = manifest.tracks
        if view is not None:
            roots, spans = view.roots, view.view.max_spans
            self.path, self.num_documents = roots.directory, view.view.num_documents
            self.stored_tracks = {name: replace(one, max_spans=spans[name]) for name, one in manifest.tracks.items()}
        self.tracks = {name: self.stored_tracks[name] for name in self.levels}
        self._known: dict[str, dict[str | int, Concept]] = {}  # concepts by track, by name and id, once asked for
        self._arguments = (self.path, roots.given, verify_files)

    def __reduce__(self) -> tuple[Any, ...]:
        codecs = registered(track.codec for track in self.tracks.values())
        return _reopen, (self.identity, codecs, *self._arguments)

    def __repr__(self) -> str:
        return f"<Dataset {masked(self.path)}: {self.mode}, {self.num_tokens} tokens, {self.num_documents} documents>"

    def __len__(self) -> int:
        """Documents; 0 where the files do not say where documents begin."""
        return self.num_documents

    def __bool__(self) -> bool:
        """True, also without documents."""
        return True

    def __getitem__(self, document: SupportsIndex) -> Sample:
        """A document with all tracks, see DocumentView. Raises: ConfigError without a document table, IndexError."""
        return self.documents()[document]

    def __enter__(self) -> "Dataset":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close this dataset's open files. It stays usable: files are opened again when needed."""
        self.files.close()
        self._known.clear()

    @lazy
    def _runs(self) -> Runs:
        return self.runs or Runs.of(np.zeros(1, np.int64), np.array([self.num_tokens]))

    @lazy
    def stream_fingerprint(self) -> str:
        """Equal for datasets with equal tokens in equal shards, for any tracks and encodings."""
        return self.manifest.stream_fingerprint() if self.viewed is None else self.viewed.identity

    @lazy
    def tracks_fingerprint(self) -> str:
        """Covers the rest: documents, fields and tracks."""
        return self.manifest.tracks_fingerprint()

    def concept(self, concept: str | int, track: str | None = None) -> Concept:
        """A concept by its name or id: its group and details as well. track: None for the only one with a vocabulary.

        Raises:
            ConfigError: For a concept or a track that is not there.
            FormatError: A file is corrupt or not as its manifest says.
            ReadError: A file cannot be read.
        """
        named = [name for name, entry in self.tracks.items() if entry.vocabulary is not None]
        if track is None and len(named) != 1:
            raise ConfigError(
                self.path,
                f"{len(named)} tracks with a vocabulary ({named})",
                "the name of a track",
                "pass track=NAME (--track)",
            )
        chosen = named[0] if track is None else track
        known = self._known.get(chosen)
        if known is None:  # threads may make it twice; a lock could be held by a fork for ever
            concepts = self.concepts(chosen)
            known = {one.id: one for one in concepts} | {one.name: one for one in concepts}
            self._known[chosen] = known
        if concept not in known:
            raise ConfigError(
                f"{self.path}: track {chosen!r}",
                f"no concept {concept!r}",
                f"one of {len(known) // 2} names or ids",
                f"pass a name of {chosen}.vocabulary.json there",
            )
        return known[concept]

    def split(self, a: float, b: float) -> tuple[int, int]:
        """The token range of the share [a, b) of the dataset, 0 <= a < b <= 1.

        Both ends are moved down to the start of the document that they fall into (shards without a document table: not
        moved), so that split(0, x) and split(x, 1) meet exactly and no document is in both.

        Raises:
            ConfigError: For another order, or if no document starts in the share.
        """
        if not 0 <= a < b <= 1:
            raise ConfigError("split", f"[{a}, {b}]", "0 <= a < b <= 1", "set split: [0, 0.9], or other shares")
        start, stop = self._snap(a), self._snap(b)
        if start == stop:
            raise ConfigError(
                "split",
                f"no start of a document in [{a}, {b}] of {self.path}",
                "at least one document",
                "widen split",
            )
        return start, stop

    def split_documents(self, a: float, b: float, within: tuple[int, int]) -> tuple[int, int]:
        """The token range of the share [a, b) of the documents that lie in a token range.

        Counted and rounded as Megatron-LM does (`share_of`); `within` begins and ends where documents do.

        Raises:
            ConfigError: If documents are not known, or none with a token is in the share.
        """
        shards = self.manifest.shards
        if self.runs is None and bool(((shards.documents == 0) & (shards.tokens > 0)).any()):
            raise ConfigError(
                "split_documents",
                f"no table of documents in {self.path}",
                "a table of documents, since a share of them is asked for",
                "set split, which cuts by tokens, instead of split_documents",
            )
        first, stop = map(self.documents_before, within)
        bounds = [first + number for number in share_of(stop - first, a, b)]
        start, end = (within[1] if number == stop else self.document_range(number)[0] for number in bounds)
        if start == end:
            raise ConfigError(
                "split_documents",
                f"no document in [{a}, {b}] of {self.path}, which has {stop - first}",
                "at least one document",
                "widen split_documents",
            )
        return start, end

    def documents_before(self, token: int) -> int:
        """How many documents belong before a token range that starts at `token`, which is the start of a document."""
        if token in (0, self.num_tokens):
            return self.num_documents if token else 0
        return int(self.documents_in(token, token + 1).ids[0])

    def _snap(self, share: float) -> int:
        token = int(Fraction(str(share)) * self.num_tokens)  # 0.98 means 98/100, not the nearest binary fraction
        if token == self.num_tokens:
            return token
        holder = self.documents_in(token, token + 1)
        return int(holder.first[0]) if holder.ids[0] >= 0 else token

    def windows(
        self, seq_len: int, token_range: tuple[int, int] | None = None, tracks: Sequence[str] | None = None
    ) -> "Windows":
        """Windows of seq_len + 1 tokens over a token range (default: all), with `tracks` (default: all).

        Raises:
            ConfigError: For an unknown track, or if not even one window fits.
        """
        return Windows(self, seq_len, token_range, tracks)

    def documents(self, tracks: Sequence[str] | None = None) -> "DocumentView":
        """The documents one by one, with `tracks` (default: all).

        Raises:
            ConfigError: Without a document table.
        """
        return DocumentView(self, tracks)

    def chosen_tracks(self, tracks: Sequence[str] | None) -> list[str]:
        """Track names, all by default, each checked to have a codec that may be used."""
        if isinstance(tracks, str):
            raise ConfigError("tracks", f"the string {tracks!r}", "a list of names", f"pass tracks=[{tracks!r}]")
        chosen = sorted(self.tracks) if tracks is None else list(tracks)
        for track in chosen:
            self.codec(track)
        return chosen

    @property
    def identity(self) -> str:
        """Of its manifest."""
        return self.manifest.identity if self.viewed is None else self.viewed.identity

    @property
    def concept_tracks(self) -> list[str]:
        """Names of the tracks of codec concepts, ascending."""
        return sorted(name for name, track in self.tracks.items() if track.codec == "concepts")

    def records(self, track: str) -> int:
        """How many records a track has, on all of its levels."""
        return sum(int(self.manifest.shards.tracks[level].records.sum()) for level in self.levels[track])

    @property
    def columns(self) -> Columns:
        """By name."""
        return self.files.columns

    @property
    def source_fingerprints(self) -> tuple[str, str]:
        """Of the stream and the tracks of the dataset that has the files."""
        return self.manifest.stream_fingerprint(), self.manifest.tracks_fingerprint()

    def share_files(self, other: "Dataset") -> None:
        """Read through the open files of another one of the same source."""
        self.files, self.manifest = other.files, other.manifest

    def column_values(self, name: str, start: int, stop: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """(items, known): those of a column for tokens [start, stop), as they are stored, and which tokens have one.

        Items are [stop - start, *shape], 0 where there is none; of bf16 its bits, as uint16.
        """
        column, kind = self.columns[name], holes_kind(name)
        values = np.zeros((stop - start, *column.shape), column.stored)
        known = np.zeros(stop - start, np.bool_)
        for shard, cut in self.by_shard(start, stop):
            for first, end, base in zip(cut.first.tolist(), cut.end.tolist(), cut.base.tolist(), strict=True):
                if column.files.size[shard] < 0:
                    continue
                place = slice(first + base - start, end + base - start)
                at = int(column.files.offset[shard]) + first * column.itemsize
                data = self.files.read(items_kind(name), shard, at, (end - first) * column.itemsize)
                values[place] = np.frombuffer(data, column.stored).reshape(-1, *column.shape)
                known[place] = True
                if column.holes is not None and column.holes.size[shard] >= 0:
                    low, high = first // 8, holes_size(end)
                    bits = np.frombuffer(self.files.read(kind, shard, low, high - low), np.uint8)
                    known[place] = ~unpack_holes(bits)[first - 8 * low : end - 8 * low]
        return values, known

    def _check_document(self, document: int) -> int:
        number = operator.index(document)
        if not 0 <= number < self.num_documents:
            raise ConfigError(
                self.path,
                f"document {number}",
                f"a number from 0 to {self.num_documents - 1}",
                f"pass document={self.num_documents - 1} or lower",
            )
        return number

    def _locate(self, document: int) -> tuple[int, int]:
        """(shard, ordinal in the shard) of a document of the files."""
        shard = bisect_right(self.first_documents, document) - 1
        return shard, document - self.first_documents[shard]

    def document_range(self, document: int) -> tuple[int, int]:
        """Tokens [start, stop) of a document, by its number in the dataset."""
        number = self._check_document(document)
        if self.runs is not None:
            return int(self.runs.first[number]), int(self.runs.first[number + 1])
        shard, ordinal = self._locate(number)
        return self._in_shard(shard, ordinal)

    def _in_shard(self, shard: int, ordinal: int) -> tuple[int, int]:
        """Tokens of the files."""
        (start,), (stop,) = document_ranges(self.files, shard, np.array([ordinal]))
        return int(start) + self.shard_starts[shard], int(stop) + self.shard_starts[shard]

    def document_id(self, document: int) -> str | None:
        """The id that the document had in the input, if it had one."""
        number = self.sources(np.array([self._check_document(document)]))
        return id_of(self.files, *self._locate(int(number[0])))

    def find_document(self, external_id: str) -> list[int]:
        """Numbers of all documents that had this id in the input, in order. Costs a few small reads per shard."""
        return self.find_documents([external_id])[external_id]

    def find_documents(self, ids: Sequence[str]) -> dict[str, list[int]]:
        """The same of each of many ids."""
        found: dict[str, list[int]] = {one: [] for one in ids}
        for shard, ordinal, text in find_each(self.files, ids):
            if self.runs is None:
                found[text].append(self.first_documents[shard] + ordinal)
                continue
            found[text] += range(*np.searchsorted(self.runs.source, self._in_shard(shard, ordinal)).tolist())
        return found

    def sources(self, documents: Ints) -> Ints:
        """The numbers that documents have in the files; these differ in a view. -1 stays."""
        if self.runs is None:
            return documents
        found = np.full(len(documents), -1)
        known = np.flatnonzero(documents >= 0)
        token = self.runs.source[documents[known]]
        shards = np.searchsorted(self.manifest.starts(), token, side="right") - 1
        for shard in np.unique(shards).tolist():
            chosen = np.flatnonzero(shards == shard)
            local = token[chosen] - self.shard_starts[shard]
            number = documents_of(self.files, shard, local, local + 1).number
            found[known[chosen]] = np.where(number < 0, -1, number + self.first_documents[shard])
        return found

    def document_lengths(self) -> Iterator[Ints]:
        """Tokens of all documents in order, some at a time."""
        if self.runs is not None:
            yield np.diff(self.runs.first)
            return
        for shard, count in enumerate(self.manifest.shards.documents.tolist()):
            for first in range(0, count, _DOCUMENTS):
                last = min(first + _DOCUMENTS, count)
                starts: Ints = read_items(self.files, "documents.bin", shard, OFFSET, first, last + 1).astype(np.int64)
                yield starts[1:] - starts[:-1]

    @lazy
    def shard_starts(self) -> list[int]:
        """The first token of each shard in the files, and the number of tokens there."""
        found: list[int] = self.manifest.starts().tolist()
        return found

    @lazy
    def first_documents(self) -> list[int]:
        """The number of the first document of each shard in the files, and of all."""
        found: list[int] = self.manifest.shards.first_documents.tolist()
        return found

    def codec(self, track: str) -> Codec:
        """The codec of a track. Raises: ConfigError for an unknown track, FormatError for an unknown codec."""
        if track not in self.manifest.tracks:
            known = sorted(self.manifest.tracks)
            raise ConfigError(
                self.path,
                f"no track {track!r}",
                f"one of {known}",
                f"pass a name that `conceptloader inspect {self.path}` shows",
            )
        return self.files.codec(track)

    def vocabulary(self, track: str) -> list[str] | None:
        """Names of a track's concepts, index = concept id; None if the dataset has none for it."""
        self.codec(track)
        entry = self.manifest.tracks[track].vocabulary
        return load_vocabulary(self.files.roots, entry) if entry else None

    def concepts(self, track: str) -> list[Concept]:
        """The concepts of a track, index = concept id. Raises: ConfigError for a track without names."""
        self.codec(track)
        entry = self.manifest.tracks[track].vocabulary
        if entry is None:
            raise ConfigError(
                f"{self.path}: track {track!r}",
                "no vocabulary",
                "a vocabulary",
                "use the ids of its concepts, or build with --vocabulary FILE",
            )
        return load_concepts(self.files.roots, entry)

    def cut(self, start: Ints, stop: Ints) -> Cut:
        """Token ranges, cut where shards and the runs of a view meet.

        None of them is empty; they are in their order, not checked.
        """
        row, run, shift = self._in_runs(start, stop)
        low, high = self.in_files(start, stop)
        borders = self.manifest.starts()
        first = np.searchsorted(borders, low, side="right") - 1
        part, shard = pairs(first, np.searchsorted(borders, high - 1, side="right"))
        base = borders[shard]
        first, end = np.maximum(low[part], base) - base, np.minimum(high[part], borders[shard + 1]) - base
        found = Cut(row[part], shard, first, end, base + shift[part], run[part])
        some = first < end
        return found if some.all() else Cut(*(column[some] for column in found))

    def _in_runs(self, start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
        """(range, run, how much further its tokens are than those of the files) for each run with tokens of ranges."""
        low = np.searchsorted(self._runs.first, start, side="right") - 1
        row, run = pairs(low, np.searchsorted(self._runs.first, stop))
        return row, run, self._runs.first[run] - self._runs.source[run]

    def in_files(self, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """Ranges of tokens, none empty, as ranges of the tokens in the files; in a view these may be more."""
        row, run, shift = self._in_runs(start, stop)
        begin = np.maximum(start[row], self._runs.first[run])
        return begin - shift, np.minimum(stop[row], self._runs.first[run + 1]) - shift

    def placed(self, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Ranges of the tokens in the files, in order of their starts, as ranges of tokens of the dataset.

        Returns (range, start, end) of each part of one; in a view these may be fewer or more.
        """
        which, run = self._runs.meeting(start, end)
        shift = self._runs.first[run] - self._runs.source[run]
        begin, stop = np.maximum(start[which], self._runs.source[run]), np.minimum(end[which], self._runs.end[run])
        return which, begin + shift, stop + shift

    def check_range(self, start: int, stop: int) -> None:
        """Raises: ConfigError."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise ConfigError(
                self.path,
                f"token range [{start}, {stop})",
                f"0 <= start <= stop <= {self.num_tokens}",
                "pass start and stop in this range",
            )

    def by_shard(self, start: int, stop: int) -> Iterator[tuple[int, Cut]]:
        """The pieces of tokens [start, stop) of each shard that has any, in order. Raises: ConfigError."""
        self.check_range(start, stop)
        if start < stop:
            cut = self.cut(np.array([start]), np.array([stop]))
            borders = [0, *(np.flatnonzero(np.diff(cut.shard)) + 1).tolist(), len(cut.shard)]
            for a, b in pairwise(borders):
                yield int(cut.shard[a]), Cut(*(column[a:b] for column in cut))

    def stream_bytes(self, start: int, stop: int) -> Iterator[Range]:
        """Of token files, what reading tokens [start, stop) reads."""
        table, layouts = self.manifest.shards, self.manifest.layouts
        for shard, cut in self.by_shard(start, stop):
            size, base = layouts[table.layout[shard]].itemsize, int(table.offset[shard])
            for low, high in np.transpose(wider(self.files, shard, cut.first, cut.end)).tolist():
                yield self.files.expected("stream.bin", shard), base + low * size, (high - low) * size

    def read(self, start: int, stop: int, tracks: Sequence[str] = (), documents: bool = False) -> Sample:
        """Tokens [start, stop) with everything that belongs to them; each stream is read once.

        Returns: "tokens" int64 [n], each token-aligned field [n], "documents" if asked for, and Spans for each track.
        """
        columns: dict[str, list[NDArray[Any]]] = {name: [] for name in ("token", *self.field_names)}
        found: dict[str, list[_Found]] = {track: [] for track in tracks}
        levels = [(track, level) for track in tracks for level in self._levels(track)]
        for shard, cut in self.by_shard(start, stop):
            a, b = cut.first, cut.end
            dense = any(self.manifest.shards.tracks[level].encoding[shard] == DENSE for _, level in levels)
            low, high = wider(self.files, shard, a, b) if dense else (a, b)
            wide = items_of(self.files, shard, low, high)
            items = wide[ragged(offsets_of(high - low)[:-1] + a - low, b - a)] if dense else wide
            check_tokens(self.files, shard, a, b, items["token"])
            for name, column in columns.items():
                column.append(items[name])
            for track, level in levels:
                found[track].append(self._found(level, shard, cut, wide if dense else None))
        sample: Sample = {"tokens": _join(columns["token"], np.int64).astype(np.int64)}
        if documents:
            sample["documents"] = self.documents_in(start, stop)
        for name in self.field_names:
            sample[name] = _join(columns[name], self.manifest.layouts[0].dtype[name]).copy()
        for track in tracks:
            sample[track] = self._spans(track, found[track], start)
        return sample

    def tokens(self, start: int, stop: int) -> Ints:
        """int64 [stop - start]."""
        tokens: Ints = self.read(start, stop)["tokens"]
        return tokens

    def fields(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """The token-aligned fields of a range, [stop - start] each."""
        sample = self.read(start, stop)
        return {name: sample[name] for name in self.field_names}

    def documents_in(self, start: int, stop: int) -> Documents:
        """The documents that hold the tokens [start, stop)."""
        if self.runs is not None and start != stop:
            self.check_range(start, stop)
            _, run, _ = self._in_runs(np.array([start]), np.array([stop]))
            return Documents(self.runs.first[run], run)
        first, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for shard, cut in self.by_shard(start, stop):
            found = documents_of(self.files, shard, cut.first, cut.end)
            first.append(found.first + cut.base[found.row])
            ids.append(np.where(found.number < 0, -1, found.number + self.first_documents[shard]))
        return Documents(np.concatenate(first), np.concatenate(ids))

    def spans(self, track: str, start: int, stop: int) -> Spans:
        """The runs of a track, of all of its levels, that touch tokens [start, stop), relative to `start`.

        In order of their starts, of nested ones the outer one first.
        """
        self.codec(track)
        cuts = list(self.by_shard(start, stop))
        return self._spans(track, [self._found(level, *cut) for level in self._levels(track) for cut in cuts], start)

    def span_places(self, level: str, start: int, stop: int) -> Iterator[tuple[int, Ints, Ints, Ints]]:
        """(shard, start, end, record) of the same of one level, by shard: tokens of the dataset."""
        for shard, cut in self.by_shard(start, stop):
            found = self._found(level, shard, cut)
            yield shard, found.start, found.end, found.record

    def _levels(self, track: str) -> tuple[str, ...]:
        """Those of a track; a level itself is one."""
        return self.levels.get(track, (track,))

    def _found(self, track: str, shard: int, cut: Cut, items: NDArray[np.void] | None = None) -> "_Found":
        spans, record = spans_of(self.files, shard, track, cut.first, cut.end, items)
        low, high, base = cut.first[spans.row], cut.end[spans.row], cut.base[spans.row]
        start, end = np.maximum(spans.first, low) + base, np.minimum(spans.end, high) + base
        return _Found(track, shard, start, end, spans.first < low, spans.end > high, record)

    def _spans(self, track: str, parts: "Sequence[_Found]", base: int) -> Spans:
        start = _join([part.start for part in parts], np.int64) - base
        end = _join([part.end for part in parts], np.int64) - base
        before = _join([part.before for part in parts], np.bool_)
        after = _join([part.after for part in parts], np.bool_)
        records = [one for part in parts for one in records_of(self.files, part.shard, part.level, part.record)]
        if len(self._levels(track)) > 1:
            order = np.lexsort((-end, start))
            start, end, before, after = (column[order] for column in (start, end, before, after))
            records = [records[k] for k in order.tolist()]
        return Spans(start, end, before, after, records, self.codec(track), f"{self.path}: track {track!r}")


class _Found(NamedTuple):
    """Spans in a shard: tokens [start, end) of the dataset, whether they begin before and end after them."""

    level: str
    shard: int
    start: Ints
    end: Ints
    before: NDArray[np.bool_]
    after: NDArray[np.bool_]
    record: Ints


def _join(parts: Sequence[NDArray[Any]], empty: Any) -> NDArray[Any]:
    """Concatenation without a copy when there is one part; no part: an empty array of type `empty`."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, empty)


def _runs(files: Files, view: FoundView) -> Runs:
    """Those of a view of files. Raises: FormatError if it is a view of others, ReadError."""
    manifest, said = files.manifest, view.view
    found = manifest.stream_fingerprint(), manifest.tracks_fingerprint(), set(manifest.tracks)
    if found != (said.source.stream_fingerprint, said.source.tracks_fingerprint, set(said.max_spans)):
        raise FormatError(
            view.roots.directory,
            f"other tokens, documents or tracks in {view.source} than those which it was selected from",
            "the source as it was",
            f"restore {view.source}, or run `conceptloader subset` again",
        )
    return view.runs(manifest.num_tokens)


class MapStyle:
    """What makes a class a map-style dataset for torch's DataLoader, batched fetching included."""

    def __init__(self, dataset: Dataset, tracks: Sequence[str] | None, count: int) -> None:
        self.dataset = dataset
        self.tracks = dataset.chosen_tracks(tracks)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        of = f", {self.seq_len:,} tokens and a label each" if isinstance(self, Windows) else ""
        tracks = f", tracks {', '.join(self.tracks)}" if self.tracks else ""
        return f"<{type(self).__name__}: {len(self):,} of {masked(self.dataset.path)}{of}{tracks}>"

    def _get(self, i: int) -> Sample:
        raise NotImplementedError

    def __getitem__(self, i: SupportsIndex) -> Sample:
        number = operator.index(i)
        if not -len(self) <= number < len(self):
            raise IndexError(f"found index {number}, expected one in [0, {len(self)})")
        return self._get(number % len(self))

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Sample]:
        remote = self.dataset.files.remote
        if remote is None:
            return [self[i] for i in indices]
        numbers = [operator.index(i) % len(self) for i in indices if -len(self) <= operator.index(i) < len(self)]
        tokens = (one for number in numbers for one in self.dataset.stream_bytes(*self._ahead(number)))
        with remote.reading_ahead(tokens):
            threads = shared_threads("conceptloader rows", remote.connections)
            return list(threads.map(self.__getitem__, indices))  # many reads take as long as one

    def _ahead(self, i: int) -> tuple[int, int]:
        """Tokens [start, stop) of sample i as far as they are known without a read."""
        return 0, 0

    def __iter__(self) -> Iterator[Sample]:
        return (self._get(i) for i in range(len(self)))


class Windows(MapStyle):
    """Window i covers the tokens from start + i * seq_len on, seq_len + 1 of them.

    The first seq_len are inputs, the last seq_len labels. The tail that fills no window is dropped.

    windows[i]: {"tokens": int64 [seq_len + 1], "documents": Documents, <field>: [seq_len + 1], <track>: Spans}.

    Args:
        dataset: The dataset, not of mode document.
        seq_len: Inputs of a window.
        token_range: Tokens [start, stop) of the dataset to cut; None for all.
        tracks: Tracks of the samples; None for all.
    """

    def __init__(
        self, dataset: Dataset, seq_len: int, token_range: tuple[int, int] | None, tracks: Sequence[str] | None
    ) -> None:
        if dataset.mode == "document":
            raise ConfigError(f"{dataset.path}: mode", "document", "a stream", "use Dataset.documents()")
        self.seq_len = operator.index(seq_len)
        self.start, self.stop = (0, dataset.num_tokens) if token_range is None else map(operator.index, token_range)
        if not 0 <= self.start <= self.stop <= dataset.num_tokens:
            raise ConfigError(
                "token_range",
                f"[{self.start}, {self.stop})",
                f"0 <= start <= stop <= {dataset.num_tokens}",
                "pass token_range=(start, stop) in this range",
            )
        if self.seq_len < 1:
            raise ConfigError(
                "seq_len",
                str(seq_len),
                "at least 1",
                "pass seq_len=1 or more",
            )
        tokens = self.stop - self.start
        super().__init__(dataset, tracks, max(0, tokens - 1) // self.seq_len)
        if not self._count:
            raise ConfigError(
                "seq_len",
                str(seq_len),
                f"at most {max(0, tokens - 1)}: a window takes seq_len + 1 tokens, and {dataset.path} has {tokens} "
                "in this range",
                "pass a smaller seq_len, or set a larger split",
            )

    def token_range(self, i: int) -> tuple[int, int]:
        """The tokens [start, stop) of window i."""
        start = self.start + i * self.seq_len
        return start, start + self.seq_len + 1

    def _get(self, i: int) -> Sample:
        return self.dataset.read(*self.token_range(i), self.tracks, documents=True)

    _ahead = token_range


class DocumentView(MapStyle):
    """Document i of a dataset with a document table; it has any number of tokens, 0 included.

    documents[i]: {"tokens": int64 [n], <field>: [n], <track>: Spans}.

    Args:
        dataset: The dataset, which has a document table.
        tracks: Tracks of the samples; None for all.
    """

    def __init__(self, dataset: Dataset, tracks: Sequence[str] | None) -> None:
        super().__init__(dataset, tracks, dataset.num_documents)
        if not dataset.num_documents:
            raise ConfigError(
                dataset.path, "no document table", "a document table", "use Dataset.windows(), or build with documents"
            )

    def _get(self, i: int) -> Sample:
        return self.dataset.read(*self.dataset.document_range(i), self.tracks)
