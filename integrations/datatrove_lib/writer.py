"""Pipeline steps for datatrove: tokenize and write one shard per task, then finalize."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from datatrove.pipeline.base import PipelineStep

from conceptloader.errors import ConfigError
from conceptloader.format.read.kept import keep_tokenizer
from conceptloader.format.spec import layout as fmt
from conceptloader.format.write.build import Build, create_writer, open_writer
from conceptloader.ingest.align.rules import check_fraction
from conceptloader.ingest.build.builder import IngestOptions, format_options
from conceptloader.ingest.build.doubled import Doubled
from conceptloader.ingest.build.shard import Rows, ShardFiller
from conceptloader.ingest.build.spelled import check_rule
from conceptloader.ingest.build.unaligned import finalize_within
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.special_tokens import SpecialTokens
from conceptloader.ingest.records.table import TableParser
from conceptloader.ingest.records.tokenizer import load_tokenizer
from conceptloader.ingest.records.vocabulary import Concepts, load_vocabulary
from conceptloader.storage.lock import build_lock

from .step import Directory, Step, Task


class ConceptStreamWriter(PipelineStep):  # type: ignore[misc]
    """Tokenizes the documents of a task and writes them as shard `rank` of a build in `out`.

    The number of tasks is the number of shards and part of what the build is; the number of workers is not, so the same
    input gives byte-identical datasets. A task that was interrupted is run again by datatrove and writes its shard
    again; one whose shard is finished returns at once.

    Raises, when run: InputError naming the document, or as a build where most of the first task's first documents have
    an eos already or a special token as text; ConfigError for another build in `out`.

    Args:
        out: Directory that all tasks see.
        tokenizer: "bytes", a tokenizer.json or a transformers folder.
        spans: Which key of a document's metadata holds the spans of which track, a list of {"start", "end", "concepts"}
            with offsets in characters of the text.
        vocabularies: Names of the concepts by track, a list or a file.
        scores: Type ("f2" or "f4") of those in `scores`, one for each of `concepts`, by track.
        metadata: Keys that are kept in the track `metadata`.
        skip_bad: Skip documents that cannot be ingested, and count them, instead of failing. The rest as in
            `conceptloader build`; `ConceptStreamFinalize` checks how many spans were lost.
    """

    name = "Concept stream"
    type = "💾 - WRITER"

    def __init__(
        self,
        out: Directory,
        tokenizer: str,
        *,
        spans: Mapping[str, str] | None = None,
        vocabularies: Mapping[str, str | Sequence[str]] | None = None,
        scores: Mapping[str, str] | None = None,
        metadata: Sequence[str] = (),
        eos: str | int | None = None,
        append_eos: bool = True,
        special_tokens: str | None = None,
        align: str = "first",
        eos_span: str = "none",
        overlap: str = "error",
        levels: int = 3,
        encoding: str = "auto",
        skip_bad: bool = False,
        batch_documents: int = 1000,
    ) -> None:
        super().__init__()
        # Plain values only: executors pickle the step, or write it as JSON.
        self.out = os.path.abspath(out)
        self.tokenizer, self.eos = tokenizer, eos
        self.spans, self.vocabularies, self.metadata = dict(spans or {}), dict(vocabularies or {}), list(metadata)
        self.rules: dict[str, Any] = {"align": align, "eos_span": eos_span, "overlap": overlap, "levels": levels}
        self.special_tokens = special_tokens
        self.append_eos, self.encoding, self.scores = append_eos, encoding, dict(scores or {})
        self.skip_bad, self.batch_documents = skip_bad, batch_documents

    def run(self, data: Iterable[Any] | None, rank: int = 0, world_size: int = 1) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # tasks are what runs in parallel
        kept = self.vocabularies.items()
        given = {track: load_vocabulary(names) if isinstance(names, str) else names for track, names in kept}
        begun = os.path.exists(os.path.join(self.out, fmt.BUILD))
        options = IngestOptions(
            columns=Columns(tracks=self.spans, metadata_columns=self.metadata),
            tokenizer=load_tokenizer(self.tokenizer, self.eos, ends=self.append_eos, compared=begun),
            eos_twice=self.eos is not None,
            special_tokens=self.special_tokens,
            vocabularies=given,
            scores=self.scores,
            append_eos=self.append_eos,
            encoding=self.encoding,
            **self.rules,
        )
        build = self._build(options, world_size)
        check_rule(build, options.spelled, [rank])
        if build.is_finished(rank):
            self.stat_update("finished before")
            return
        tracks = build.options.tracks
        concepts = {track: Concepts(tracks[track]) for track in self.spans}
        parser, read = TableParser(options.columns, concepts), partial(_record, options.columns.wanted())
        parse = partial(parser.parse_records, read=read)
        rest = iter(data or ())
        with build_lock(self.out, shared=True), build.shard(rank) as writer:
            assert options.tokenizer is not None
            tokenizer = SpecialTokens(options.tokenizer, options.spelled)
            doubled = Doubled(options.asked if rank == 0 else ())
            filler = ShardFiller(writer, tokenizer, options.eos, options.rules, self.skip_bad, doubled=doubled)
            while documents := list(islice(rest, self.batch_documents)):
                names = [f"document {document.id!r:.100}" for document in documents]
                rows = Rows(f"task {rank}", documents, parse, range(len(documents)), names.__getitem__)
                with self.track_time("batch"):
                    progress = filler.add(rows)
                for _ in progress.bad:
                    self.stat_update("bad documents")
                if progress.documents:
                    self.stat_update("documents", value=progress.documents)
                    self.stat_update("tokens", value=progress.tokens)
                    self.stat_update("spans without a token", value=progress.losses.lost)
                    self.stat_update("documents that end twice", value=progress.doubled)
                    for token, count in progress.spelled.items():
                        self.stat_update(f"special token {token} in text", value=count)
            filler.doubled.check()

    def _build(self, options: IngestOptions, shards: int) -> Build:
        """The build of all tasks, begun by whichever comes first."""
        wanted, plan = format_options(options), list(range(shards))
        if os.path.exists(os.path.join(self.out, fmt.MANIFEST)):  # finalized: this task is run again
            found = open_writer(self.out)
            if (found.plan, found.options.to_json(found.vocabularies)) != (plan, wanted.to_json(found.vocabularies)):
                raise ConfigError(
                    self.out,
                    "a complete dataset of other options or another number of tasks",
                    "a new directory",
                    "pass another out=: nothing was changed",
                )
            return found
        build = create_writer(self.out, wanted, plan=plan)
        if options.tokenizer is not None and options.tokenizer.definition is not None:
            keep_tokenizer(options.tokenizer.definition, self.out)
        return build


def _record(known: Collection[str], document: Any) -> dict[str, Any]:
    """Of a document of datatrove: text and id; `known` columns, such as spans, from its `metadata`."""
    kept = {key: document.metadata[key] for key in known if key in document.metadata}
    return {**kept, "id": document.id, "text": document.text}


class ConceptStreamFinalize(Step):
    """Completes the build in `out`: the one step of a pipeline with one task that depends on the writers' pipeline.

    Raises, when run: FormatError for missing shards, InputError for more lost spans than that. A complete dataset is
    left as it is.

    Args:
        max_unaligned_spans: Which part of a track's spans may have been left without a token, in [0, 1].
    """

    name, alone = "Concept stream: finalize", "finalize"

    def __init__(self, out: Directory, *, max_unaligned_spans: float = 0.01) -> None:
        super().__init__()
        check_fraction(max_unaligned_spans)
        self.out = os.path.abspath(out)
        self.max_unaligned_spans = max_unaligned_spans

    def work(self, task: Task | None) -> None:
        if not os.path.exists(os.path.join(self.out, fmt.MANIFEST)):
            finalize_within(self.out, self.max_unaligned_spans)
