"""The manifest: what a dataset consists of. Parsing checks everything that can be checked without opening a shard."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import xxhash

from conceptloader.base.hashing import fingerprint
from conceptloader.base.lazy import lazy
from conceptloader.base.version import __version__
from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.codecs import ConceptsCodec, parameter_problem
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.format.spec.jsonfile import JsonObject, describe, dump_json, expect_format
from conceptloader.format.spec.layout import DAMAGED, StreamLayout, bad
from conceptloader.format.spec.shardtable import ShardTable, parse_shards
from conceptloader.format.spec.vocabulary import Vocabulary, parse_vocabulary

_FINGERPRINTS = 1  # the version of how they are computed, whatever that of the files is
PREFIX_TRACK = "prefix"  # of what a build put in front of documents
LADDER_STEPS = 21  # windows of 2**0 to 2**20 tokens


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """What the token ids mean. `vocab_size`: ids are below it; `eos_id`: the id appended to documents, if any."""

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


@dataclass(frozen=True, kw_only=True)
class Track:
    """One named kind of metadata.

    max_spans[k]: the largest number of spans which any window of 2**k tokens of the dataset touches, k = 0..20;
    max_items: the largest number of concepts in a record (codec concepts; None for others).
    """

    codec: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    max_spans: tuple[int, ...]
    max_items: int | None = None

    @property
    def num_ids(self) -> int:
        """Concept ids are below this: the size of the vocabulary, or 2**32 without one."""
        return self.vocabulary.count if self.vocabulary else 1 << 32

    @property
    def concepts(self) -> ConceptsCodec:
        """The codec of a track of concepts. Raises: ConfigError for its parameters."""
        problem = parameter_problem(self.codec, self.parameters)
        if problem:
            raise ConfigError("", problem)
        return ConceptsCodec(self.parameters, self.num_ids)

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
        vocabulary = self.vocabulary.to_json() if self.vocabulary else None
        plain = asdict(replace(self, parameters=dict(self.parameters)))
        return {**plain, "vocabulary": vocabulary}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The parsed manifest.json. `extra` is free for whoever built the dataset; readers carry it along."""

    mode: str
    created_by: str = field(default_factory=lambda: f"conceptloader {__version__}")
    tokenizer: Tokenizer | None
    block_tokens: int
    layouts: tuple[StreamLayout, ...]
    tracks: Mapping[str, Track]
    shards: ShardTable
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(self.shards.tokens.tolist())

    @property
    def num_ids(self) -> int:
        """Token ids are below this: the size of the vocabulary, or 2**32 where no tokenizer is known."""
        return self.tokenizer.vocab_size if self.tokenizer else 1 << 32

    @property
    def num_documents(self) -> int:
        return sum(self.shards.documents.tolist())

    @property
    def prefix_tracks(self) -> set[str]:
        """The track of the prefixes that a build put in front of documents, if it did."""
        return {PREFIX_TRACK} if "prefix" in self.extra.get("ingest", {}) else set()

    def starts(self) -> Ints:
        """int64 [shards + 1]: the first token of each shard in the dataset, and the number of tokens."""
        return offsets_of(self.shards.tokens)

    def stream_fingerprint(self) -> str:
        """Covers what decides the tokens and their order; equal for dense and spans, and however tracks change."""
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
            borders = [table.documents.tolist(), table.files["documents.bin"].checksum]
        return fingerprint([fmt.FORMAT, _FINGERPRINTS, self.mode == "document", streams, borders])

    def tracks_fingerprint(self) -> str:
        """Covers the rest: document borders, ids, extra fields, tracks. A change of it is worth a warning."""
        present = {kind: column for kind, column in self.shards.files.items() if (column.size >= 0).any()}
        files = {kind: [column.size.tolist(), column.checksum] for kind, column in present.items()}
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
        """Of what the manifest says: 16 hexadecimal digits."""
        return xxhash.xxh3_64_hexdigest(self.dump())

    def dump(self) -> bytes:
        return dump_json(
            {
                "format": fmt.FORMAT,
                "version": fmt.VERSION,
                "mode": self.mode,
                "created_by": self.created_by,
                "tokenizer": asdict(self.tokenizer) if self.tokenizer else None,
                "num_shards": len(self.shards),
                "num_tokens": self.num_tokens,
                "num_documents": self.num_documents,
                "block_tokens": self.block_tokens,
                "layouts": [[list(pair) for pair in layout.fields] for layout in self.layouts],
                "tracks": {name: self.tracks[name].to_json() for name in sorted(self.tracks)},
                "extra": dict(self.extra),
                "shards": self.shards.to_json(),
            }
        )


