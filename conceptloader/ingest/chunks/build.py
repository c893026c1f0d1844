"""From documents and chunks in files of their own to a dataset: joined beside it, then built."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace

from conceptloader.format.spec import layout as fmt
from conceptloader.format.write.build import open_build
from conceptloader.ingest.build.builder import IngestOptions, Watch, build_dataset, format_options
from conceptloader.ingest.build.complete import Summary, describe_complete
from conceptloader.ingest.chunks.concepts import load_library
from conceptloader.ingest.chunks.join import Documents, Joined, join_chunks
from conceptloader.ingest.chunks.options import Chunks
from conceptloader.ingest.rows.columns import MAIN_TRACK, Columns
from conceptloader.ingest.rows.inputs import find_sources
from conceptloader.storage.lock import build_lock


def chunk_columns(documents: Documents, chunks: Chunks) -> Columns:
    """Of the joined files."""
    return Columns(
        text=None if documents.tokens else documents.content,
        tokens=documents.content if documents.tokens else None,
        id=chunks.join,
        tracks={MAIN_TRACK: "spans"},
        metadata_columns=[column for column in documents.keep if column != chunks.join],
    )


def build_chunked(
    documents: Documents,
    chunks: Chunks,
    out: str | os.PathLike[str],
    options: IngestOptions,
    *,
    workers: int = 1,
    on_bad: Callable[[str, str, str], None] | None = None,
    watch: Callable[[int, int], Watch] | None = None,
    watch_join: Callable[[int, int], None] | None = None,
) -> tuple[Summary, Joined]:
    """Join and build, or go on with that after an interruption: a dataset with one track, `concepts`, whose vocabulary
    has a group for each kind of labels.

    What is joined lies in `<out>.joined` until the dataset is complete. options: columns, vocabularies, groups and
    details are those of the chunks. The rest as in `build_dataset` and `join_chunks`, also what they raise.
    """
    path = os.path.abspath(out)
    directory = f"{path}.joined"
    library = load_library(chunks.concepts, list(chunks.labels))
    sources = find_sources([*documents.files, *chunks.files, chunks.concepts.path])
    given = {
        "inputs": [source.to_json() for source in sources],
        "documents": {"content": documents.content, "tokens": documents.tokens, "keep": list(documents.keep)},
        "chunks": chunks.to_json(),
    }
    options = replace(
        options,
        columns=chunk_columns(documents, chunks),
        vocabularies={MAIN_TRACK: library.names},
        groups={MAIN_TRACK: list(library.groups().items())},
        details={MAIN_TRACK: library.to_json()},
    )
    if os.path.exists(os.path.join(path, fmt.MANIFEST)):
        joined = Joined([])
        found = open_build(path).options.extra.get("ingest", {}).get("joined") or {}
        options = replace(options, joined={**given, "report": found.get("report")})
        summary = describe_complete(path, sources, format_options(options), None, options.max_lost_spans)
        joined.add(found["report"])
    else:
        with build_lock(directory):
            joined = join_chunks(documents, chunks, library, directory, workers=workers, watch=watch_join)
            for source in sources:
                source.check_unchanged()
            options = replace(options, joined={**given, "report": joined.to_json()})
            files = find_sources(joined.files)
            summary = build_dataset(files, path, options, workers=workers, on_bad=on_bad, watch=watch)
    shutil.rmtree(directory, ignore_errors=True)  # what stays of it, nobody needs
    return summary, joined
