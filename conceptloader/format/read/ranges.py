"""Reading token ranges of a whole dataset: what lies in several shards is put together here."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError
from conceptloader.format.read.bulk import ragged
from conceptloader.format.read.files import Files
from conceptloader.format.read.reader import ShardReader
from conceptloader.format.read.values import Documents, Spans
from conceptloader.format.spec.codecs import Codec, ConceptsCodec, get_codec
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.layout import DENSE
from conceptloader.format.spec.vocabulary import Concept, load_concepts, load_vocabulary
from conceptloader.storage.source import Range

Sample = dict[str, Any]


class Cut(NamedTuple):
    """Pieces of token ranges: the range, the shard, its tokens [first, end), the token of the dataset that its first
    would be; of a view, the run. int64 [n] each."""

    row: Ints
    shard: Ints
    first: Ints
    end: Ints
    base: Ints
    run: Ints


class Ranges:
    """Tokens of a dataset are numbered through all of its shards; a range [start, stop) may cross any number of them.

    All methods raise FormatError for damaged files, ReadError when the operating system fails, and ConfigError for a
    range or a track that does not exist.
    """

    def __init__(self, files: Files, allow_pickle: bool = False, codecs: Mapping[str, Codec] | None = None) -> None:
        self.path = files.roots.directory
        self.manifest = manifest = files.manifest
        self.files = files
        self.reader = ShardReader(files)
        self.num_tokens = manifest.num_tokens
        self.field_names = list(manifest.layouts[0].extra_fields(manifest.tracks))
        self.shard_starts: list[int] = manifest.starts().tolist()
        self.first_documents: list[int] = [0, *np.cumsum(manifest.shards.documents).tolist()]
        self._allow_pickle = allow_pickle
        self._given_codecs = codecs
        self._codecs: dict[str, Codec] = {}

    def codec(self, track: str) -> Codec:
        """The codec of a track. Raises: ConfigError for an unknown track, or for pickle without permission."""
        if track in self._codecs:
            return self._codecs[track]
        entry = self.manifest.tracks.get(track)
        if entry is None:
            known = sorted(self.manifest.tracks)
            raise ConfigError(self.path, f"no track {track!r}", f"one of {known}", "check its name")
        if entry.codec == "pickle" and not self._allow_pickle:
            raise ConfigError(
                f"{self.path}: track {track!r}",
                "codec pickle",
                "one that executes no code",
                "if you trust the dataset, pass allow_pickle=True, or else leave this track out",
            )
        codec = get_codec(entry.codec, entry.parameters, self._given_codecs, f"{self.path}: track {track!r}")
        if isinstance(codec, ConceptsCodec):
            codec = entry.concepts
        self._codecs[track] = codec
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
            raise ConfigError(f"{self.path}: track {track!r}", "no vocabulary", "one", "its concepts are ids")
        return load_concepts(self.files.roots, entry)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """(shard, first, end, base) for each piece of tokens [start, stop) that lies in one shard: its tokens
        [first, end), which are base + first and following of the dataset."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise ConfigError(self.path, f"token range [{start}, {stop})", f"0 <= start <= stop <= {self.num_tokens}")
        return self._parts(start, stop)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        shard = bisect_right(self.shard_starts, start) - 1
        while start < stop:
            base, end = self.shard_starts[shard], min(stop, self.shard_starts[shard + 1])
            if start < end:
                yield shard, start - base, end - base, base
                start = end
            shard += 1

    def cut(self, start: Ints, stop: Ints) -> Cut:
        """The same of many ranges, none of them empty, in their order; not checked."""
        borders = np.array(self.shard_starts)
        low = np.searchsorted(borders, start, side="right") - 1
        counts = np.searchsorted(borders, stop - 1, side="right") - low
        row, shard = np.repeat(np.arange(len(start)), counts), ragged(low, counts)
        base = borders[shard]
        first, end = np.maximum(start[row], base) - base, np.minimum(stop[row], borders[shard + 1]) - base
        some = first < end
        found = Cut(row, shard, first, end, base, np.full(len(row), -1))
        return found if some.all() else Cut(*(column[some] for column in found))

    def stream_bytes(self, start: int, stop: int) -> Iterator[Range]:
        """Of token files, what reading tokens [start, stop) reads."""
        table, layouts = self.manifest.shards, self.manifest.layouts
        for shard, first, end, _ in self.parts(start, stop):
            size, base = layouts[table.layout[shard]].itemsize, int(table.offset[shard])
            # A dense track looks one token further on both sides.
            low, high = max(0, first - 1), min(end + 1, int(table.tokens[shard]))
            yield self.files.expected("stream.bin", shard), base + low * size, (high - low) * size

    def read(self, start: int, stop: int, tracks: Sequence[str] = (), documents: bool = False) -> Sample:
        """Tokens [start, stop) with everything that belongs to them; each stream is read once.

        Returns: "tokens" int64 [n], each token-aligned field [n], "documents" if asked for, and Spans for each track.
        """
        columns: dict[str, list[NDArray[Any]]] = {name: [] for name in ("token", *self.field_names)}
        runs: dict[str, list[Any]] = {track: [] for track in tracks}
        for shard, a, b, base in self.parts(start, stop):
            dense = [track for track in tracks if self.manifest.shards.tracks[track].encoding[shard] == DENSE]
            # One token more on either side tells whether a dense run goes on there.
            low, high = (max(0, a - 1), min(b + 1, int(self.manifest.shards.tokens[shard]))) if dense else (a, b)
            wide = self.reader.stream(shard, low, high)
            items = wide[a - low : b - low]
            self.reader.check_ids(shard, a, items["token"])
            for name, column in columns.items():
                column.append(items[name])
            for track in tracks:
                runs[track].append(self._runs_part(track, shard, a, b, base - start, wide if track in dense else None))
        sample: Sample = {"tokens": _join(columns["token"], np.int64).astype(np.int64)}
        if documents:
            sample["documents"] = self.documents_in(start, stop)
        for name in self.field_names:
            sample[name] = _join(columns[name], self.manifest.layouts[0].dtype[name]).copy()
        for track in tracks:
            sample[track] = self._spans(track, runs[track])
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
        parts = [self._documents_part(*part) for part in self.parts(start, stop)]
        return Documents(*(_join([part[i] for part in parts], np.int64) for i in (0, 1)))

    def spans(self, track: str, start: int, stop: int) -> Spans:
        """The runs of a track that touch tokens [start, stop), relative to `start`."""
        self.codec(track)
        parts = [self._runs_part(track, shard, a, b, base - start) for shard, a, b, base in self.parts(start, stop)]
        return self._spans(track, parts)

    def _documents_part(self, shard: int, a: int, b: int, base: int) -> tuple[Ints, Ints]:
        first, ordinal = self.reader.documents(shard, a, b)
        return first + base, np.where(ordinal < 0, -1, ordinal + self.first_documents[shard])

    def _runs_part(
        self, track: str, shard: int, a: int, b: int, shift: int, items: NDArray[np.void] | None = None
    ) -> tuple[Any, ...]:
        start, end, begins_before, ends_after, numbers = self.reader.runs(shard, track, a, b, items)
        records = self.reader.records(shard, track, numbers)
        return start + shift, end + shift, begins_before, ends_after, records

    def _spans(self, track: str, parts: list[Any]) -> Spans:
        start, end = (_join([part[i] for part in parts], np.int64) for i in (0, 1))
        before, after = (_join([part[i] for part in parts], np.bool_) for i in (2, 3))
        records = [record for part in parts for record in part[4]]
        return Spans(start, end, before, after, records, self.codec(track), f"{self.path}: track {track!r}")


def _join(parts: Sequence[NDArray[Any]], empty: Any) -> NDArray[Any]:
    """Concatenation without a copy when there is one part; no part: an empty array of type `empty`."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, empty)
