"""Map-style datasets over the format: numpy in, numpy out, no knowledge of ranks."""

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, SupportsIndex

import numpy as np

from conceptloader.base.lazy import lazy
from conceptloader.base.shown import Shown
from conceptloader.base.terminal import masked
from conceptloader.errors import ConfigError
from conceptloader.format.read.files import FoundView, open_files, require_same
from conceptloader.format.read.ranges import Sample
from conceptloader.format.read.tables import Tabular
from conceptloader.format.read.view import Viewable
from conceptloader.format.spec.codecs import Codec, register_lacking, registered
from conceptloader.format.spec.vocabulary import Concept
from conceptloader.storage.threads import shared_threads


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
    return Dataset(path, roots, verify_files)


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


class Dataset(Shown, Viewable):
    """An open dataset: token ranges, documents, windows. Made by `open_dataset`.

    Safe to use from many threads and after a fork; pickles as its path and options, for spawned workers.

    Args:
        path: As for `open_dataset`.
        roots: As for `open_dataset`.
        verify_files: As for `open_dataset`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        roots: Sequence[str | os.PathLike[str]] | None,
        verify_files: bool = True,
    ) -> None:
        view = None
        try:
            files = open_files(path, roots, verify_files)
        except FoundView as found:
            view, files = found, open_files(found.source, found.roots.roots, verify_files)
        super().__init__(files, view)
        manifest = files.manifest
        self.mode = manifest.mode
        self.tokenizer = manifest.tokenizer
        self.num_shards = len(manifest.shards)
        given = (files if view is None else view).roots.given
        self._known: dict[str, dict[str | int, Concept]] = {}  # concepts by track, by name and id, once asked for
        self._arguments = (self.path, given, verify_files)

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


class MapStyle(Shown):
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


class DocumentView(MapStyle, Tabular):
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

    def _columns(self, first: int = 0, stop: int | None = None) -> dict[str, Any]:
        """Documents [first, stop), by default all: number, id in the input, tokens [start, stop)."""
        numbers = range(len(self))[first:stop]
        ranges = np.array([self.dataset.document_range(number) for number in numbers], np.int64).reshape(-1, 2)
        ids = [self.dataset.document_id(number) for number in numbers]
        return {"document": np.array(numbers), "id": ids, "start": ranges[:, 0], "stop": ranges[:, 1]}
