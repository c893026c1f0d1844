"""The manifest: what a dataset consists of. Parsing checks everything that can be checked without opening a shard."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, chain
from typing import Annotated, Any

from conceptloader.base.hashing import fingerprint
from conceptloader.base.lazy import lazy
from conceptloader.base.strict import Reads, Rule, build, convert, within
from conceptloader.base.version import __version__
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints, total
from conceptloader.format.spec.jsonfile import JsonFile, describe, dump_json
from conceptloader.format.spec.layout import StreamLayout
from conceptloader.format.spec.shardtable import ShardTable, check_shards
from conceptloader.format.spec.vocabulary import Vocabulary, groups_problem

_FINGERPRINTS = 1  # the version of how they are computed, whatever that of the files is
CREATED_BY = f"conceptloader {__version__}"
LADDER_STEPS = 21  # windows of 2**0 to 2**20 tokens


def _is_ladder(counts: Any) -> bool:
    return len(counts) == LADDER_STEPS and counts[0] >= 0 and sorted(counts) == list(counts) and counts[-1] <= 1 << 20


Ladder = Annotated[tuple[int, ...], Rule(_is_ladder, f"of {LADDER_STEPS} integers in [0, 2**20] that do not decrease")]
"""See Track.max_spans."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """What the token ids mean.

    Attributes:
        name: Of the tokenizer, for people.
        vocab_size: Ids are below it.
        eos_id: The id appended to documents, if any.
    """

    name: str
    vocab_size: int
    eos_id: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.vocab_size, int) or not 1 <= self.vocab_size <= 2**32:
            raise ConfigError("tokenizer", f"vocab_size {self.vocab_size!r}", "an integer in [1, 2**32]")
        if self.eos_id is not None and not 0 <= self.eos_id < self.vocab_size:
            raise ConfigError(
                "tokenizer", f"eos_id {self.eos_id!r}", f"an id below the vocab_size of {self.vocab_size}"
            )


def most_items(parts: Iterable[tuple[int | None, int]]) -> int | None:
    """`Track.max_items` of parts of a track, given (their own, number of their records)."""
    given = list(parts)
    if all(most is None for most, _ in given):
        return None
    return max(min(records, 1) if most is None else most for most, records in given)


@dataclass(frozen=True, kw_only=True)
class Track:
    """One named kind of metadata.

    max_spans[k]: the largest number of spans which any window of 2**k tokens of the dataset touches, k = 0..20;
    max_items: the largest number of concepts in a record; or of numbers, and None where each record has one. None for
    other codecs. levels: how many tracks it is stored as, see `level_names`.
    """

    codec: str
    parameters: Mapping[str, Any]
    vocabulary: Vocabulary | None = None
    max_spans: Ladder
    max_items: Annotated[int, within(0, fmt.MAX_RECORD_BYTES)] | None = None
    levels: Annotated[int, within(1, fmt.MAX_TRACKS)] = 1

    @property
    def kind(self) -> tuple[object, ...]:
        """What the records of all levels of a track have in common."""
        names = self.vocabulary
        return self.codec, dict(self.parameters), names and (names.count, names.checksum)

    @property
    def num_ids(self) -> int:
        """Concept ids are below this: the size of the vocabulary, or 2**32 without one."""
        return self.vocabulary.count if self.vocabulary else 1 << 32

    def spans_in(self, tokens: int) -> int:
        """A bound on the number of spans that a window of `tokens` tokens touches; exact for 2**k up to 2**20.

        Other lengths: the smaller of the next power of two and the sum over the binary digits, both of which are
        bounds since a window is covered by windows of those lengths.
        """
        top = LADDER_STEPS - 1
        whole, rest = divmod(tokens, 1 << top)
        digits = sum(self.max_spans[k] for k in range(top) if rest >> k & 1)
        above = self.max_spans[(rest - 1).bit_length()] if rest else 0
        return whole * self.max_spans[top] + min(digits, above)

    def to_json(self) -> dict[str, Any]:
        value = asdict(replace(self, parameters=dict(self.parameters)))
        return value if self.levels > 1 else {key: one for key, one in value.items() if key != "levels"}


def level_names(track: str, levels: int) -> tuple[str, ...]:
    """The tracks that spans which overlap are stored as, from the outermost ones on: one track to users."""
    return track, *(f"{track}_level{level}" for level in range(2, levels + 1))


def _layout(value: Any, where: str) -> StreamLayout:
    return StreamLayout(convert(value, tuple[tuple[str, str], ...], where))


def _table(value: Any, where: str) -> ShardTable:
    return value if isinstance(value, ShardTable) else build(ShardTable, value, where)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json apart from the totals. `extra` is free for whoever built the dataset; readers carry it along."""

    mode: str
    created_by: str
    tokenizer: Tokenizer | None = None
    block_tokens: Annotated[int, within(1, 1 << 20)]
    layouts: tuple[Annotated[StreamLayout, Reads(_layout, "a list of [name, type] pairs")], ...]
    tracks: Mapping[str, Track]
    shards: Annotated[ShardTable, Reads(_table, "a mapping")]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    @lazy
    def num_tokens(self) -> int:
        return total(self.shards.tokens)

    @property
    def num_ids(self) -> int:
        """Token ids are below this: the size of the vocabulary, or 2**32 where no tokenizer is known."""
        return self.tokenizer.vocab_size if self.tokenizer else 1 << 32

    @lazy
    def num_documents(self) -> int:
        return total(self.shards.documents)

    @lazy
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Each track -> itself and its further levels, which are no tracks of their own."""
        found = {name: level_names(name, track.levels) for name, track in self.tracks.items()}
        further = {name for names in found.values() for name in names[1:]}
        return {name: names for name, names in found.items() if name not in further}

    def starts(self) -> Ints:
        """int64 [shards + 1]: the first token of each shard in the dataset, and the number of tokens."""
        return self.shards.starts

    def stream_fingerprint(self) -> str:
        """Covers what decides the tokens and their order; equal for dense and spans, and however tracks change."""
        return self.fingerprints[0]

    def tracks_fingerprint(self) -> str:
        """Covers the rest: document boundaries, ids, extra fields, tracks. A change of it is worth a warning."""
        return self.fingerprints[1]

    @lazy
    def fingerprints(self) -> tuple[str, str]:
        """Both, once for all who ask."""
        return self._stream_fingerprint(), self._tracks_fingerprint()

    def _stream_fingerprint(self) -> str:
        table = self.shards
        column, offsets = table.files["stream.bin"], table.offset.tolist()
        streams = []
        for shard, (layout, tokens) in enumerate(zip(table.layout.tolist(), table.tokens.tolist(), strict=True)):
            content: Any = table.token_checksum[shard]
            if content is None:
                source = table.foreign[shard]  # a sample may miss a change; the time tells that there was one
                known = [source.index_checksum, source.mtime_ns] if source else [None, 0]
                content = [int(column.size[shard]), offsets[shard], *known, column.sample[shard]]
            streams.append([self.layouts[layout].token_type, tokens, content])
        borders = None
        if self.mode == "document":  # there the document table decides what a sample is
            borders = [table.documents.tolist(), [*table.files["documents.bin"].checksum]]
        return fingerprint([fmt.FORMAT, _FINGERPRINTS, self.mode == "document", streams, borders])

    def _tracks_fingerprint(self) -> str:
        files = {kind: [column.size.tolist(), [*column.checksum]] for kind, column in self.shards.files.items()}
        files = {kind: one for kind, one in files.items() if max(one[0]) >= 0}
        tracks: dict[str, Any] = {}
        for name, track in self.tracks.items():
            entry = track.vocabulary
            concepts = entry and [
                entry.checksum, [list(group) for group in entry.groups], entry.details and entry.details.checksum
            ]  # fmt: skip
            tracks[name] = [track.codec, dict(track.parameters), concepts]
        return fingerprint([fmt.FORMAT, _FINGERPRINTS, tracks, files])

    @lazy
    def identity(self) -> str:
        """The checksum of manifest.json, that which was read or will be written: 16 hexadecimal digits."""
        return self.dump()[-20:-4].decode("ascii")

    def dump(self) -> bytes:
        """The bytes of manifest.json."""
        value = {
            "format": fmt.FORMAT,
            "version": fmt.VERSION,
            "mode": self.mode,
            "created_by": self.created_by,
            "tokenizer": asdict(self.tokenizer) if self.tokenizer else None,
            "num_shards": self.num_shards,
            "num_tokens": self.num_tokens,
            "num_documents": self.num_documents,
            "block_tokens": self.block_tokens,
            "layouts": [[list(pair) for pair in layout.fields] for layout in self.layouts],
            "tracks": {name: self.tracks[name].to_json() for name in sorted(self.tracks)},
            "extra": dict(self.extra),
            "shards": self.shards.to_json(),
        }
        return dump_json(value)


_TOTALS = ("num_shards", "num_tokens", "num_documents")


def parse_manifest(head: JsonFile, table: ShardTable | None = None) -> Manifest:
    """Check a manifest.json and turn it into a Manifest.

    table: its shards, if `tables_of` has checked them.

    Raises: FormatError naming file and key, what was found, what was expected and what to do.
    """
    value = {key: one for key, one in head.value.items() if key not in _TOTALS}
    if table is not None:
        value["shards"] = table
    manifest = JsonFile(value, head.where, head.checksum).parse(Manifest, fmt.FORMAT, fmt.VERSION)
    with head.named():
        _check(manifest, table is not None)
        for key in _TOTALS:
            found, total = head.value.get(key), getattr(manifest, key)
            if type(found) is not int or found != total:
                raise ConfigError(key, describe(found), f"{total}, as in the shard table")
    vars(manifest)["identity"] = head.checksum
    return manifest


def tables_of(heads: Sequence[JsonFile]) -> list[ShardTable | None]:
    """The shards of manifests, of those that are right and have few: one check of many takes as long as one of one.

    None for the others: they are to be checked one by one, for an error that names the file.
    """
    alike: dict[Any, list[int]] = {}
    found: list[ShardTable | None] = [None] * len(heads)
    for k, head in enumerate(heads):
        with contextlib.suppress(TypeError, LookupError, AttributeError):
            alike.setdefault(_form(**{key: head.value[key] for key in _FORM}), []).append(k)
    for some in alike.values():
        first, *others = [heads[k].value for k in some]
        counts = [len(one["shards"]["path"]) for one in (first, *others)]
        with contextlib.suppress(ConfigError, FormatError, LookupError, AttributeError, TypeError, ValueError):
            manifest = parse_manifest(heads[some[0]])
            together = _joined([first["shards"], *(one["shards"] for one in others)], counts)
            table = build(ShardTable, together, "shards")
            _check_table(table, manifest)
            for k, count, stop in zip(some, counts, accumulate(counts), strict=True):
                found[k] = table.cut(stop - count, stop)
    return found


_FORM = ("mode", "block_tokens", "layouts", "tracks", "shards")
_FEW = 64  # shards, of which a check takes as long as one of a single one


def _form(mode: str, block_tokens: int, layouts: Any, tracks: Any, shards: Any) -> Any:
    """What the manifests that are checked together have in common. Raises: LookupError for those with many shards."""
    if len(shards["path"]) > _FEW:
        raise LookupError
    files = shards["files"]
    return mode, repr((block_tokens, layouts)), (*tracks,), (*shards,), (*files,), (*map(len, files.values()),)


def _joined(values: list[Any], counts: list[int]) -> Any:
    """JSON of one table of all the shards. Raises: ValueError, AttributeError if they are not of one form."""
    if type(values[0]) is dict:
        if any(one.keys() != values[0].keys() for one in values):
            raise ValueError
        return {key: _joined([one[key] for one in values], counts) for key in values[0]}
    if [*map(len, values)] != counts or {*map(type, values)} != {list}:
        raise ValueError
    return [*chain.from_iterable(values)]


def _check(manifest: Manifest, checked: bool) -> None:
    """checked: its shards are."""
    mode, tracks = manifest.mode, manifest.tracks
    if mode not in fmt.MODES:
        raise ConfigError("mode", describe(mode), f"one of {', '.join(fmt.MODES)}")
    if len(tracks) > fmt.MAX_TRACKS:
        raise ConfigError("tracks", f"{len(tracks)} tracks", f"at most {fmt.MAX_TRACKS}")
    if mode == "token-stream" and tracks:
        raise ConfigError("tracks", f"{len(tracks)} tracks", "no tracks in mode token-stream")
    for name, track in tracks.items():
        if problem := fmt.name_problem(name):
            raise ConfigError("tracks", describe(name), problem)
        for level in level_names(name, track.levels)[1:]:
            if level not in tracks or tracks[level].kind != track.kind or tracks[level].levels > 1:
                raise ConfigError(f"tracks.{name}.levels", str(track.levels), f"a track {level} that is like {name}")
        entry = track.vocabulary
        if entry and (problem := groups_problem(entry.groups, entry.count)):
            raise ConfigError(f"tracks.{name}.vocabulary.groups", describe(list(entry.groups)), problem)
    _check_layouts(manifest.layouts, list(tracks))
    shards = manifest.shards
    if not 1 <= len(shards) <= fmt.MAX_SHARDS:
        raise ConfigError("shards.path", f"{len(shards)} shards", f"1 to {fmt.MAX_SHARDS}")
    tokens = manifest.num_tokens
    if not 0 < tokens <= fmt.MAX_SIZE:
        raise ConfigError("shards.tokens", f"{tokens} tokens in all", f"1 to {fmt.MAX_SIZE}")
    if not checked:
        _check_table(shards, manifest)


def _check_table(shards: ShardTable, manifest: Manifest) -> None:
    check_shards(shards, manifest.layouts, sorted(manifest.tracks), manifest.block_tokens)
    if manifest.mode == "document" and (bare := shards.files["documents.bin"].size < 0).any():
        where = f"shards.files.documents.bin[{int(bare.argmax())}]"
        raise ConfigError(where, "no file", "documents.bin in each shard in mode document")


def _check_layouts(layouts: Sequence[StreamLayout], tracks: Sequence[str]) -> None:
    if not layouts:
        raise ConfigError("layouts", "no layout", "at least one layout")
    for i, layout in enumerate(layouts):
        names = [name for name, _ in layout.fields]
        if names[:1] != ["token"] or len(set(names)) != len(names):
            raise ConfigError(f"layouts[{i}]", f"fields {', '.join(names)}", 'distinct names, "token" first')
        for name, code in layout.fields:
            allowed = fmt.READABLE_TOKENS if name == "token" else fmt.FIELD_TYPES
            if code not in allowed:
                rule = f"one of the types {', '.join(allowed)}"
                raise ConfigError(f"layouts[{i}].{name}", describe(code), rule)
            problem = None if name == "token" else fmt.name_problem(name)
            if problem:
                raise ConfigError(f"layouts[{i}]", describe(name), problem)
        fields, expected = layout.extra_fields(tracks), layouts[0].extra_fields(tracks)
        if fields != expected:
            raise ConfigError(f"layouts[{i}]", fields, f"the fields of the first layout, {expected}")