def parse_manifest(head: JsonObject) -> Manifest:
    """Check a parsed manifest.json and turn it into a Manifest.

    Raises: FormatError naming file and key, what was found, what was expected and what to do.
    """
    expect_format(head, fmt.FORMAT, fmt.VERSION)
    mode = head.take("mode", str)
    if mode not in fmt.MODES:
        raise bad(head.at("mode"), describe(mode), f"one of {', '.join(fmt.MODES)}", DAMAGED)
    block_tokens = head.natural("block_tokens", 1 << 20, least=1)
    count = head.natural("num_shards", fmt.MAX_SHARDS, least=1)
    tracks = _parse_tracks(head.object("tracks"))
    if mode == "token-stream" and tracks:
        raise bad(head.at("tracks"), f"{len(tracks)} tracks", "none in mode token-stream", DAMAGED)
    layouts = _parse_layouts(head, list(tracks))
    shards = parse_shards(head.object("shards"), count, layouts, sorted(tracks), block_tokens)
    if mode == "document" and (shards.files["documents.bin"].size < 0).any():
        raise bad(head.at("shards"), "a shard without documents.bin", "one in each shard in mode document", DAMAGED)
    manifest = Manifest(
        mode=mode,
        created_by=head.take("created_by", str),
        tokenizer=head.optional("tokenizer", parse_tokenizer),
        block_tokens=block_tokens,
        layouts=layouts,
        tracks=tracks,
        shards=shards,
        extra=head.take("extra", dict, {}),
    )
    for key, total in (("num_tokens", manifest.num_tokens), ("num_documents", manifest.num_documents)):
        if head.natural(key, fmt.MAX_SIZE) != total:
            raise bad(head.at(key), head.value[key], f"{total}, the sum over the shards", DAMAGED)
    head.done()
    return manifest


def parse_tokenizer(entry: JsonObject) -> Tokenizer:
    size = entry.natural("vocab_size", 1 << 32, least=1)
    eos = entry.natural("eos_id", size - 1, default=None)
    return Tokenizer(name=entry.take("name", str), vocab_size=size, eos_id=eos)


def parse_ladder(entry: JsonObject, key: str) -> tuple[int, ...]:
    """See Track.max_spans."""
    ladder: list[Any] = entry.take(key, list)
    good = len(ladder) == LADDER_STEPS and all(type(n) is int and 0 <= n <= 1 << 20 for n in ladder)
    if not good or ladder != sorted(ladder):
        expected = f"{LADDER_STEPS} integers in [0, 2**20] that do not decrease"
        raise bad(entry.at(key), describe(ladder), expected, DAMAGED)
    return tuple(ladder)


def _parse_layouts(head: JsonObject, tracks: Sequence[str]) -> tuple[StreamLayout, ...]:
    result = []
    for i, fields in enumerate(head.take("layouts", list)):
        where = head.at(f"layouts[{i}]")
        pairs = fields if isinstance(fields, list) else []
        if not pairs or not all(isinstance(pair, list) and list(map(type, pair)) == [str, str] for pair in pairs):
            raise bad(where, describe(fields), "a list of [name, type] pairs", DAMAGED)
        names = [name for name, _ in pairs]
        if names[0] != "token" or len(set(names)) != len(names):
            raise bad(where, f"fields {', '.join(names)}", 'distinct names, "token" first', DAMAGED)
        for name, code in pairs:
            allowed = fmt.READABLE_TOKENS if name == "token" else fmt.FIELD_TYPES
            if code not in allowed:
                raise bad(f"{where}: {name}", describe(code), f"one of the types {', '.join(allowed)}", DAMAGED)
            problem = None if name == "token" else fmt.name_problem(name)
            if problem:
                raise bad(where, describe(name), problem, DAMAGED)
        result.append(StreamLayout(tuple((name, code) for name, code in pairs)))
    if not result:
        raise bad(head.at("layouts"), "none", "at least one", DAMAGED)
    for i, layout in enumerate(result):
        found, expected = layout.extra_fields(tracks), result[0].extra_fields(tracks)
        if found != expected:
            raise bad(head.at(f"layouts[{i}]"), found, f"the fields of the first layout, {expected}", DAMAGED)
    return tuple(result)


def _parse_tracks(head: JsonObject) -> dict[str, Track]:
    names = list(head.value)
    if len(names) > fmt.MAX_TRACKS:
        raise bad(head.where, f"{len(names)} tracks", f"at most {fmt.MAX_TRACKS}", DAMAGED)
    tracks = {}
    for name in names:
        problem = fmt.name_problem(name)
        if problem:
            raise bad(head.where, describe(name), problem, DAMAGED)
        entry = head.object(name)
        tracks[name] = Track(
            codec=entry.take("codec", str),
            parameters=entry.take("parameters", dict),
            vocabulary=entry.optional("vocabulary", parse_vocabulary),
            max_spans=parse_ladder(entry, "max_spans"),
            max_items=entry.natural("max_items", fmt.MAX_RECORD_BYTES, default=None),
        )
        entry.done()
    return tracks
