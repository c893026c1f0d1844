"""Documents of a dataset, and all that is different where the dataset is a view: runs of the tokens of another one.

A view has the files of its source, and numbers tokens and documents of its own: run k is document k.
"""

import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.read.bulk import documents_of, ragged
from conceptloader.format.read.files import Files, FoundView
from conceptloader.format.read.lookup import find_in_shard, read_items
from conceptloader.format.read.ranges import Cut, Ranges
from conceptloader.format.read.values import Documents
from conceptloader.format.spec.codecs import Codec
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import OFFSET
from conceptloader.format.spec.viewfile import Runs

_DOCUMENTS = 1 << 20  # whose lengths are read at a time


class Viewable(Ranges):
    """viewed, runs: of a view; None in a dataset with files of its own. source: the path of the one with the files."""

    def __init__(
        self, files: Files, view: FoundView | None, allow_pickle: bool, codecs: Mapping[str, Codec] | None
    ) -> None:
        super().__init__(files, allow_pickle, codecs)
        self.source = self.path
        self.runs: Runs | None = None
        self.tracks = files.manifest.tracks
        self.num_documents = files.manifest.num_documents
        self.viewed = None if view is None else view.view
        if view is None:
            return
        said = view.view
        self.path = view.roots.directory
        prints = files.manifest.stream_fingerprint(), files.manifest.tracks_fingerprint()
        if prints != (said.source.stream_fingerprint, said.source.tracks_fingerprint) or set(said.max_spans) != set(
            self.tracks
        ):
            raise FormatError(
                self.path,
                f"found other tokens, documents or tracks in its source {self.source} than those which it was "
                "selected from",
                fix="restore the source, or make the view anew: conceptloader select",
            )
        self.runs = view.runs(self.num_tokens)
        self.num_tokens, self.num_documents = said.num_tokens, said.num_documents
        self.tracks = {name: replace(track, max_spans=said.max_spans[name]) for name, track in self.tracks.items()}

    @property
    def identity(self) -> str:
        """Of its manifest."""
        return self.manifest.identity if self.viewed is None else self.viewed.identity

    @property
    def source_fingerprints(self) -> tuple[str, str]:
        """Of the stream and the tracks of the dataset that has the files."""
        if self.viewed is not None:
            return self.viewed.source.stream_fingerprint, self.viewed.source.tracks_fingerprint
        return self.manifest.stream_fingerprint(), self.manifest.tracks_fingerprint()

    def share_files(self, other: "Viewable") -> None:
        """Read through the open files of another one of the same source."""
        self.files, self.manifest, self.reader = other.files, other.manifest, other.reader

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """See Ranges.parts."""
        if self.runs is None:
            yield from super()._parts(start, stop)
            return
        source, first = self.runs.source, self.runs.first
        k = int(np.searchsorted(first, start, side="right")) - 1
        while start < stop:
            end, shift = min(stop, int(first[k + 1])), int(first[k] - source[k])
            for shard, a, b, base in super()._parts(start - shift, end - shift):
                yield shard, a, b, base + shift
            start, k = end, k + 1

    def cut(self, start: Ints, stop: Ints) -> Cut:
        """See Ranges."""
        if self.runs is None:
            return super().cut(start, stop)
        row, run = self._runs_of(start, stop)
        shift = self.runs.first[run] - self.runs.source[run]
        found = super().cut(*self.in_files(start, stop))
        return found._replace(row=row[found.row], base=found.base + shift[found.row], run=run[found.row])

    def _runs_of(self, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """(range, run) for each run that holds tokens of the ranges, none of which is empty."""
        assert self.runs is not None
        low = np.searchsorted(self.runs.first, start, side="right") - 1
        counts = np.searchsorted(self.runs.first, stop) - low
        return np.repeat(np.arange(len(start)), counts), ragged(low, counts)

    def in_files(self, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """Ranges of tokens, none empty, as ranges of the tokens in the files; in a view these may be more."""
        if self.runs is None:
            return start, stop
        row, run = self._runs_of(start, stop)
        shift = self.runs.first[run] - self.runs.source[run]
        begin, end = np.maximum(start[row], self.runs.first[run]), np.minimum(stop[row], self.runs.first[run + 1])
        return begin - shift, end - shift

    def documents_in(self, start: int, stop: int) -> Documents:
        """The documents that hold the tokens [start, stop)."""
        if self.runs is None:
            return super().documents_in(start, stop)
        self.parts(start, stop)  # checks them
        first = self.runs.first
        low, high = int(np.searchsorted(first, start, side="right")) - 1, int(np.searchsorted(first, stop))
        ids = np.arange(low, max(low, high)) if start < stop else np.zeros(0, np.int64)
        return Documents(first[ids], ids)

    def _check_document(self, document: int) -> int:
        number = operator.index(document)
        if not 0 <= number < self.num_documents:
            raise ConfigError(self.path, f"document {number}", f"one in [0, {self.num_documents})")
        return number

    def locate_document(self, document: int) -> tuple[int, int]:
        """(shard, ordinal in the shard) of a document, by its number in the dataset."""
        number = self._check_document(document)
        if self.runs is not None:
            token = int(self.runs.source[number])
            number = int(self._documents_part(*next(super()._parts(token, token + 1)))[1][0])
        shard = bisect_right(self.first_documents, number) - 1
        return shard, number - self.first_documents[shard]

    def document_range(self, document: int) -> tuple[int, int]:
        """Tokens [start, stop) of a document, by its number in the dataset."""
        if self.runs is not None:
            number = self._check_document(document)
            return int(self.runs.first[number]), int(self.runs.first[number + 1])
        shard, ordinal = self.locate_document(document)
        start, stop = self.reader.document_range(shard, ordinal)
        return start + self.shard_starts[shard], stop + self.shard_starts[shard]

    def document_id(self, document: int) -> str | None:
        """The id that the document had in the input, if it had one."""
        return self.reader.external_id(*self.locate_document(document))

    def find_document(self, external_id: str) -> list[int]:
        """Numbers of all documents that had this id in the input, in order. Costs a few small reads per shard."""
        found: list[int] = []
        for shard in np.flatnonzero(self.manifest.shards.files["documents.hash"].size > 0).tolist():
            for ordinal in find_in_shard(self.reader, shard, external_id):
                if self.runs is None:
                    found.append(self.first_documents[shard] + ordinal)
                    continue
                base = self.shard_starts[shard]
                start, stop = self.reader.document_range(shard, ordinal)
                found += range(*np.searchsorted(self.runs.source, [start + base, stop + base]).tolist())
        return found

    def sources(self, documents: Ints) -> Ints:
        """The numbers that documents have in the files; these differ in a view. -1 stays."""
        if self.runs is None:
            return documents
        found = np.full(len(documents), -1)
        known = np.flatnonzero(documents >= 0)
        token = self.runs.source[documents[known]]
        shards = np.searchsorted(np.array(self.shard_starts), token, side="right") - 1
        for shard in np.unique(shards).tolist():
            chosen = np.flatnonzero(shards == shard)
            local = token[chosen] - self.shard_starts[shard]
            number = documents_of(self.reader, shard, local, local + 1).number
            found[known[chosen]] = np.where(number < 0, -1, number + self.first_documents[shard])
        return found

    def placed(self, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Ranges of the tokens in the files, in order of their starts, as ranges of tokens of the dataset: (range,
        start, end) of each part of one; in a view these may be fewer or more."""
        if self.runs is None:
            return np.arange(len(start)), start, end
        which, run = self.runs.meeting(start, end)
        shift = self.runs.first[run] - self.runs.source[run]
        begin, stop = np.maximum(start[which], self.runs.source[run]), np.minimum(end[which], self.runs.end[run])
        return which, begin + shift, stop + shift

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
