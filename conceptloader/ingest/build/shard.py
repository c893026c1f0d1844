"""One shard, from its pieces of the input to its files. Runs in any process."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from conceptloader.errors import InputError
from conceptloader.format.write.build import Build, open_build
from conceptloader.format.write.shard import ShardWriter
from conceptloader.ingest.build.lost import NOTE, Losses, document_names
from conceptloader.ingest.build.plan import Piece
from conceptloader.ingest.build.workers import Report
from conceptloader.ingest.place.rules import SpanRules
from conceptloader.ingest.place.spans import Placed, check_ids, place
from conceptloader.ingest.rows.batch import BadRecord, BadRow, Batch
from conceptloader.ingest.rows.columns import Columns
from conceptloader.ingest.rows.inputs import Source
from conceptloader.ingest.rows.lines import MAX_LINE_BYTES, lines_before, read_lines
from conceptloader.ingest.rows.records import LineParser
from conceptloader.ingest.rows.table import TableParser, read_row_groups
from conceptloader.ingest.rows.tokenizer import BytesTokenizer, FileTokenizer, Tokenizer
from conceptloader.ingest.rows.vocabulary import Concepts


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """Everything a worker needs to write shard `shard` of the build in `directory`.

    tokenizer: None for input that is tokenized already, "bytes", or the text of a tokenizer.json. eos: the id to append
    to each document, or None. skip_bad: leave out records that cannot be ingested instead of raising.
    """

    directory: str
    shard: int
    sources: Sequence[Source]
    columns: Columns
    tokenizer: bytes | str | None
    eos: int | None
    rules: SpanRules
    max_line_bytes: int = MAX_LINE_BYTES
    skip_bad: bool = False


@dataclass
class Progress:
    """What has been done since the last report. losses: see `Losses`; bad: (file, place in it, problem) of records that
    were left out."""

    bytes: int = 0
    documents: int = 0
    tokens: int = 0
    losses: Losses = field(default_factory=Losses)
    bad: list[tuple[str, str, str]] = field(default_factory=list)


@lru_cache(maxsize=1)
def _tokenizer(definition: bytes | str | None, eos: int | None) -> Tokenizer | None:
    if definition is None:
        return None
    if isinstance(definition, str):
        return BytesTokenizer()
    if multiprocessing.parent_process() is not None:  # one of several workers: one thread each
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return FileTokenizer(definition, "tokenizer", eos)


def write_shard(job: ShardJob, report: Report) -> None:
    """Write one shard. Reports a Progress after each batch. Raises: InputError that names file and line or row."""
    build = open_build(job.directory)
    tokenizer = _tokenizer(job.tokenizer, job.eos)
    losses = Losses()
    with build.shard(job.shard) as writer:
        for numbers in build.plan[job.shard]:
            piece = Piece(*numbers)
            for rows, consumed in _read(job, build, piece):
                progress = Progress(bytes=consumed)
                placed = _placed(job, writer, rows, tokenizer, progress)
                if placed is not None:
                    losses.add(progress.losses)
                    writer.add_documents(
                        placed.tokens.values, placed.tokens.offsets, placed.spans, placed.ids, placed.fields
                    )
                    progress.documents = len(placed.ids)
                    progress.tokens = len(placed.tokens.values)
                report(progress)
        for number in sorted({numbers[0] for numbers in build.plan[job.shard]}):
            job.sources[number].check_unchanged()
        if losses:
            writer.notes[NOTE] = losses.to_json()


def _placed(
    job: ShardJob, writer: ShardWriter, rows: "Rows", tokenizer: Tokenizer | None, progress: Progress
) -> Placed | None:
    """The documents of `rows`, ready to be written; None if there are none."""
    limit, dtype = writer.options.token_limit, np.dtype("<" + writer.options.written_type)
    while len(rows):
        try:
            batch = rows.parse()
            places = None
            if tokenizer is None or batch.texts is None:
                assert batch.tokens is not None
                tokens = batch.tokens
            else:
                tokens, places = tokenizer.encode(batch.texts, _with_spans(batch))
            check_ids(tokens, limit)
            placed = place(batch, tokens, places, job.eos, job.rules, dtype)
            progress.losses.note(batch, placed.lost, document_names(batch.ids, writer.documents, writer.name))
            return placed
        except BadRow as error:
            if error.row < 0:
                raise InputError(f"{rows.path}: {error.problem}") from error
            where = rows.where(error.row)
            if not job.skip_bad:
                raise BadRecord(f"{rows.path}: {where}: {error.problem}") from error
            progress.bad.append((rows.path, where, error.problem))
            rows = rows.without(error.row)
    return None


def _with_spans(batch: Batch) -> list[bool]:
    """For which documents of a batch the places of the tokens matter."""
    some = np.zeros(len(batch.ids), bool)
    for spans in batch.spans.values():
        some[spans.row] = True
    return [bool(one) for one in some]


class Lines:
    """Some lines of a file, blank ones left out."""

    def __init__(self, path: str, begin: int, numbers: list[int], lines: list[bytes], parser: LineParser) -> None:
        self.path = path
        self._begin = begin
        self._numbers = numbers
        self._lines = lines
        self._parser = parser

    def __len__(self) -> int:
        return len(self._lines)

    def parse(self) -> Batch:
        return self._parser.parse(self._lines)

    def where(self, row: int) -> str:
        return f"line {lines_before(self.path, self._begin) + self._numbers[row] + 1}"

    def without(self, row: int) -> "Lines":
        numbers, lines = list(self._numbers), list(self._lines)
        del numbers[row], lines[row]
        return Lines(self.path, self._begin, numbers, lines, self._parser)


class Table:
    """Some rows of a parquet file."""

    def __init__(self, path: str, numbers: list[int], table: Any, parser: TableParser) -> None:
        self.path = path
        self._numbers = numbers
        self._table = table
        self._parser = parser

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def parse(self) -> Batch:
        return self._parser.parse(self._table)

    def where(self, row: int) -> str:
        return f"row {self._numbers[row]}"

    def without(self, row: int) -> "Table":
        kept = [i for i in range(len(self)) if i != row]
        return Table(self.path, [self._numbers[i] for i in kept], self._table.take(kept), self._parser)


Rows = Lines | Table


def _read(job: ShardJob, build: Build, piece: Piece) -> Iterator[tuple[Rows, int]]:
    """The rows of a piece in batches, each with the stored bytes that it took."""
    source = job.sources[piece.source]
    concepts = {track: Concepts(build.options.tracks[track].vocabulary) for track in job.columns.tracks}
    if source.row_groups is not None:
        table_parser = TableParser(job.columns, concepts)
        size = sum(source.row_groups[piece.begin : piece.end])
        count = 0
        for table, first, share in read_row_groups(source.path, piece.begin, piece.end, job.columns):
            consumed = int(size * share) - count
            count += consumed
            yield Table(source.path, list(range(first, first + table.num_rows)), table, table_parser), consumed
        return
    parser = LineParser(job.columns, concepts)
    number = last = 0
    end = None if source.compression else piece.end
    for lines, position in read_lines(source.path, piece.begin, end, source.compression, job.max_line_bytes):
        some = [i for i, line in enumerate(lines) if line and not line.isspace()]
        kept = lines if len(some) == len(lines) else [lines[i] for i in some]
        yield Lines(source.path, piece.begin, [number + i for i in some], kept, parser), position - last
        number += len(lines)
        last = position
