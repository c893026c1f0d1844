"""Answers of an index: spans and counts of a concept, and of concepts together, without reading the track."""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import FormatError
from conceptloader.format.index import layout as ix
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints, checksum_column, int_column
from conceptloader.format.spec.jsonfile import JsonObject, expect_format, load_json
from conceptloader.format.spec.layout import bad
from conceptloader.kernels.codecs import decode_spans
from conceptloader.storage.source import Expected, LocalFiles

_ANEW = "make it anew: conceptloader index DATASET --anew"


class OtherDataset(FormatError):
    """The index is of the dataset as it was before it was rebuilt."""


class ConceptIndex:
    """An open index of one track; that of a view is its source's. heads: every concept with its numbers of spans and
    tokens, of type HEAD. chunk: as many tokens are best asked for at once.

    Whatever is read of it is compared with a checksum. All methods raise FormatError for damage, and ReadError.
    """

    chunk = 1 << 26

    def __init__(self, dataset: Dataset, track: str, report: JsonObject) -> None:
        self.dataset, self.track = dataset, track
        self._directory = ix.index_directory(dataset.source, track)
        self._source = LocalFiles()
        heads, rows, postings = (report.object(name) for name in ("heads", "rows", "postings"))
        shards = dataset.num_shards
        sizes, samples = int_column(postings, "size", shards), checksum_column(postings, "sample", shards)
        files = zip(sizes.tolist(), samples, strict=True)
        self._postings = [self._expected(ix.shard_file(k, "postings"), *file) for k, file in enumerate(files)]
        self._rows = self._expected("rows", rows.natural("size", 1 << 56), rows.checksum("sample"))
        file = self._expected("heads", heads.natural("size", 1 << 56), heads.checksum("sample"))
        data = self._read(file, 0, file.size) if file.size else b""
        if xxhash.xxh3_64_hexdigest(data) != heads.checksum("checksum") or file.size % ix.HEAD.itemsize:
            raise bad(file.path, "bytes of another checksum", "those that were written", _ANEW)
        self.heads: NDArray[Any] = np.frombuffer(data, ix.HEAD)
        self._rows_of = lru_cache(maxsize=64)(self._read_rows)
        self._postings_of = lru_cache(maxsize=64)(self._decode)

    def _expected(self, name: str, size: int, sample: str) -> Expected:
        return Expected(os.path.join(self._directory, name), size, sample)

    def _read(self, file: Expected, offset: int, size: int) -> bytes:
        (data,) = self._source.ranges([(file, offset, size)])
        return data

    def count(self, concept: int) -> tuple[int, int]:
        """(spans, tokens) that carry a concept; of a view, in its source."""
        at = self._find(concept)
        return (0, 0) if at is None else (int(self.heads["spans"][at]), int(self.heads["tokens"][at]))

    def spans(self, concept: int, first: int = 0, last: int | None = None) -> tuple[Ints, Ints]:
        """The spans that carry a concept, in order, of the shards that hold tokens [first, last), by default of all.

        Returns: tokens [start, end) of the dataset, int64 [n] each.
        """
        base = np.array(self.dataset.shard_starts, np.int64)
        rows = self._rows_of(concept)
        shards = rows["shard"].astype(np.int64)
        last = self.dataset.num_tokens if last is None else last
        start, end = self.dataset.in_files(np.array([first]), np.array([last]))
        wanted = (base[shards] < end[-1]) & (base[shards + 1] > start[0])
        starts, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for k in np.flatnonzero(wanted).tolist():
            start, end = self._postings_of(concept, k)
            starts.append(start + base[shards[k]])
            ends.append(end + base[shards[k]])
        return self.dataset.placed(np.concatenate(starts), np.concatenate(ends))[1:]

    def together(self, concepts: Sequence[int]) -> Ints:
        """Tokens that carry both of two concepts, for all pairs: int64 [n, n]; a concept's own tokens in the middle."""
        found = [self.spans(concept) for concept in concepts]
        covered = [Coverage(*one) for one in found]
        return np.array([[(of(end) - of(start)).sum() for of in covered] for start, end in found], np.int64)

    def _find(self, concept: int) -> int | None:
        at = int(np.searchsorted(self.heads["concept"], concept))
        return at if at < len(self.heads) and self.heads["concept"][at] == concept else None

    def _read_rows(self, concept: int) -> NDArray[Any]:
        at = self._find(concept)
        if at is None:
            return np.zeros(0, ix.ROW)
        size, total = ix.ROW.itemsize, self._rows.size // ix.ROW.itemsize
        first = int(self.heads["first"][at])
        stop = int(self.heads["first"][at + 1]) if at + 1 < len(self.heads) else total
        rows = np.frombuffer(self._read(self._rows, first * size, (stop - first) * size), ix.ROW)
        sound = (rows["concept"] == concept).all() and (rows["shard"] < len(self._postings)).all()
        if not sound or rows["spans"].sum() != self.heads["spans"][at]:
            raise bad(self._rows.path, f"rows {first} to {stop - 1} of other concepts", f"of {concept}", _ANEW)
        return rows

    def _decode(self, concept: int, number: int) -> tuple[Ints, Ints]:
        """Starts and ends in its shard of what a row says."""
        row = self._rows_of(concept)[number]
        file, count = self._postings[int(row["shard"])], int(row["spans"])
        offset, size = int(row["offset"]), int(row["bytes"])
        if offset + size > file.size or count > size:
            raise bad(file.path, f"postings at bytes {offset} to {offset + size}", f"below {file.size}", _ANEW)
        data = self._read(file, offset, size)
        start, end = np.empty(count, np.int64), np.empty(count, np.int64)
        whole = xxhash.xxh3_64_intdigest(data) == int(row["checksum"])
        if not whole or not decode_spans(np.frombuffer(data, np.uint8), start, end):
            raise bad(f"{file.path}, offset {offset}", "postings of another checksum", "what was written", _ANEW)
        return start, end


class Coverage:
    """How many tokens before a place are in disjoint intervals [start, end), which are in order."""

    def __init__(self, start: Ints, end: Ints) -> None:
        self._start = np.append(np.int64(-1), start)
        self._length = np.append(np.int64(0), end - start)
        self._before = np.cumsum(self._length) - self._length

    def __call__(self, tokens: Ints) -> Ints:
        k = np.searchsorted(self._start, tokens, side="right") - 1
        covered: Ints = self._before[k] + np.minimum(tokens - self._start[k], self._length[k])
        return covered


def open_index(dataset: Dataset, track: str) -> ConceptIndex | None:
    """The index of a track, None if there is none.

    Raises: FormatError if it is damaged, OtherDataset if the dataset was rebuilt since; ReadError.
    """
    path = os.path.join(ix.index_directory(dataset.source, track), ix.INDEX)
    if "://" in path or not os.path.exists(path):
        return None
    try:
        report = load_json(path)
        expect_format(report, ix.FORMAT, ix.VERSION)
        found: Mapping[str, str] = report.taken(source=str, track=str)
    except FormatError as error:
        raise FormatError(f"{error}; {_ANEW}") from error
    if found != {"source": ix.source_fingerprint(dataset.manifest), "track": track}:
        raise OtherDataset(f"{path}: found an index of {found['source']}, expected the dataset as it is now; {_ANEW}")
    return ConceptIndex(dataset, track, report)
