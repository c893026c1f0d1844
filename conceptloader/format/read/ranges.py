"""Reading token ranges of a whole dataset: what lies in several shards is put together here."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.lazy import lazy
from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import check_tokens, documents_of, items_of, pairs, ragged, records_of, spans_of
from conceptloader.format.read.files import Files
from conceptloader.format.read.reader import ShardReader
from conceptloader.format.read.values import Documents, Spans
from conceptloader.format.spec.codecs import Codec
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.layout import DENSE
from conceptloader.format.spec.viewfile import Runs
from conceptloader.format.spec.vocabulary import Concept, load_concepts, load_vocabulary
from conceptloader.storage.source import Range

Sample = dict[str, Any]


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


class Ranges:
    """Tokens of a dataset are numbered through all of its shards; a range [start, stop) may cross any number of them.

    runs: of a view, whose tokens are those of the files in other places; None for a dataset with files of its own.
    levels: by track, the tracks of the manifest that hold spans of it; what takes a track's name takes all of these.
    All methods raise FormatError for corrupt files, ReadError when the operating system fails, and ConfigError for a
    range or a track that does not exist.
    """

    def __init__(self, files: Files, runs: Runs | None = None) -> None:
        self.path = files.roots.directory
        self.manifest = manifest = files.manifest
        self.files = files
        self.reader = ShardReader(files)
        self.runs = runs
        self._runs = runs or Runs.of(np.zeros(1, np.int64), np.array([manifest.num_tokens]))
        self.num_tokens = int(self._runs.first[-1])
        self.field_names = list(manifest.layouts[0].extra_fields(manifest.tracks))
        self._codecs: dict[str, Codec] = {}
        self.levels = {
            name: tuple(level for level in levels if level == name or manifest.shards.tracks[level].records.any())
            for name, levels in manifest.levels.items()
        }

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
        if track in self._codecs:
            return self._codecs[track]
        entry = self.manifest.tracks.get(track)
        if entry is None:
            known = sorted(self.manifest.tracks)
            raise ConfigError(
                self.path,
                f"no track {track!r}",
                f"one of {known}",
                f"pass a name that `conceptloader inspect {self.path}` shows",
            )
        codec = self._codecs[track] = self.files.codec(track)
        return codec

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
            for low, high in np.transpose(self.reader.wider(shard, cut.first, cut.end)).tolist():
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
            low, high = self.reader.wider(shard, a, b) if dense else (a, b)
            wide = items_of(self.reader, shard, low, high)
            items = wide[ragged(offsets_of(high - low)[:-1] + a - low, b - a)] if dense else wide
            check_tokens(self.reader, shard, a, b, items["token"])
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
        first, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for shard, cut in self.by_shard(start, stop):
            found = documents_of(self.reader, shard, cut.first, cut.end)
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
        spans, record = spans_of(self.reader, shard, track, cut.first, cut.end, items)
        low, high, base = cut.first[spans.row], cut.end[spans.row], cut.base[spans.row]
        start, end = np.maximum(spans.first, low) + base, np.minimum(spans.end, high) + base
        return _Found(track, shard, start, end, spans.first < low, spans.end > high, record)

    def _spans(self, track: str, parts: "Sequence[_Found]", base: int) -> Spans:
        start = _join([part.start for part in parts], np.int64) - base
        end = _join([part.end for part in parts], np.int64) - base
        before = _join([part.before for part in parts], np.bool_)
        after = _join([part.after for part in parts], np.bool_)
        records = [one for part in parts for one in records_of(self.reader, part.shard, part.level, part.record)]
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
