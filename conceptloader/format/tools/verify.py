"""Is a dataset what its manifest says? Quick: all files are there, with size and sample. Full: every byte is read."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from conceptloader.errors import ConceptloaderError, FormatError
from conceptloader.format.read.bulk import starts_in
from conceptloader.format.read.dataset import open_dataset
from conceptloader.format.read.files import Files, FoundView, ManifestGuard, load_manifest
from conceptloader.format.read.kept import tokenizer_problem
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import BUILT_IN, parameter_problem
from conceptloader.format.spec.columnfile import column_file, holes_kind, unpack_holes
from conceptloader.format.spec.jsonfile import Checksum, Size, dump_json, load_json
from conceptloader.format.spec.vocabulary import load_details, load_vocabulary
from conceptloader.format.tools.checks import FileCheck
from conceptloader.format.write.ladder import count_items, count_spans
from conceptloader.storage.durable import write_file
from conceptloader.storage.sample import file_checksum
from conceptloader.storage.source import LocalFiles

CHECKSUMS_FORMAT = "conceptstream-checksums"
CHECKSUMS_VERSION = 1
_NEEDS = {"hash": "ids", "data": "index"}  # without a sound one there is nothing to compare with


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One finding. shard and tokens (a range of the dataset, for `exclude`) are None for files of no shard."""

    file: str
    message: str
    shard: int | None = None
    tokens: tuple[int, int] | None = None

    def __str__(self) -> str:
        return self.message if self.message.startswith(self.file) else f"{self.file}: {self.message}"


def verify(
    path: str | os.PathLike[str],
    full: bool = False,
    roots: Sequence[str | os.PathLike[str]] | None = None,
    write_checksums: bool = True,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Problem]:
    """Check a dataset; an empty list means that it is sound.

    Without full: sizes, times and samples of files.

    Of a view its source is checked, and ranges of tokens are those of the view.

    Args:
        path: Directory or URL of a dataset or a subset.
        full: Read all files, compare checksums, check order and range of everything in them. Token files of other
            libraries may have no checksum at first: their checksums are written to checksums.json in the dataset's
            directory (unless write_checksums is False) and compared from then on. Records of codecs that are neither
            built in nor registered are not decoded.
        roots: Directories outside of the dataset's that its files may lie in.
        write_checksums: False leaves checksums.json as it is.
        threads: Shards that are read at once.
        progress: Called per shard with (done, total).

    Returns:
        What is wrong, a problem each.

    Raises:
        FormatError: A file is corrupt or not as its manifest says.
        ConfigError: An option or argument breaks a rule.
        ReadError: If the manifest cannot be read.
    """
    try:
        manifest, allowed = load_manifest(path, roots)
    except FoundView as view:
        of_source = verify(view.source, full, view.roots.roots, write_checksums, threads, progress)
        return _check_view(view, of_source, full)
    source = LocalFiles(check=not full)
    files = Files(manifest, allowed, source)
    known, fresh = _load_checksums(allowed.directory), dict[str, Any]()
    checks = _Shards(files, source, manifest.starts().tolist(), full, known, fresh)
    problems = [*_check_tracks(files, full), *_check_columns(files)]
    if wrong := tokenizer_problem(files):
        problems.append(Problem(file=wrong[0], message=wrong[1]))
    try:
        ManifestGuard(allowed).begin(manifest)
    except ConceptloaderError as error:
        problems.append(Problem(file=allowed.resolve(fmt.MANIFEST), message=str(error)))
    with ThreadPoolExecutor(threads) as pool:
        for shard, found in enumerate(pool.map(checks.check, range(len(manifest.shards)))):
            problems += found
            if progress is not None:
                progress(shard + 1, len(manifest.shards))
        if full and not problems:  # in damaged files there is nothing to count
            file = allowed.resolve(fmt.MANIFEST)
            problems += [Problem(file=file, message=message) for message in _false_claims(files, pool)]
    files.close()
    if fresh and write_checksums:
        entries = dict(sorted({**known, **fresh}.items()))
        content = {"format": CHECKSUMS_FORMAT, "version": CHECKSUMS_VERSION, "files": entries}
        write_file(os.path.join(allowed.directory, fmt.CHECKSUMS), dump_json(content))
    return problems


