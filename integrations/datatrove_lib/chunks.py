"""Pipeline steps for datatrove: documents and chunks in files of their own, joined and built, all stages by tasks."""

import os
from typing import Any

from conceptloader.ingest.build.builder import IngestOptions
from conceptloader.ingest.chunks.build import Chunked, build_chunked
from conceptloader.ingest.chunks.join import Documents, Part
from conceptloader.ingest.chunks.options import Chunks
from conceptloader.ingest.records.tokenizer import load_tokenizer

from .step import Directory, Step, Task

_STAGES = {"ids": True, "deal": False, "join": False, "write": False, "finish": True}  # True: for one task alone


class ChunkedBuild(Step):
    """One stage of a build of documents with chunks, see `stages`.

    The dataset has the bytes that `conceptloader build` gives for the same chunks in a recipe, for any number of
    tasks of a stage; a task that was interrupted is run again by datatrove, and does what is missing.

    Raises, when run: what `build_chunked` raises; ConfigError for a stage whose turn has not come.

    Args:
        documents: Files of documents, which all tasks see.
        chunks: Files of their chunks, which all tasks see.
        out: Directory that all tasks see; what is joined lies in `<out>.joined` until the last stage ends.
        tokenizer: "bytes", a tokenizer.json or a transformers folder, see `load_tokenizer`.
        eos: Token, or id, that ends a document.
        skip_bad: Skip documents that cannot be ingested, and count them.
        options: Further ones of the build, such as vocabularies, scores, align and overlap.
    """

    def __init__(
        self,
        stage: str,
        documents: Documents,
        chunks: Chunks,
        out: Directory,
        tokenizer: str,
        *,
        eos: str | int | None = None,
        skip_bad: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.name, self.alone = f"Concept stream: {stage}", stage if _STAGES[stage] else ""
        self.stage, self.documents, self.chunks, self.out = stage, documents, chunks, os.path.abspath(out)
        self.tokenizer, self.eos, self.skip_bad, self.options = tokenizer, eos, skip_bad, options

    @classmethod
    def stages(cls, *arguments: Any, **options: Any) -> "list[ChunkedBuild]":
        """All in their order, each for an executor that depends on the one before. arguments: all but `stage`."""
        return [cls(stage, *arguments, **options) for stage in _STAGES]

    def tasks(self, wanted: int) -> int:
        """As many as are wanted, if the stage can be divided."""
        return 1 if self.alone else wanted

    def work(self, task: Task | None) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # tasks are what runs in parallel
        chunked = Chunked(self.documents, self.chunks, self.out, on_bad=(lambda *_: None) if self.skip_bad else None)
        ends, begun = self.options.get("append_eos", True), self.stage != "ids"
        tokenizer = load_tokenizer(self.tokenizer, self.eos, ends=ends, compared=begun)
        named = self.eos is not None
        options = IngestOptions(columns=chunked.columns, tokenizer=tokenizer, eos_twice=named, **self.options)
        part = None if self.stage == "finish" else Part(self.stage, *(task or (0, 1)))
        summary, _ = build_chunked(chunked, options, part=part)
        if summary is not None and part is not None:
            for name in ("documents", "tokens", "bad_records"):
                self.stat_update(name, value=getattr(summary, name))
