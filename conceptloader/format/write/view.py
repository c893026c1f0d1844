"""Writing a view: a small dataset that refers to the tokens of another one."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import xxhash

from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.manifest import CREATED_BY
from conceptloader.format.spec.paths import Roots
from conceptloader.format.spec.viewfile import RUNS, Runs, Source, ViewManifest
from conceptloader.format.write.ladder import count_spans
from conceptloader.storage.durable import write_file

log = logging.getLogger(__name__)


def write_view(
    directory: str, out: str, source: Dataset, start: Ints, stop: Ints, extra: Mapping[str, Any]
) -> ViewManifest:
    """Write the two files of a view to `directory`, which will be `out`.

    start, stop: its token ranges of `source`, none empty, ascending and disjoint. Of a view its own source is named.

    Raises: ConfigError for none at all, FormatError and ReadError for the source.
    """
    if not len(start):
        raise ConfigError(
            out,
            "no matching document",
            "at least one document",
            "pass --where or --ids that match a document: nothing was written",
        )
    runs = Runs.of(*source.in_files(start, stop))
    data, ranges = runs.dump(), Dataset(source.files, runs=runs)
    manifest = ViewManifest(
        created_by=CREATED_BY,
        source=Source(
            path=os.path.relpath(source.source, out),
            stream_fingerprint=source.manifest.stream_fingerprint(),
            tracks_fingerprint=source.manifest.tracks_fingerprint(),
        ),
        num_tokens=int(runs.first[-1]),
        num_documents=len(runs),
        runs=xxhash.xxh3_64_hexdigest(data),
        max_spans={track: tuple(count_spans(ranges, track)) for track in sorted(source.stored_tracks)},
        extra=extra,
    )
    write_file(os.path.join(directory, RUNS), data)
    write_file(os.path.join(directory, fmt.MANIFEST), manifest.dump())
    if not Roots(out, None).allows(source.source):
        log.warning(
            "%s refers to %s, which is not below %s: to open it, allow that, by allowed_roots: [%s] in the "
            "configuration, --root %s of a command, or roots=[...] in Python",
            *(out, source.source, os.path.dirname(out), source.source, source.source),
        )
    return manifest
