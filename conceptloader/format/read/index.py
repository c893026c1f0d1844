"""The concept index of a track, stored next to the dataset: which spans carry a concept, without reading the track.

Two kinds of parquet files, sorted by concept, and a JSON file that names all of them. docs/runs.md has the columns.
"""

import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from conceptloader.base.hashing import fingerprint
from conceptloader.errors import FormatError
from conceptloader.format.parquet import SortedParquet
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.jsonfile import Checksum, load_json
from conceptloader.format.spec.manifest import Manifest

FORMAT = "conceptindex"
VERSION = 2  # 1 had the first level of a track alone
HEAD = "index.json"
CONCEPTS = "concepts.parquet"
REPAIR = "remove its folder, and write it again: conceptloader index DATASET"


@dataclass(frozen=True, kw_only=True)
class _File:
    """index.json, apart from `format` and `version`. concepts, spans: checksums of the footers of the parquet files."""

    source: str
    track: str
    concepts: Checksum
    spans: tuple[Checksum, ...]


class OtherDataset(FormatError):
    """The index is of the dataset as it was before it was rebuilt."""


class ConceptIndex:
    """An open index of one track; that of a view is its source's. chunk: as many tokens are best asked for at once.

    Everything read from it is compared with a checksum. All methods raise FormatError if it is corrupt, and ReadError.
    """

    chunk = 1 << 26

    def __init__(self, dataset: Dataset, track: str, head: _File) -> None:
        self.dataset, self.track = dataset, track
        self._directory = index_directory(dataset.source, track)
        self._footers = {shard_file(shard): checksum for shard, checksum in enumerate(head.spans)}
        self._footers[CONCEPTS] = head.concepts
        self._file = lru_cache(maxsize=64)(self._open)
        self._shards_of = lru_cache(maxsize=64)(self._read_shards)
        self._spans_of = lru_cache(maxsize=64)(self._read_spans)

    def spans(self, concept: int, first: int = 0, last: int | None = None) -> tuple[Ints, Ints]:
        """The spans that carry a concept, in order, of the shards that hold tokens [first, last), by default of all.

        Returns: tokens [start, end) of the dataset, int64 [n] each.
        """
        last = self.dataset.num_tokens if last is None else last
        if first >= last:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        start, end = self.dataset.in_files(np.array([first]), np.array([last]))
        base = np.array(self.dataset.shard_starts, np.int64)
        shards = self._shards_of(concept)
        shards = shards[(base[shards] < end[-1]) & (base[shards + 1] > start[0])]
        found = [(np.zeros(0, np.int64),) * 2, *(self._spans_of(concept, shard) for shard in shards.tolist())]
        start, end = (np.concatenate(column) for column in zip(*found, strict=True))
        return self.dataset.placed(start, end)[1:]

    def _read_shards(self, concept: int) -> Ints:
        """Shards that have a concept."""
        return self._file(CONCEPTS).columns("shard", key=concept)[0]

    def _read_spans(self, concept: int, shard: int) -> tuple[Ints, Ints]:
        start, length = self._file(shard_file(shard)).columns("start", "length", key=concept)
        return start, start + length

    def _open(self, name: str) -> SortedParquet:
        return SortedParquet(os.path.join(self._directory, name), self._footers[name], REPAIR)


def index_directory(dataset: str, track: str) -> str:
    """Where the index of a track lies."""
    return os.path.join(dataset, f"{track}.concept_index")


def shard_file(shard: int, kind: str = "parquet") -> str:
    return f"{shard:05d}.{kind}"


def source_fingerprint(manifest: Manifest) -> str:
    """Of all that an index depends on."""
    return fingerprint([manifest.stream_fingerprint(), manifest.tracks_fingerprint()])


def open_index(dataset: Dataset, track: str) -> ConceptIndex | None:
    """The index of a track, None if there is none.

    Raises: FormatError if it is corrupt, OtherDataset if the dataset was rebuilt since; ReadError.
    """
    path = os.path.join(index_directory(dataset.source, track), HEAD)
    if "://" in path or not os.path.exists(path):
        return None
    try:
        head = load_json(path).parse(_File, FORMAT, VERSION)
    except FormatError as error:
        raise FormatError(error.path, error.found, error.expected, f"{error.fix}; {REPAIR}") from error
    expected = source_fingerprint(dataset.manifest), track, dataset.num_shards
    if (head.source, head.track, len(head.spans)) != expected:
        raise OtherDataset(f"{path}", f"an index of {head.source}", "an index of the dataset as it is now", REPAIR)
    return ConceptIndex(dataset, track, head)