def _check_view(found: FoundView, problems: Sequence[Problem], full: bool) -> list[Problem]:
    """Problems of the source, with the tokens of the view that they spoil, and those of the view."""
    path = found.roots.directory
    try:
        view = open_dataset(path, found.roots.given)
    except ConceptloaderError as error:
        return [*(replace(one, tokens=None) for one in problems), Problem(file=path, message=str(error))]
    placed = []
    for one in problems:
        _, start, end = view.placed(*(np.array([token]) for token in one.tokens or (0, 0)))
        placed.append(replace(one, tokens=(int(start[0]), int(end[-1])) if len(start) else None))
    for track in view.stored_tracks if full and not problems else ():
        claimed, counted = list(view.stored_tracks[track].max_spans), count_spans(view, track)
        if claimed != counted:
            message = f"max_spans: {track}: found {claimed}, expected {counted}, as counted; make the view again"
            placed.append(Problem(file=path, message=message))
    return placed


@dataclass(frozen=True, kw_only=True)
class _FileChecksum:
    size: Size
    checksum: Checksum


@dataclass(frozen=True, kw_only=True)
class _ChecksumsFile:
    files: Mapping[str, _FileChecksum]


def _load_checksums(directory: str) -> dict[str, Any]:
    """Checksums of foreign files by their path in the manifest, from an earlier full verification."""
    path = os.path.join(directory, fmt.CHECKSUMS)
    if not os.path.exists(path):
        return {}
    found = load_json(path).parse(_ChecksumsFile, CHECKSUMS_FORMAT, CHECKSUMS_VERSION)
    return {name: asdict(entry) for name, entry in found.files.items()}


def _check_tracks(files: Files, full: bool) -> Iterator[Problem]:
    """What the manifest says of codecs, and files of vocabularies."""
    for name, track in files.manifest.tracks.items():
        wrong = track.codec in BUILT_IN and parameter_problem(track.codec, track.parameters)
        if wrong:
            yield Problem(file=files.roots.resolve(fmt.MANIFEST), message=f"tracks: {name}: {wrong}")
        if track.vocabulary is None:
            continue
        for entry, load in ((track.vocabulary, load_vocabulary), (track.vocabulary.details, load_details)):
            if entry is None:
                continue
            path = files.roots.resolve(entry.path)
            try:
                files.roots.check_real(path)
                size = os.stat(path).st_size
                if size != entry.size:
                    raise FormatError(
                        "",
                        f"{size} bytes",
                        str(entry.size),
                        "restore the file from a copy, then run `conceptloader verify` again",
                    )
                if full:
                    load(files.roots, track.vocabulary)
            except (ConceptloaderError, OSError) as error:
                yield Problem(file=path, message=str(error))


def _check_columns(files: Files) -> Iterator[Problem]:
    """Columns that cannot be read as those of this dataset. The files of the others are checked with the shards."""
    for name in files.columns:
        try:
            files.columns.get(name)
        except ConceptloaderError as error:
            yield Problem(file=files.roots.resolve(column_file(name)), message=str(error))


def _false_claims(files: Files, pool: Executor) -> Iterator[str]:
    """Problems with `max_spans` and `max_items` of a dataset whose files are sound; they are read again.

    Of numbers, `max_items` may be missing: a writer need not count them.
    """
    ranges = Ranges(files)
    for name, track in files.manifest.tracks.items():
        try:
            spans = count_spans(ranges, name, pool.map)
            numbers = track.codec == "numpy" and track.max_items is not None
            items = count_items(files, name) if numbers or track.codec == "concepts" else None
        except ConceptloaderError as error:
            yield str(error)
            continue
        claims = ("max_spans", list(track.max_spans), spans), ("max_items", track.max_items, items)
        for key, claimed, counted in claims:
            if claimed != counted:
                rule = f"{counted}, as counted in the files; the manifest was changed or badly written: restore it"
                yield f"tracks: {name}: {key}: found {claimed}, expected {rule}"
    for name in files.columns:
        column = files.columns[name]
        if column.holes is not None:
            said, seen = (column.holes.tokens, column.holes.starts), _count_holes(files, name)
            if said != seen:
                rule = f"{seen}, as counted in the files; write it again"
                yield f"column {name}: holes: found {said} tokens and starts, expected {rule}"


