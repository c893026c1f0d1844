"""Counting the spans in windows that cross borders, from the files near each border."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from conceptloader.format.read.files import Files
from conceptloader.format.read.reader import ShardReader
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.spec.paths import Roots
from conceptloader.format.write.ladder import REACH, BorderLadder


def with_border_windows(manifest: Manifest, roots: Roots, groups: Sequence[range] | None = None) -> Manifest:
    """The manifest with each track's max_spans raised to what windows across borders touch.

    groups: runs of shards whose inner borders are counted already (by default each shard is one). Reads the files of
    the tracks within 2**20 tokens of each border between groups.
    """
    files = Files(manifest, roots)
    reader = ShardReader(manifest, files)
    parts = [range(shard, shard + 1) for shard in range(len(manifest.shards))] if groups is None else groups
    tracks = {}
    try:
        for name, track in manifest.tracks.items():
            borders = BorderLadder()
            for group in parts:
                lengths = manifest.shards.tokens[group.start : group.stop].tolist()
                total = sum(lengths)
                head = _runs(reader, name, group, lengths, 0, min(total, REACH))
                tail = head if total <= REACH else _runs(reader, name, group, lengths, total - REACH, total)
                borders.add_shard(total, head, tail[1])
            borders.ladder.merge(track.max_spans)
            tracks[name] = replace(track, max_spans=tuple(borders.ladder.counts))
    finally:
        files.close()
    return replace(manifest, tracks=tracks)


def _runs(
    reader: ShardReader, track: str, shards: range, lengths: Sequence[int], start: int, stop: int
) -> tuple[Ints, Ints]:
    """(starts, ends) of the runs in tokens [start, stop) of the shards one after the other."""
    parts, base = [], 0
    for shard, length in zip(shards, lengths, strict=True):
        a, b = max(start - base, 0), min(stop - base, length)
        if a < b:
            parts.append((shard, a, b, base))
        base += length
    return runs_of(reader, track, parts)


def runs_of(reader: ShardReader, track: str, parts: Iterable[tuple[int, int, int, int]]) -> tuple[Ints, Ints]:
    """(starts, ends) of the runs in parts of shards: (shard, first token, end, what to add to the tokens)."""
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for shard, a, b, base in parts:
        first, end, *_ = reader.runs(shard, track, a, b)
        starts.append(first + base)
        ends.append(end + base)
    return np.concatenate(starts), np.concatenate(ends)
