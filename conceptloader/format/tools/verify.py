"""Is a dataset what its manifest says? Quick: all files are there, with size and sample. Full: every byte is read."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import xxhash

from conceptloader.errors import ConceptloaderError, ConfigError, FormatError
from conceptloader.format.read.files import Files, load_manifest
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import BUILT_IN, Codec, get_codec, parameter_problem
from conceptloader.format.spec.jsonfile import dump_json, expect_format, load_json
from conceptloader.format.spec.manifest import Manifest, Track
from conceptloader.format.spec.vocabulary import load_vocabulary
from conceptloader.format.tools.checks import ShardChecks
from conceptloader.format.tools.claims import false_claims
from conceptloader.format.tools.join import replace_manifest
from conceptloader.storage.durable import write_file
from conceptloader.storage.reads import open_file
from conceptloader.storage.source import LocalFiles

CHECKSUMS_FORMAT = "conceptstream-checksums"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One finding. shard and tokens (a range of the dataset, for a quarantine list) are None for files of no shard."""

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
    codecs: Mapping[str, Codec] | None = None,
    write_checksums: bool = True,
    record: bool = False,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Problem]:
    """Check a dataset; an empty list means that it is sound.

    Without full: sizes, times and samples of files, as far as the manifest says them. full: read all files, compare
    checksums, check order and range of everything in them. Token files of other libraries may have no checksum at
    first: their checksums are written to checksums.json in the dataset's directory (unless write_checksums is False)
    and compared from then on. Records of pickle and of codecs that are neither built in nor given are not decoded.

    record: if all is sound, replace a manifest that lacks samples of files by one that has them, of the latest version
    of the format; what else it says stays, fingerprints included. progress(done, total): called per shard.

    Raises: ConfigError for record without full; FormatError, ConfigError or ReadError if the manifest cannot be read.
    """
    if record and not full:
        raise ConfigError("verify: found record without full, expected both: what is recorded has to be sound")
    manifest, allowed = load_manifest(path, roots)
    source = LocalFiles(check=record or not full)
    files = Files(manifest, allowed, source)
    known = _load_checksums(allowed.directory)
    fresh: dict[str, Any] = {}
    starts = manifest.starts().tolist()
    problems = [*_vocabularies(manifest, files, full), *_parameters(manifest, allowed.directory, codecs)]

    def check(shard: int) -> list[Problem]:
        findings = _Findings(files, shard, (starts[shard], starts[shard + 1]))
        _check_shard(ShardChecks(manifest, files, shard), findings, full, codecs, {**known}, fresh)
        return findings.problems

    with ThreadPoolExecutor(threads) as pool:
        for shard, found in enumerate(pool.map(check, range(len(manifest.shards)))):
            problems += found
            if progress is not None:
                progress(shard + 1, len(manifest.shards))
        if full and not problems:  # in damaged files there is nothing to count
            file = os.path.join(allowed.directory, fmt.MANIFEST)
            problems += [Problem(file=file, message=message) for message in false_claims(manifest, files, pool)]
    files.close()
    if fresh and write_checksums:
        entries = dict(sorted({**known, **fresh}.items()))
        content = {"format": CHECKSUMS_FORMAT, "version": 1, "files": entries}
        write_file(os.path.join(allowed.directory, fmt.CHECKSUMS), dump_json(content))
    if record and not problems and manifest.shards.unsampled():
        _record(manifest, files, source)
    return problems


def _record(manifest: Manifest, files: Files, source: LocalFiles) -> None:
    """Replace the manifest by one with the samples that were taken when the files were opened."""
    table = manifest.shards
    columns = {
        kind: replace(column, sample=[source.sample(files.path(kind, shard)) for shard in range(len(table))])
        for kind, column in table.files.items()
    }
    replace_manifest(
        replace(manifest, version=fmt.VERSION, shards=replace(table, files=columns)), files.roots.directory
    )


def _load_checksums(directory: str) -> dict[str, Any]:
    """Checksums of foreign files by their path in the manifest, from an earlier full verification."""
    path = os.path.join(directory, fmt.CHECKSUMS)
    if not os.path.exists(path):
        return {}
    head = load_json(path)
    expect_format(head, CHECKSUMS_FORMAT, [1])
    files = head.object("files")
    head.done()
    for name in files.value:
        entry = files.object(name)
        entry.natural("size", fmt.MAX_SIZE)
        entry.checksum("checksum")
        entry.done()
    return files.value


def _vocabularies(manifest: Manifest, files: Files, full: bool) -> Iterator[Problem]:
    for track in manifest.tracks.values():
        if track.vocabulary is None:
            continue
        path = files.roots.resolve(track.vocabulary.path)
        try:
            files.roots.check_real(path)
            size = os.stat(path).st_size
            if size != track.vocabulary.size:
                raise FormatError(f"found {size} bytes, expected {track.vocabulary.size}; restore the file")
            if full:
                load_vocabulary(files.roots, track.vocabulary)
        except (ConceptloaderError, OSError) as error:
            yield Problem(file=path, message=str(error))


