"""What a build is asked to do. Stored in build.json and hashed, so that a restart cannot mix two builds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.format.spec.vocabulary import Vocabulary, groups_problem

ENCODINGS = ("auto", fmt.DENSE, fmt.SPANS)


@dataclass(frozen=True, kw_only=True)
class TrackOptions:
    """How a track is stored.

    Attributes:
        codec: See docs/format.md.
        parameters: Of the codec.
        encoding: "dense", "spans" or "auto" (the smaller one, in each shard).
        vocabulary: Names of the concepts, index = concept id (codec concepts only).
        groups: (name, number of concepts) of parts of the vocabulary, in the order of their ids.
        details: What else is known of each concept, objects of JSON.
        levels: How many tracks it is stored as, see `level_names`; these are named as well.
    """

    codec: str = "concepts"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    encoding: str = "auto"
    vocabulary: Sequence[str] | None = None
    groups: Sequence[tuple[str, int]] = ()
    details: Sequence[Mapping[str, Any]] | None = None
    levels: int = 1

    def check(self, name: str) -> None:
        problem = fmt.name_problem(name)
        if problem:
            raise ConfigError("tracks", f"the name {name!r}", problem, "pass another NAME for the track (--track)")
        if self.encoding not in ENCODINGS:
            raise ConfigError(f"tracks: {name}: encoding", repr(self.encoding), f"one of {ENCODINGS}", "omit encoding")
        if self.vocabulary is not None:
            if self.codec != "concepts":
                raise ConfigError(
                    f"tracks: {name}: codec",
                    f"{self.codec} with a vocabulary",
                    "concepts",
                    'omit vocabulary, or pass codec="concepts"',
                )
            if len(set(self.vocabulary)) != len(self.vocabulary):
                twice = Counter(self.vocabulary).most_common(1)[0][0]
                raise ConfigError(
                    f"tracks: {name}: vocabulary",
                    f"the name {twice!r:.100} twice",
                    "each name once",
                    f"remove one {twice!r:.100}",
                )
            if self.parameters.get("ids") == "u2" and len(self.vocabulary) > 1 << 16:
                raise ConfigError(
                    f"tracks: {name}: ids", f"u2 for {len(self.vocabulary)} concepts", "u4 above 65536", "set ids: u4"
                )
        count = len(self.vocabulary or ())
        if problem := groups_problem(self.groups, count):
            raise ConfigError(
                f"tracks: {name}: groups", f"{list(self.groups)!r:.200}", problem, "pass such groups, or none"
            )
        if self.details is not None and len(self.details) != count:
            raise ConfigError(
                f"tracks: {name}: details",
                len(self.details),
                f"details for each of the {count} concepts of the vocabulary",
                f"pass {count} details",
            )


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Everything that decides the bytes of a build, besides its inputs.

    Attributes:
        mode: "stream-with-metadata", "token-stream" or "document".
        tokenizer: What the token ids mean, kept in the manifest.
        token_type: "u2" or "u4"; by default the smallest that holds the tokenizer's vocabulary, "u4" without a
            tokenizer.
        fields: token-aligned fields by name, e.g. {"loss_mask": "u1"}.
        tracks: How each track is stored, by name.
        block_tokens: Tokens of a block, each of which has an entry in the tables of spans and documents.
        extra: Options of the caller (how text was tokenized, ...); JSON, hashed with the rest, copied to the manifest.
    """

    mode: str = "stream-with-metadata"
    tokenizer: Tokenizer | None = None
    token_type: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    tracks: Mapping[str, TrackOptions] = field(default_factory=dict)
    block_tokens: int = fmt.BLOCK_TOKENS
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in fmt.MODES:
            raise ConfigError(
                "mode", repr(self.mode), f"one of {', '.join(fmt.MODES)}", "pass mode (--mode) as one of these"
            )
        if self.mode == "token-stream" and self.tracks:
            raise ConfigError("tracks", "tracks in mode token-stream", "no tracks", "pass --mode stream-with-metadata")
        if len(self.tracks) > fmt.MAX_TRACKS:
            raise ConfigError(
                "tracks",
                len(self.tracks),
                f"at most {fmt.MAX_TRACKS}",
                f"pass at most {fmt.MAX_TRACKS} tracks",
            )
        if self.token_type not in (None, *fmt.WRITTEN_TOKENS):
            raise ConfigError(
                "token_type",
                repr(self.token_type),
                "u2 or u4",
                'pass token_type="u2" (uint16) or "u4" (uint32), or omit it',
            )
        if self.tokenizer and self.tokenizer.vocab_size > 1 << 8 * np.dtype(self.written_type).itemsize:
            raise ConfigError(
                "token_type",
                repr(self.token_type),
                f"a type that holds the vocabulary of {self.tokenizer.vocab_size} tokens",
                'pass token_type="u4" (uint32), or omit it',
            )
        if not 1 <= self.block_tokens <= 1 << 20:
            raise ConfigError(
                "block_tokens", str(self.block_tokens), "an integer in [1, 2**20]", "pass block_tokens in this range"
            )
        for name, options in self.tracks.items():
            options.check(name)
        for name, code in self.fields.items():
            problem = fmt.name_problem(name)
            if problem or name in self.tracks or name in map(fmt.dense_field, self.tracks):
                rule = problem or "a name that no track uses"
                raise ConfigError(
                    "fields", f"the name {name!r}", rule, "pass another NAME in fields (--field NAME:TYPE)"
                )
            if code not in fmt.FIELD_TYPES:
                raise ConfigError(
                    f"fields: {name}",
                    f"type {code!r}",
                    f"one of {', '.join(fmt.FIELD_TYPES)}",
                    f"pass --field {name}:TYPE with one of these",
                )

    @property
    def written_type(self) -> str:
        if self.token_type is not None:
            return self.token_type
        return "u2" if self.tokenizer is not None and self.tokenizer.vocab_size <= 1 << 16 else "u4"

    @property
    def token_limit(self) -> int:
        """Token ids are below it."""
        return self.tokenizer.vocab_size if self.tokenizer else 1 << 8 * np.dtype(self.written_type).itemsize

    def to_json(self, vocabularies: Mapping[str, Vocabulary]) -> dict[str, Any]:
        """`vocabularies`: the file that stands for the vocabulary of a track."""
        tracks = {}
        for name, options in sorted(self.tracks.items()):
            tracks[name] = {
                "codec": options.codec,
                "parameters": dict(options.parameters),
                "encoding": options.encoding,
                "vocabulary": asdict(vocabularies[name]) if name in vocabularies else None,
                **({"levels": options.levels} if options.levels > 1 else {}),
            }
        return {
            "mode": self.mode,
            "tokenizer": asdict(self.tokenizer) if self.tokenizer else None,
            "token_type": self.written_type,
            "fields": dict(sorted(self.fields.items())),
            "tracks": tracks,
            "block_tokens": self.block_tokens,
            "extra": dict(self.extra),
        }


@dataclass(frozen=True, kw_only=True)
class SavedTrack:
    """A track in build.json. vocabulary: its file."""

    codec: str
    parameters: Mapping[str, Any]
    encoding: str
    vocabulary: Vocabulary | None = None
    levels: int = 1


@dataclass(frozen=True, kw_only=True)
class SavedOptions:
    """What `BuildOptions.to_json` made."""

    mode: str
    tokenizer: Tokenizer | None = None
    token_type: str
    fields: Mapping[str, str]
    tracks: Mapping[str, SavedTrack]
    block_tokens: int
    extra: Mapping[str, Any]

    def with_names(self, names: Mapping[str, Sequence[str]]) -> BuildOptions:
        """names: of the concepts of each track that has a vocabulary."""
        tracks = {
            name: TrackOptions(
                codec=one.codec,
                parameters=one.parameters,
                encoding=one.encoding,
                vocabulary=names.get(name),
                levels=one.levels,
            )
            for name, one in self.tracks.items()
        }
        return BuildOptions(**{**vars(self), "tracks": tracks})
