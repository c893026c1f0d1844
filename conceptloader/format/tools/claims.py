"""What a manifest says of a track as a whole, counted again: the spans that windows touch, the concepts of a record."""

from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial

import numpy as np

from conceptloader.errors import ConceptloaderError
from conceptloader.format.read.files import Files
from conceptloader.format.read.lookup import read_items
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec import layout as fmt
from conceptloader.format.write.borders import PIECE, count_windows

_RECORDS = 1 << 19


def false_claims(files: Files, pool: Executor) -> Iterator[str]:
    """Problems with `max_spans` and `max_items` of a dataset whose files are sound; they are read again."""
    ranges = Ranges(files.manifest, files, False, None)
    for name, track in files.manifest.tracks.items():
        try:
            starts = range(0, ranges.num_tokens, PIECE)
            count = partial(count_windows, ranges, name)
            spans = list(map(max, zip(*pool.map(count, starts, (start + PIECE for start in starts)), strict=True)))
            items = _count_items(files, name) if track.codec == "concepts" else None
        except ConceptloaderError as error:
            yield str(error)
            continue
        for key, claimed, counted in (
            ("max_spans", list(track.max_spans), spans),
            ("max_items", track.max_items, items),
        ):
            if claimed != counted:
                rule = f"{counted}, as counted in the files; the manifest was changed or badly written: restore it"
                yield f"tracks: {name}: {key}: found {claimed}, expected {rule}"


def _count_items(files: Files, track: str) -> int:
    """The largest number of concepts in a record."""
    most = 0
    for shard, records in enumerate(files.table.tracks[track].records.tolist()):
        for i in range(0, records, _RECORDS):
            stop = min(_RECORDS, records - i) + i + 1
            offsets = read_items(files, f"{track}.index", shard, fmt.OFFSET, i, stop).astype(np.int64)
            most = max(most, int(np.diff(offsets).max()) // 4)
    return most
