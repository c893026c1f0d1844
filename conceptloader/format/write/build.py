"""A build: one directory, a plan of shards, any number of processes that write them, and `finalize`.

create -> build.json (first) -> shards, each by one process, in any order -> finalize -> manifest.json (last).
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from conceptloader.base.hashing import canonical_json, fingerprint
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import Codec, get_codec, register_lacking, registered
from conceptloader.format.spec.jsonfile import Checksum, Size, dump_json, load_json
from conceptloader.format.spec.manifest import Ladder
from conceptloader.format.spec.options import BuildOptions, SavedOptions
from conceptloader.format.spec.paths import Roots
from conceptloader.format.spec.vocabulary import Vocabulary, describe_vocabulary, load_vocabulary
from conceptloader.format.write.shard import ShardWriter
from conceptloader.storage.durable import TEMPORARY, make_directories, sync_directory, write_file

BUILD_FORMAT = "conceptstream-build"
SHARD_FORMAT = "conceptstream-shard"
_NAME = fmt.NAME.pattern
_OF_BUILD = re.compile(
    rf"[0-9]{{5,7}}\.{_NAME}\.(bin|ids|hash|index|data|spans|json)|{_NAME}\.(vocabulary\.json|details\.jsonl)"
    rf"|{TEMPORARY.pattern}|\.?{re.escape(fmt.TOKENIZER)}|{fmt.DERIVED.pattern}"
)


@dataclass(frozen=True, kw_only=True)
class _BuildFile:
    """build.json, apart from `format` and `version`."""

    options_hash: str
    options: SavedOptions
    inputs: tuple[Any, ...]
    plan: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class _FileFacts:
    size: Size
    checksum: Checksum
    sample: Checksum


@dataclass(frozen=True, kw_only=True)
class _TrackFacts:
    encoding: str
    records: Size
    entries: Size
    max_spans: Ladder
    max_items: Size | None


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """What the writer of a finished shard says of it (its .shard.json). files: by kind."""

    options_hash: str
    shard: int
    tokens: Size
    layout: tuple[tuple[str, str], ...]
    documents: Size
    token_checksum: Checksum
    files: Mapping[str, _FileFacts]
    tracks: Mapping[str, _TrackFacts]
    notes: Mapping[str, Any] = field(default_factory=dict)


class OtherBuild(ConfigError):
    """A directory holds a build of other inputs or options."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build directory with its options.

    plan: one JSON value per shard, free for the caller: which inputs go where. Picklable if its codecs are, which it
    takes along, so that worker processes can be handed one.
    """

    path: str
    options: BuildOptions
    inputs: Sequence[Any]
    plan: Sequence[Any]
    options_hash: str
    vocabularies: Mapping[str, Vocabulary]

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (registered(track.codec for track in self.options.tracks.values()), vars(self))

    @property
    def num_shards(self) -> int:
        return len(self.plan)

    def shard_name(self, shard: int) -> str:
        if not 0 <= shard < self.num_shards:
            raise ConfigError(
                self.path,
                f"shard {shard}",
                f"a number from 0 to {self.num_shards - 1}, as planned",
                f"pass shard={self.num_shards - 1} or lower",
            )
        return f"{shard:0{max(5, len(str(self.num_shards - 1)))}d}"

    def is_finished(self, shard: int) -> bool:
        """Whether the shard is complete. Raises: FormatError if it belongs to a build with other options."""
        return self.report(shard) is not None

    def report(self, shard: int) -> ShardReport | None:
        """What the writer of a finished shard said about it; None if it is not finished. Raises: see is_finished."""
        path = os.path.join(self.path, f"{self.shard_name(shard)}.shard.json")
        if not os.path.exists(path):
            return None
        report = load_json(path).parse(ShardReport, SHARD_FORMAT, fmt.VERSION)
        wanted = {"options_hash": self.options_hash, "shard": shard, "tracks": sorted(self.options.tracks)}
        found = {"options_hash": report.options_hash, "shard": report.shard, "tracks": sorted(report.tracks)}
        for key, expected in wanted.items():
            if found[key] != expected:
                raise fmt.bad(
                    f"{path}: {key}",
                    found[key],
                    f"{expected} as in {fmt.BUILD}",
                    "the shard was written by another build: remove its files, or build into another directory",
                )
        return report

    def shard(self, shard: int) -> ShardWriter:
        """A writer for a shard that is not finished. Raises: InputError if it is."""
        if self.is_finished(shard):
            raise InputError(
                self.path,
                f"shard {shard} finished",
                "an unfinished shard",
                "skip the shard by is_finished(), or pass another directory",
            )
        tracks = self.options.tracks.items()
        codecs = {name: get_codec(one.codec, one.parameters, f"track {name!r}") for name, one in tracks}
        identity = {"version": fmt.VERSION, "options_hash": self.options_hash, "shard": shard}
        return ShardWriter(self.path, self.shard_name(shard), self.options, codecs, identity)


def _remade(codecs: Mapping[str, Codec], fields: Mapping[str, Any]) -> Build:
    """A build in another process."""
    register_lacking(codecs)
    return Build(**fields)


def create_writer(
    path: str | os.PathLike[str],
    options: BuildOptions,
    *,
    inputs: Sequence[Any] = (),
    plan: Sequence[Any] = (None,),
) -> Build:
    """Begin a build in a new or empty directory, or take up the same build again.

    Args:
        path: A new or empty directory, or that of the same build.
        options: What decides the bytes of the build.
        inputs: JSON; enters the hash that distinguishes builds.
        plan: JSON; enters the hash, too. It has one element per shard and must not depend on the number of workers.

    Returns:
        The build, whose shards are to be written.

    Raises:
        OtherBuild: The directory holds another build.
        ConfigError: It holds a complete dataset or foreign files.
    """
    directory = os.path.abspath(path)
    if not plan or len(plan) > fmt.MAX_SHARDS:
        raise ConfigError(
            "plan",
            f"{len(plan)} shards",
            f"1 to {fmt.MAX_SHARDS}",
            f"pass a plan of 1 to {fmt.MAX_SHARDS} shards",
        )
    for name, track in options.tracks.items():
        get_codec(track.codec, track.parameters, f"track {name!r}")
    vocabularies, files = describe_vocabularies(options)
    content = {"options": options.to_json(vocabularies), "inputs": list(inputs), "plan": list(plan)}
    options_hash = fingerprint(content)
    make_directories(directory)
    if os.path.exists(os.path.join(directory, fmt.MANIFEST)):
        raise ConfigError(
            directory,
            "a complete dataset",
            "a new directory",
            "pass another directory (--out): nothing was changed",
        )
    target = os.path.join(directory, fmt.BUILD)
    # In this order: another task may begin the build just now, and build.json is its first file.
    if any(not name.startswith(".") for name in os.listdir(directory)) and not os.path.exists(target):
        raise ConfigError(
            directory, f"files but no {fmt.BUILD}", "an empty directory", "pass another directory (--out)"
        )
    text = dump_json({"format": BUILD_FORMAT, "version": fmt.VERSION, "options_hash": options_hash, **content})
    write_file(target, text, exclusive=True)
    found = load_json(target)
    if found.parse(_BuildFile, BUILD_FORMAT, fmt.VERSION).options_hash != options_hash:
        raise OtherBuild(
            f"{target}",
            f"found a build of {difference(found.value, content)}",
            fix="pass the same options, another directory (--out), or run `rm -r` on this one",
        )
    for name, data in files.items():
        file = os.path.join(directory, name)
        if not os.path.exists(file):
            write_file(file, data)
    return open_writer(directory)


def describe_vocabularies(options: BuildOptions) -> tuple[dict[str, Vocabulary], dict[str, bytes]]:
    """(the entries of a manifest by track, the files that they mean by name)."""
    entries, files = {}, {}
    for name, track in options.tracks.items():
        if track.vocabulary is not None:
            entries[name], some = describe_vocabulary(name, track.vocabulary, track.groups, track.details)
            files.update(some)
    return entries, files


def open_writer(path: str | os.PathLike[str]) -> Build:
    """A build that `create_writer` began, for instance in a worker process.

    Args:
        path: Directory of the build.

    Returns:
        The build.

    Raises:
        FormatError: The directory holds no build, or a corrupt one.
        ConfigError: A codec is missing.
    """
    directory = os.path.abspath(path)
    head = load_json(os.path.join(directory, fmt.BUILD))
    found = head.parse(_BuildFile, BUILD_FORMAT, fmt.VERSION)
    if fingerprint({key: head.value[key] for key in ("options", "inputs", "plan")}) != found.options_hash:
        rule = "the hash of the rest of the file"
        raise fmt.bad(f"{head.where}: options_hash", found.options_hash, rule, "do not edit this file; restore it")
    vocabularies = {name: one.vocabulary for name, one in found.options.tracks.items() if one.vocabulary is not None}
    names = {name: load_vocabulary(Roots(directory, None), entry) for name, entry in vocabularies.items()}
    with head.named():
        options = found.options.with_names(names)
    return Build(
        path=directory,
        options=options,
        inputs=head.value["inputs"],
        plan=head.value["plan"],
        options_hash=found.options_hash,
        vocabularies=vocabularies,
    )


def discard_unfinished(path: str, maker: str) -> bool:
    """Remove a build from files, of which no shard is finished.

    The caller holds the lock of the directory, as `maker`, a key of the options' `extra`, always does.

    build.json is the last to go, so that this can be done again after a crash. Returns: whether it was removed.
    """
    names = os.listdir(path)
    if any(name.endswith(".shard.json") for name in names):
        return False
    found = load_json(os.path.join(path, fmt.BUILD)).parse(_BuildFile, BUILD_FORMAT, fmt.VERSION)
    if not found.inputs or maker not in found.options.extra:
        return False  # of another program, or of tasks on many machines, which may wait in a queue
    for name in names:
        if _OF_BUILD.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
    sync_directory(path)
    os.unlink(os.path.join(path, fmt.BUILD))
    return True


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Where two builds differ, as far as a short message can say it."""
    for key in ("options", "inputs"):
        a, b = found.get(key), wanted[key]
        if canonical_json(a) == canonical_json(b):
            continue
        if key == "options":
            named = [f"{name}: found {x[:100]}, expected {y[:100]}" for name, x, y in _differing(a, b)]
            more = [f"and {len(named) - 5} more"] * (len(named) > 5)
            return f"other options ({'; '.join([*named[:5], *more])})"
        if key == "inputs" and isinstance(a, list):
            pair = next((p for p in zip_longest(a, b) if canonical_json(p[0]) != canonical_json(p[1])), ())
            shown = ["none" if one is None else canonical_json(one)[:300] for one in pair]
            return f"other inputs, expected the same: found {shown[0]}, expected {shown[1]}"
        return f"other {key}"
    return "another plan of its shards"


def _differing(found: Any, wanted: Any, name: str = "") -> list[tuple[str, str, str]]:
    """(name, JSON of both) of the single values that differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        pairs = [(found.get(key), wanted.get(key), f"{name}.{key}") for key in sorted({*found, *wanted})]
    elif isinstance(found, list) and isinstance(wanted, list):
        pairs = [(a, b, f"{name}[{i}]") for i, (a, b) in enumerate(zip_longest(found, wanted))]
    else:
        texts = canonical_json(found), canonical_json(wanted)
        return [] if texts[0] == texts[1] else [(name.removeprefix("."), *texts)]
    return [each for pair in pairs for each in _differing(*pair)]