def _parameters(manifest: Manifest, directory: str, codecs: Mapping[str, Codec] | None) -> Iterator[Problem]:
    for name, track in manifest.tracks.items():
        wrong = track.codec in BUILT_IN and parameter_problem(track.codec, track.parameters)
        if wrong:
            file = os.path.join(directory, fmt.MANIFEST)
            yield Problem(file=file, message=f"tracks: {name}: {wrong}")


class _Findings:
    """Problems of one shard: errors become values, and checking goes on with the next file."""

    def __init__(self, files: Files, shard: int, tokens: tuple[int, int]) -> None:
        self.problems: list[Problem] = []
        self._files = files
        self._shard = shard
        self._tokens = tokens

    def run(self, kind: str, check: Callable[[], None], path: str | None = None) -> bool:
        """Whether `check` passed."""
        try:
            check()
        except (ConceptloaderError, OSError) as error:
            file = path or self._files.path(kind, self._shard)
            self.problems.append(Problem(file=file, message=str(error), shard=self._shard, tokens=self._tokens))
            return False
        return True


def _check_shard(
    checks: ShardChecks,
    findings: _Findings,
    full: bool,
    codecs: Mapping[str, Codec] | None,
    known: Mapping[str, Any],
    fresh: dict[str, Any],
) -> None:
    """Sizes, and if `full` contents, of all files of a shard. `fresh` takes the checksums that nothing records yet."""
    manifest, files, shard, table = checks.manifest, checks.files, checks.shard, checks.manifest.shards

    def size(kind: str) -> None:
        if full:
            path = files.path(kind, shard)
            files.roots.check_real(path)
            files.expected(kind, shard).check(os.stat(path))
        else:
            os.close(files.open(kind, shard))

    def compare(kind: str, found: str) -> None:
        expected = table.files[kind].checksum[shard]
        if expected is None:
            name = files.name(kind, shard)
            entry = {"size": checks.size(kind), "checksum": found}
            expected = known.get(name, entry)["checksum"]
            if name not in known:
                fresh[name] = entry
        _equal(found, expected, "the content")

    def stream() -> None:
        whole, tokens = checks.stream()
        compare("stream.bin", whole)
        _equal(tokens, table.token_checksum[shard] or tokens, "the token column")

    kinds = [kind for kind, column in table.files.items() if column.size[shard] >= 0]
    sound = {kind for kind in kinds if findings.run(kind, partial(size, kind))}
    if not full:
        return
    if "stream.bin" in sound:
        findings.run("stream.bin", stream)
    foreign = table.foreign[shard] if table.foreign else None
    if foreign is not None and foreign.index is not None and foreign.index_checksum is not None:
        path, expected = files.roots.resolve(foreign.index), foreign.index_checksum
        findings.run("", lambda: _equal(file_checksum(path), expected, "the index that was adopted"), path)
    if "documents.bin" in sound:
        findings.run("documents.bin", lambda: compare("documents.bin", checks.documents()))
    if {"documents.ids", "documents.hash"} <= sound and findings.run(
        "documents.ids", lambda: compare("documents.ids", checks.ids())
    ):
        findings.run("documents.hash", lambda: compare("documents.hash", checks.hashes()))
    for track in manifest.tracks:
        spans, index, data = (f"{track}.{kind}" for kind in ("spans", "index", "data"))
        if spans in sound:
            findings.run(spans, partial(lambda kind, name: compare(kind, checks.spans(name)), spans, track))
        if {index, data} <= sound and findings.run(
            index, partial(lambda kind, name: compare(kind, checks.index(name)), index, track)
        ):
            codec = _codec(manifest.tracks[track], codecs)
            findings.run(data, partial(lambda kind, name, c: compare(kind, checks.data(name, c)), data, track, codec))


def _codec(track: Track, codecs: Mapping[str, Codec] | None) -> Codec | None:
    """The codec that checks a track's records; None for one that is not at hand, whose records are just bytes."""
    if track.codec in BUILT_IN:
        if parameter_problem(track.codec, track.parameters):
            return None  # a problem of its own
    elif track.codec not in (codecs or {}):
        return None
    return get_codec(track.codec, track.parameters, codecs, "track")


def _equal(found: str, expected: str, what: str) -> None:
    if found != expected:
        raise FormatError(f"{what}: found checksum {found}, expected {expected}; it was damaged or changed: restore it")


def file_checksum(path: str) -> str:
    """The xxh3-64 of a whole file. Raises: ReadError."""
    checksum = xxhash.xxh3_64()
    descriptor = open_file(path)
    try:
        while data := os.read(descriptor, 1 << 22):
            checksum.update(data)
    finally:
        os.close(descriptor)
    return checksum.hexdigest()
