"""What a manifest says of a track as a whole, counted again: the spans that windows touch, the concepts of a record."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np

from conceptloader.errors import ConceptloaderError
from conceptloader.format.read.files import Files
from conceptloader.format.read.lookup import read_items
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.write.borders import runs_of
from conceptloader.format.write.ladder import REACH, Ladder

_PIECE = 1 << 21  # tokens whose windows are counted at a time
_RECORDS = 1 << 19


def false_claims(manifest: Manifest, files: Files, pool: Executor) -> Iterator[str]:
    """Problems with `max_spans` and `max_items` of a dataset whose files are sound; they are read again."""
    ranges = Ranges(manifest, files, False, None)
    for name, track in manifest.tracks.items():
        try:
            starts = range(0, manifest.num_tokens, _PIECE)
            spans = list(map(max, zip(*pool.map(partial(_count_spans, ranges, name), starts), strict=True)))
            items = _count_items(files, name) if track.codec == "concepts" else None
        except ConceptloaderError as error:
            yield str(error)
            continue
        found: dict[str, tuple[Any, Any]] = {
            "max_spans": (list(track.max_spans), spans),
            "max_items": (track.max_items, items),
        }
        for key, (claimed, counted) in found.items():
            if claimed != counted:
                rule = f"{counted}, as counted in the files; the manifest was changed or badly written: restore it"
                yield f"tracks: {name}: {key}: found {claimed}, expected {rule}"


def _count_spans(ranges: Ranges, track: str, start: int) -> Sequence[int]:
    """The ladder of the windows that begin with the tokens from `start` on, _PIECE of them."""
    ladder = Ladder()
    parts = ranges.parts(start, min(start + _PIECE + REACH, ranges.num_tokens))
    ladder.add(*runs_of(ranges.reader, track, parts))
    return ladder.counts


def _count_items(files: Files, track: str) -> int:
    """The largest number of concepts in a record."""
    most = 0
    for shard, records in enumerate(files.table.tracks[track].records.tolist()):
        for i in range(0, records, _RECORDS):
            stop = min(_RECORDS, records - i) + i + 1
            offsets = read_items(files, f"{track}.index", shard, fmt.OFFSET, i, stop).astype(np.int64)
            most = max(most, int(np.diff(offsets).max()) // 4)
    return most
