"""Is a dataset what its manifest says? Quick: all files are there, with size and sample. Full: every byte is read."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from conceptloader.errors import ConceptloaderError, FormatError
from conceptloader.format.read.dataset import open_dataset
from conceptloader.format.read.files import Files, FoundView, ManifestGuard, load_manifest
from conceptloader.format.read.kept import tokenizer_problem
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columnfile import BF16, ItemFiles, column_file
from conceptloader.format.spec.jsonfile import Checksum, Size, dump_json, load_json
from conceptloader.format.spec.vocabulary import Details, Vocabulary
from conceptloader.storage.durable import write_file
from conceptloader.storage.sample import file_checksum
from conceptloader.storage.source import LocalFiles

CHECKSUMS_FORMAT = "conceptstream-checksums"
CHECKSUMS_VERSION = 1
_CHUNK = 1 << 22
_FIX = "it is corrupt or was changed: restore it from a copy, then run `conceptloader verify` again"


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
        full: Read all files and compare checksums. Files of other libraries may have none at first: of these the tokens
            and items are looked at, and their checksums are written to checksums.json in the dataset's directory
            (unless write_checksums is False) and compared from then on.
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
        return _check_view(view, of_source)
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
    files.close()
    if fresh and write_checksums:
        entries = dict(sorted({**known, **fresh}.items()))
        content = {"format": CHECKSUMS_FORMAT, "version": CHECKSUMS_VERSION, "files": entries}
        write_file(os.path.join(allowed.directory, fmt.CHECKSUMS), dump_json(content))
    return problems


def _check_view(found: FoundView, problems: Sequence[Problem]) -> list[Problem]:
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
    """Files of vocabularies."""
    names = [track.vocabulary for track in files.manifest.tracks.values() if track.vocabulary is not None]
    entries: list[Vocabulary | Details] = [*names, *(one.details for one in names if one.details is not None)]
    for entry in entries:
        path = files.roots.resolve(entry.path)
        try:
            files.roots.check_real(path)
            if (size := os.stat(path).st_size) != entry.size:
                raise FormatError("the size", f"{size} bytes", str(entry.size), _FIX)
            if full:
                _equal(file_checksum(path), entry.checksum, "the content")
        except (ConceptloaderError, OSError) as error:
            yield Problem(file=path, message=str(error))


def _check_columns(files: Files) -> Iterator[Problem]:
    """Columns that cannot be read as those of this dataset. The files of the others are checked with the shards."""
    for name in files.columns:
        try:
            files.columns.get(name)
        except ConceptloaderError as error:
            yield Problem(file=files.roots.resolve(column_file(name)), message=str(error))


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

    def check(self, shard: int) -> list[Problem]:
        """Sizes, and if `full` contents, of all files of a shard. After an error comes the next file."""
        files, table = self.files, self.files.table
        checks: list[tuple[str, Callable[[], None]]] = [
            (files.path(kind, shard), partial(self._check_file, kind, shard))
            for kind, column in files.kinds.items()
            if column.size[shard] >= 0
        ]
        foreign = table.foreign[shard]
        if self.full and foreign is not None and foreign.index is not None and foreign.index_checksum is not None:
            path, expected = files.roots.resolve(foreign.index), foreign.index_checksum
            checks.append((path, lambda: _equal(file_checksum(path), expected, "the index that was adopted")))
        problems = []
        for path, check in checks:
            try:
                check()
            except (ConceptloaderError, OSError) as error:
                tokens = self.starts[shard], self.starts[shard + 1]
                problems.append(Problem(file=path, message=str(error), shard=shard, tokens=tokens))
        return problems

    def _check_file(self, kind: str, shard: int) -> None:
        if not self.full:
            os.close(self.source.open(self.files.expected(kind, shard)))
            return
        path, column = self.files.path(kind, shard), self.files.kinds[kind]
        self.files.roots.check_real(path)
        self.files.expected(kind, shard).check(os.stat(path))
        found, expected = self._checksum(path), column.checksum[shard]
        if expected is None:
            name = column.path[shard] or f"{self.files.table.path[shard]}.{kind}"
            if name not in self.known:
                _check_content(self.files, kind, shard)
                self.fresh[name] = {"size": int(column.size[shard]), "checksum": found}
            expected = self.known.get(name, self.fresh.get(name))["checksum"]
        _equal(found, expected, "the content")

    def _checksum(self, path: str) -> str:
        """Several shards may have a file."""
        found = self.shared.get(path)
        if found is None:
            found = self.shared[path] = file_checksum(path)
        return found


def _check_content(files: Files, kind: str, shard: int) -> None:
    """Of a file that nothing is known of: token ids are below the vocabulary size, items no NaN."""
    table, tokens, name = files.table, int(files.table.tokens[shard]), kind.removesuffix(".column")
    if kind == "stream.bin":
        dtype, at = files.manifest.layouts[table.layout[shard]].dtype, int(table.offset[shard])
        checksum, limit = xxhash.xxh3_64(), files.manifest.num_ids
        for i, items in _pieces(files, kind, shard, dtype, at, tokens):
            ids = items["token"]
            checksum.update(ids.tobytes())
            _first((ids < 0) | (ids >= limit), i, ids, "token", f"ids in [0, {limit}), the vocabulary")
        if (known := table.token_checksum[shard]) is not None:
            _equal(checksum.hexdigest(), known, "the token column")
    elif kind.endswith(".column"):
        column, found = files.columns[name], files.kinds[kind]
        at = int(found.offset[shard]) if isinstance(found, ItemFiles) else 0
        dtype = np.dtype((column.stored, (column.itemsize // column.stored.itemsize,)))
        for i, items in _pieces(files, kind, shard, dtype, at, tokens):
            none: Any = items & 0x7FFF > 0x7F80 if column.dtype == BF16 else items != items
            _first(none.any(1), i, items, "item of token", "numbers, not NaN")


def _pieces(files: Files, kind: str, shard: int, dtype: Any, at: int, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """(number of the first item, items) of a file, from byte `at`."""
    dtype = np.dtype(dtype)
    base, size = dtype.base if dtype.shape else dtype, dtype.itemsize
    step = max(1, _CHUNK // size)
    for i in range(0, count, step):
        data = files.read(kind, shard, at + i * size, min(step, count - i) * size)
        yield i, np.frombuffer(data, base).reshape(-1, *dtype.shape)


def _first(wrong: Any, base: int, values: NDArray[Any], what: str, expected: str) -> None:
    if wrong.any():
        i = int(np.argmax(wrong))
        raise FormatError(f"{what} {base + i}", str(values[i]), expected, fmt.DAMAGED)


def _equal(found: str, expected: str, what: str) -> None:
    if found != expected:
        raise FormatError(what, f"checksum {found}", expected, _FIX)
