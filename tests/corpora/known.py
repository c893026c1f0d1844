"""Small random datasets together with what they contain, token by token, as plain lists."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import conceptloader as cl
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.manifest import Manifest, Track
from conceptloader.format.spec.shardtable import FileColumn, ShardTable, TrackColumn

EOS = 7


@dataclass
class Truth:
    """Per token of the dataset; `shard_ends`: tokens before the end of each shard."""

    tokens: list[int] = field(default_factory=list)
    document: list[int] = field(default_factory=list)
    loss: list[int] = field(default_factory=list)
    spans: dict[str, list[tuple[int, tuple[int, ...]] | None]] = field(default_factory=dict)  # (identity, concepts)
    starts: list[int] = field(default_factory=list)  # first token of every document, empty ones too
    shard_starts: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """shards: documents in each. encodings: by track."""

    shards: Sequence[int] = (5, 4)
    token_type: str = "u2"
    encodings: dict[str, str] = field(default_factory=lambda: {"concepts": "spans"})
    longest: int = 60
    longest_span: int = 12
    most_concepts: int = 4
    loss_field: bool = False
    mode: str = "stream-with-metadata"
    block_tokens: int = 16


def build(path: Path, recipe: Recipe, rng: np.random.Generator) -> Truth:
    """Write a dataset and return what it contains."""
    truth = Truth(spans={track: [] for track in recipe.encodings})
    options = cl.writing.BuildOptions(
        mode=recipe.mode,
        tokenizer=cl.writing.Tokenizer(name="random", vocab_size=1000, eos_id=EOS),
        token_type=recipe.token_type,
        fields={"loss_mask": "u1"} if recipe.loss_field else {},
        tracks={track: cl.writing.TrackOptions(encoding=encoding) for track, encoding in recipe.encodings.items()},
        block_tokens=recipe.block_tokens,
    )
    builder = cl.writing.create_writer(path, options, plan=list(range(len(recipe.shards))))
    record = 0
    for shard, documents in enumerate(recipe.shards):
        truth.shard_starts.append(len(truth.tokens))
        with builder.shard(shard) as writer:
            for number in range(documents):
                size = int(rng.integers(0, recipe.longest)) if rng.random() < 0.8 else 0
                size = max(size, 3) if shard == 0 and number == 0 else size
                tokens = rng.integers(0, 1000, size)
                loss = rng.integers(0, 2, size)
                spans: dict[str, list[Any]] = {}
                truth.starts.append(len(truth.tokens))
                for track in recipe.encodings:
                    spans[track], per_token = [], [None] * size
                    at = 0
                    while at < size:
                        end = min(size, at + int(rng.integers(1, recipe.longest_span)))
                        if rng.random() < 0.7:
                            concepts = rng.integers(0, 1 << 32, int(rng.integers(0, recipe.most_concepts + 1)))
                            spans[track].append((at, end, concepts))
                            record += 1
                            per_token[at:end] = [(record, tuple(concepts.tolist()))] * (end - at)
                        at = end
                    truth.spans[track] += per_token
                truth.tokens += tokens.tolist()
                truth.document += [len(truth.starts) - 1] * size
                truth.loss += loss.tolist() if recipe.loss_field else [1] * size
                writer.add_document(tokens, spans=spans, fields={"loss_mask": loss} if recipe.loss_field else {})
    cl.writing.finalize(path)
    return truth


def join(path: Path, parts: Sequence[Path], truths: Sequence[Truth]) -> Truth:
    """A dataset of the shards of other datasets beside it, which may differ in everything."""
    manifests = [cl.open_dataset(part).manifest for part in parts]
    layouts = list(dict.fromkeys(layout for manifest in manifests for layout in manifest.layouts))
    tracks = sorted({track for manifest in manifests for track in manifest.tracks})
    tables = [manifest.shards for manifest in manifests]

    def ints(name: str) -> Ints:
        return np.concatenate([getattr(table, name) for table in tables])

    def files(kind: str) -> FileColumn:
        found = [t.files.get(kind, FileColumn.absent(len(t))) for t in tables]
        checksums, samples = ([one for f in found for one in getattr(f, name)] for name in ("checksum", "sample"))
        return FileColumn(np.concatenate([f.size for f in found]), checksums, samples)

    def column(track: str) -> TrackColumn:
        found = [
            t.tracks.get(track, TrackColumn([None] * len(t), np.zeros(len(t), int), np.zeros(len(t), int)))
            for t in tables
        ]
        return TrackColumn(
            encoding=[e for c in found for e in c.encoding],
            records=np.concatenate([c.records for c in found]),
            entries=np.concatenate([c.entries for c in found]),
        )

    kinds = {kind for table in tables for kind in table.files}
    table = ShardTable(
        path=[f"../{part.name}/{name}" for part, t in zip(parts, tables, strict=True) for name in t.path],
        tokens=ints("tokens"),
        layout=np.array([layouts.index(m.layouts[i]) for m in manifests for i in m.shards.layout.tolist()]),
        offset=ints("offset"),
        documents=ints("documents"),
        token_checksum=[c for t in tables for c in t.token_checksum],
        files={kind: files(kind) for kind in sorted(kinds)},
        tracks={track: column(track) for track in tracks},
    )
    merged = {track: _track(manifests, track) for track in tracks}
    joined = replace(manifests[0], layouts=tuple(layouts), shards=table, tracks=merged)
    path.mkdir()
    (path / "manifest.json").write_bytes(joined.dump())
    whole = Truth(spans={track: [] for track in tracks})
    for truth in truths:
        shift, documents = len(whole.tokens), len(whole.starts)
        whole.tokens += truth.tokens
        whole.document += [d + documents for d in truth.document]
        whole.loss += truth.loss
        whole.starts += [s + shift for s in truth.starts]
        whole.shard_starts += [s + shift for s in truth.shard_starts]
        for track, found in whole.spans.items():
            found += truth.spans.get(track, [None] * len(truth.tokens))
    # Identities of spans are unique in one part only.
    edges = np.cumsum([0, *(len(truth.tokens) for truth in truths)])
    for found in whole.spans.values():
        for part, (a, b) in enumerate(pairwise(edges)):
            found[a:b] = [s and ((part << 40) + s[0], s[1]) for s in found[a:b]]
    return whole


def _track(manifests: Sequence[Manifest], name: str) -> Track:
    having = [manifest.tracks[name] for manifest in manifests if name in manifest.tracks]
    ladder = np.sum([track.max_spans for track in having], axis=0) + 1
    return Track(
        codec="concepts",
        parameters={},
        max_spans=tuple(ladder.tolist()),
        max_items=max(track.max_items or 0 for track in having),
    )