def _count_holes(files: Files, name: str) -> tuple[int, int]:
    """Tokens without a value in the files of a column, and how many of these begin a document."""
    tokens = starts = 0
    kind = holes_kind(name)
    for shard in np.flatnonzero(files.kinds[kind].size >= 0).tolist():
        lacking = unpack_holes(np.frombuffer(files.read(kind, shard, 0, int(files.kinds[kind].size[shard])), np.uint8))
        tokens += int(lacking.sum())
        starts += int(lacking[starts_in(files, shard)].sum())
    return tokens, starts


@dataclass(frozen=True)
class _Shards:
    """known: checksums of foreign files by their path in the manifest. fresh: takes those that nothing records yet.

    shared: checksums of files that several shards have.
    """

    files: Files
    source: LocalFiles
    starts: Sequence[int]
    full: bool
    known: Mapping[str, Any]
    fresh: dict[str, Any]
    shared: dict[str, str] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def check(self, shard: int) -> list[Problem]:
        """Sizes, and if `full` contents, of all files of a shard. After an error comes the next file."""
        files, table = self.files, self.files.table
        failed: set[str] = set()
        checks: list[tuple[str, str, Callable[[], None]]] = [
            (kind, files.path(kind, shard), partial(self._check_file, kind, shard, failed))
            for kind, column in files.kinds.items()
            if column.size[shard] >= 0
        ]
        foreign = table.foreign[shard]
        if self.full and foreign is not None and foreign.index is not None and foreign.index_checksum is not None:
            path, expected = files.roots.resolve(foreign.index), foreign.index_checksum
            checks.append(("", path, lambda: _equal(file_checksum(path), expected, "the index that was adopted")))
        problems = []
        for kind, path, check in checks:
            try:
                check()
            except (ConceptloaderError, OSError) as error:
                tokens = self.starts[shard], self.starts[shard + 1]
                problems.append(Problem(file=path, message=str(error), shard=shard, tokens=tokens))
                failed.add(kind)
        return problems

    def _check_file(self, kind: str, shard: int, failed: Collection[str]) -> None:
        """failed: files of the shard with a problem; checks that depend on one of them are skipped."""
        if not self.full:
            os.close(self.source.open(self.files.expected(kind, shard)))
            return
        path = self.files.path(kind, shard)
        self.files.roots.check_real(path)
        self.files.expected(kind, shard).check(os.stat(path))
        stem, _, suffix = kind.rpartition(".")
        if f"{stem}.{_NEEDS.get(suffix)}" in failed:
            return
        table, column = self.files.table, self.files.kinds[kind]
        file = FileCheck(self.files, kind, shard)
        found, expected = file.check() or self._checksum(path), column.checksum[shard]
        if expected is None:
            name = column.path[shard] or f"{table.path[shard]}.{kind}"
            entry = {"size": file.size_of(kind), "checksum": found}
            expected = self.known.get(name, entry)["checksum"]
            if name not in self.known:
                self.fresh[name] = entry
        _equal(found, expected, "the content")
        if file.token_checksum is not None:
            _equal(file.token_checksum, table.token_checksum[shard] or file.token_checksum, "the token column")

    def _checksum(self, path: str) -> str:
        """Of a file that several shards have."""
        with self.lock:
            if path not in self.shared:
                self.shared[path] = file_checksum(path)
            return self.shared[path]


def _equal(found: str, expected: str, what: str) -> None:
    if found != expected:
        raise FormatError(
            what,
            f"checksum {found}",
            expected,
            "it is corrupt or was changed: restore it from a copy, then run `conceptloader verify` again",
        )
