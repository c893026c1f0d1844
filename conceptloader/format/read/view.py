"""Documents of a dataset, and what is different where the dataset is a view: runs of the tokens of another one.

A view has the files of its source, and numbers tokens and documents of its own: run k is document k.
"""

import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.bulk import documents_of, read_items
from conceptloader.format.read.columns import Columns
from conceptloader.format.read.files import Files, FoundView
from conceptloader.format.read.ids import find_each
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.read.values import Documents
from conceptloader.format.spec.columnfile import holes_kind, holes_size, items_kind, unpack_holes
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import OFFSET
from conceptloader.format.spec.viewfile import Runs

_DOCUMENTS = 1 << 20  # whose lengths are read at a time


class Viewable(Ranges):
    """viewed: of a view, its manifest; None in a dataset with files of its own.

    source: the path of the one with the files. tracks: those that users name; stored_tracks: each level of these.
    """

    def __init__(self, files: Files, view: FoundView | None) -> None:
        super().__init__(files, None if view is None else _runs(files, view))
        self.source = self.path
        self.stored_tracks, self.num_documents = self.manifest.tracks, self.manifest.num_documents
        self.viewed = None if view is None else view.view
        if view is not None:
            said, self.path = view.view, view.roots.directory
            self.num_documents = said.num_documents
            tracks = self.manifest.tracks.items()
            self.stored_tracks = {name: replace(track, max_spans=said.max_spans[name]) for name, track in tracks}
        self.tracks = {name: self.stored_tracks[name] for name in self.levels}

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

    def share_files(self, other: "Viewable") -> None:
        """Read through the open files of another one of the same source."""
        self.files, self.manifest, self.reader = other.files, other.manifest, other.reader

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

    def documents_in(self, start: int, stop: int) -> Documents:
        """The documents that hold the tokens [start, stop)."""
        if self.runs is None or start == stop:
            return super().documents_in(start, stop)
        self.check_range(start, stop)
        _, run, _ = self._in_runs(np.array([start]), np.array([stop]))
        return Documents(self.runs.first[run], run)

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
        start, stop = self.reader.document_range(shard, ordinal)
        return start + self.shard_starts[shard], stop + self.shard_starts[shard]

    def document_id(self, document: int) -> str | None:
        """The id that the document had in the input, if it had one."""
        number = self.sources(np.array([self._check_document(document)]))
        return self.reader.external_id(*self._locate(int(number[0])))

    def find_document(self, external_id: str) -> list[int]:
        """Numbers of all documents that had this id in the input, in order. Costs a few small reads per shard."""
        return self.find_documents([external_id])[external_id]

    def find_documents(self, ids: Sequence[str]) -> dict[str, list[int]]:
        """The same of each of many ids."""
        found: dict[str, list[int]] = {one: [] for one in ids}
        for shard, ordinal, text in find_each(self.reader, ids):
            if self.runs is None:
                found[text].append(self.first_documents[shard] + ordinal)
                continue
            base = self.shard_starts[shard]
            start, stop = self.reader.document_range(shard, ordinal)
            found[text] += range(*np.searchsorted(self.runs.source, [start + base, stop + base]).tolist())
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
            number = documents_of(self.reader, shard, local, local + 1).number
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
