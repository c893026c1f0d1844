"""From documents and chunks in files of their own to a dataset, or to a track of one: joined next to it, then built."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from conceptloader.errors import ConfigError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Manifest
from conceptloader.format.tools.derived import check_new_directory
from conceptloader.format.write.build import open_writer
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.build.builder import IngestOptions, Watch, build_dataset, format_options
from conceptloader.ingest.build.complete import Summary, check_replaceable, describe_complete
from conceptloader.ingest.chunks.concepts import Library, load_library
from conceptloader.ingest.chunks.join import Documents, OnBad, Part, check_join, discard_join, join_chunks
from conceptloader.ingest.chunks.options import Chunks
from conceptloader.ingest.chunks.report import Joined
from conceptloader.ingest.records.columns import MAIN_TRACK, Columns
from conceptloader.ingest.records.inputs import Source, find_sources
from conceptloader.ingest.records.vocabulary import concept_parameters
from conceptloader.storage.lock import build_lock


@dataclass(frozen=True)
class Chunked:
    """Documents with chunks, for a dataset in `out`. What is joined lies in `<out>.joined` until that is complete.

    workers: processes. on_bad, watch_join: `on_bad` and `watch` of `join_chunks`.
    """

    documents: Documents
    chunks: Chunks
    out: str | os.PathLike[str]
    workers: int = 1
    on_bad: OnBad | None = None
    watch_join: Callable[[int, int], None] | None = None

    @cached_property
    def library(self) -> Library:
        """Raises: InputError."""
        return load_library(self.chunks.concepts, list(self.chunks.labels))

    @cached_property
    def sources(self) -> list[Source]:
        return find_sources([*self.documents.files, *self.chunks.files, self.chunks.concepts.path])

    @property
    def path(self) -> str:
        return os.path.abspath(self.out)

    @property
    def columns(self) -> Columns:
        """Of the joined files."""
        documents, join = self.documents, self.chunks.join
        return Columns(
            text=None if documents.tokens else documents.content,
            tokens=documents.content if documents.tokens else None,
            id=join,
            tracks={MAIN_TRACK: "spans"},
            metadata_columns=[column for column in documents.keep if column != join],
        )

    def told(self, report: Any) -> dict[str, Any]:
        """What a dataset keeps of where it is from."""
        documents = self.documents
        return {
            "inputs": [source.to_json() for source in self.sources],
            "documents": {"content": documents.content, "tokens": documents.tokens, "keep": list(documents.keep)},
            "chunks": self.chunks.to_json(),
            "report": report,
        }

    @contextmanager
    def joined(self, part: Part | None = None) -> Iterator[Joined]:
        """Join, and remove what was joined at the end, unless this is only a part. Raises: see `join_chunks`."""
        directory = f"{self.path}.joined"
        with build_lock(directory, shared=part is not None):
            joined = join_chunks(
                self.documents, self.chunks, self.library, directory, workers=self.workers, part=part,
                on_bad=self.on_bad, watch=self.watch_join,
            )  # fmt: skip
            for source in self.sources:
                source.check_unchanged()
            yield joined
        if part is None:
            discard_join(directory)


def build_chunked(
    chunked: Chunked,
    options: IngestOptions,
    *,
    part: Part | None = None,
    watch: Callable[[int, int], Watch] | None = None,
    overwrite: bool = False,
) -> tuple[Summary | None, Joined]:
    """Join and build, or resume that after an interruption.

    The result is a dataset with one track, `concepts`, whose vocabulary has a group for each kind of labels.

    options: columns, vocabularies, groups, details and scores are those of the chunks. part: do only this one, and make
    no dataset; the summary is that of a task, None for stages before "write". watch: see `build_dataset`. overwrite:
    remove what was joined first, and replace the dataset at the end, see `build_dataset`.
    Raises: what `join_chunks` and `build_dataset` raise.
    """
    library, chunks, path = chunked.library, chunked.chunks, chunked.path
    options = replace(
        options,
        columns=chunked.columns,
        vocabularies={MAIN_TRACK: library.names},
        groups={MAIN_TRACK: list(library.groups().items())},
        details={MAIN_TRACK: library.to_json()},
        scores={MAIN_TRACK: chunks.score_type} if chunks.scores else {},
        span_unit=None,  # what is joined counts characters, or tokens
    )
    if overwrite:
        directory = f"{path}.joined"
        check_join(chunked.documents, chunks, directory)
        format_options(options)
        check_replaceable(path, chunked.sources)
        with build_lock(directory):
            discard_join(directory)
    elif os.path.exists(os.path.join(path, fmt.MANIFEST)):
        joined = Joined([])
        found = open_writer(path).options.extra.get("ingest", {}).get("joined") or {}
        options = replace(options, joined=chunked.told(found.get("report")))
        summary = describe_complete(path, chunked.sources, format_options(options), None, options)
        joined.add(found["report"])
        discard_join(f"{path}.joined")
        return summary, joined
    with chunked.joined(part) as joined:
        if part is not None and part.stage != "write":
            return None, joined
        options = replace(options, joined=chunked.told(joined.to_json()))
        files = find_sources(joined.files)
        task = None if part is None else (part.number, part.tasks)
        summary = build_dataset(
            files, path, options, workers=chunked.workers, task=task, on_bad=chunked.on_bad, watch=watch,
            overwrite=overwrite,
        )  # fmt: skip
    return summary, joined


def annotate_chunked(
    chunked: Chunked,
    dataset: str | os.PathLike[str],
    options: AnnotateOptions,
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> tuple[Manifest, Joined]:
    """Join, and make the dataset `chunked.out` of `dataset` with the chunks as a track over its tokens.

    The documents are those of the dataset: of each that has chunks the text or tokens are compared. options: codec,
    parameters, vocabulary, groups, details, unit and columns are those of the chunks. A join that was interrupted is
    gone on with. Raises: what `join_chunks` and `annotate` raise.
    """
    check_new_directory(chunked.path)
    library, chunks, documents = chunked.library, chunked.chunks, chunked.documents
    if options.codec != "concepts" or options.vocabulary is not None:
        raise ConfigError(
            "chunks",
            "a codec or a vocabulary",
            "neither: both are those of the concept table",
            "omit --codec and --vocabulary",
        )
    with chunked.joined() as joined:
        options = replace(
            options,
            parameters=concept_parameters(library.names, chunks.score_type if chunks.scores else None),
            vocabulary=library.names,
            groups=list(library.groups().items()),
            details=library.to_json(),
            span_unit="token" if documents.tokens else "character",
            columns={"id": chunks.join, "content": documents.content},
            ignored=documents.keep,
            joined=chunked.told(joined.to_json()),
        )
        found = annotate(dataset, joined.files, chunked.path, options, roots, workers=chunked.workers)
        return found, joined
