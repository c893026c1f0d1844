"""One shard, from its pieces of the input to its files. Runs in any process."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from conceptloader.base.workers import Tell
from conceptloader.errors import InputError
from conceptloader.format.write.build import Build, open_writer
from conceptloader.format.write.shard import ShardWriter
from conceptloader.ingest.align.spans import Placed, check_ids, place, with_bos
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.build.plan import Piece, piece_bytes
from conceptloader.ingest.build.unaligned import ANSWERS, NOTE, SPELLED, Losses, TrackLoss
from conceptloader.ingest.records.batch import BadRecord, BadRow, Ragged, RowBatch
from conceptloader.ingest.records.chat import ChatParser
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.lines import lines_before, read_blocks
from conceptloader.ingest.records.records import read_record
from conceptloader.ingest.records.special_tokens import SpecialTokens
from conceptloader.ingest.records.table import TableParser, read_row_groups, rows_at
from conceptloader.ingest.records.vocabulary import Concepts


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """Everything a worker needs to write shard `shard` of the build in `directory`.

    skip_bad: skip records that cannot be ingested instead of raising.
    """

    sources: Sequence[Source]
    options: Options
    skip_bad: bool = False
    directory: str = ""
    shard: int = -1


@dataclass
class Progress:
    """What has been done since the last report.

    losses: see `Losses`; bad: (file, place in it, problem) of records that were skipped; truncated: conversations
    without their last turns; spelled: special tokens that texts spell, by name; doubled: documents that had the eos, or
    the bos, which they got, already; unprinted: fields of messages that a chat template omitted, by name. compared:
    documents whose ids were compared with those of tokenizers; slowed: those that tokenizers encoded.
    slow: why gigatoken was not used.
    """

    bytes: int = 0
    documents: int = 0
    tokens: int = 0
    losses: Losses = field(default_factory=Losses)
    bad: list[tuple[str, str, str]] = field(default_factory=list)
    truncated: int = 0
    spelled: Counter[str] = field(default_factory=Counter)
    unprinted: Counter[str] = field(default_factory=Counter)
    doubled: int = 0
    compared: int = 0
    slowed: int = 0
    slow: str = ""

    def add(self, other: "Progress") -> None:
        self.bytes += other.bytes
        self.documents += other.documents
        self.tokens += other.tokens
        self.truncated += other.truncated
        self.spelled += other.spelled
        self.unprinted += other.unprinted
        self.doubled += other.doubled
        self.compared += other.compared
        self.slowed += other.slowed
        self.slow = self.slow or other.slow
        self.losses.add(other.losses)
        self.bad += other.bad


def write_shard(job: ShardJob, report: Tell) -> None:
    """Write one shard. Reports a Progress after each batch. Raises: InputError that names file and line or row."""
    build = open_writer(job.directory)
    if build.is_finished(job.shard):  # meanwhile, by another attempt of the task that has it
        return
    with build.shard(job.shard) as writer:
        filler = ShardFiller(job, writer)
        for numbers in build.plan[job.shard]:
            for rows, consumed in read_piece(job, build, Piece(*numbers)):
                report(filler.add(rows, consumed))
        for number in sorted({numbers[0] for numbers in build.plan[job.shard]}):
            job.sources[number].check_unchanged()


@dataclass(frozen=True)
class Rows:
    """Rows of an input, which messages call `path`.

    content: a list or a pyarrow table of them; parse: makes a batch of it; numbers: of each row in the input; name:
    what to call the one of a number.
    """

    path: str
    content: Any
    parse: Callable[[Any], RowBatch]
    numbers: Sequence[int]
    name: Callable[[int], str]

    def only(self, kept: Sequence[int]) -> "Rows":
        """Those at these positions."""
        content = [self.content[i] for i in kept] if isinstance(self.content, list) else rows_at(self.content, kept)
        return replace(self, content=content, numbers=[self.numbers[i] for i in kept])


@dataclass
class ShardFiller:
    """Adds rows to a shard."""

    job: ShardJob
    writer: ShardWriter
    losses: Losses = field(default_factory=Losses)
    spelled: Counter[str] = field(default_factory=Counter)

    @cached_property
    def tokenizer(self) -> SpecialTokens | None:
        """None for rows of tokens."""
        options = self.job.options
        return _special_tokens(options) if options.columns.text is not None or options.rules is not None else None

    def add(self, rows: Rows, consumed: int = 0) -> Progress:
        """Place and write the documents of `rows`. consumed: their stored bytes. Raises: BadRecord, InputError."""
        progress, bad, kept = Progress(), dict[int, str](), [*range(len(rows.numbers))]
        while kept:
            some = rows.only(kept) if bad else rows
            try:
                progress, batch, tokens, placed = self._place(some)
            except BadRow as error:
                found = _named(error) if error.row >= 0 and not bad else self._bad(some)
                if not found:  # each alone is right, but their types differ
                    half = len(kept) // 2
                    for part in (kept[:half], kept[half:]):
                        progress.add(self.add(rows.only(part)))
                    break
                if not self.job.skip_bad:
                    row, problem = (error.row, error.problem) if error.row >= 0 else min(found.items())
                    where = f"{rows.path}: {rows.name(rows.numbers[row])}"
                    raise self._kind(rows, row, problem).saying(where, problem) from error
                bad.update({kept[i]: problem for i, problem in found.items()})
                kept = [i for i in range(len(rows.numbers)) if i not in bad]
            else:
                progress.doubled = _doubled(tokens, self.job.options.appended, self.job.options.bos)
                self._write(batch, placed, progress)
                break
        progress.bytes = consumed
        progress.bad += [(rows.path, rows.name(rows.numbers[i]), bad[i]) for i in sorted(bad)]
        return progress

    def _kind(self, rows: Rows, row: int, problem: str) -> type[InputError]:
        """BadRecord, unless an option helps, or other rows are bad, too: leaving all out is no remedy."""
        others = [i for i in range(len(rows.numbers)) if i != row]
        some = others[:: len(others) // 8 | 1]  # odd, since rows may differ by turns
        all_bad = bool(some) and all(self._bad(rows.only([i])) for i in some)
        return InputError if all_bad or "(--" in problem else BadRecord

    def _write(self, batch: RowBatch, placed: Placed, progress: Progress) -> None:
        tokens, writer = placed.tokens, self.writer
        writer.add_documents(tokens.values, tokens.offsets, placed.spans, placed.ids, placed.fields)
        progress.documents, progress.tokens = len(placed.ids), len(tokens.values)
        progress.truncated, progress.unprinted = batch.truncated, batch.unprinted
        self.spelled.update(progress.spelled)
        if self.spelled:
            writer.notes[SPELLED] = dict(self.spelled)
        if self.tokenizer is not None:
            progress.compared, progress.slowed, progress.slow = self.tokenizer.take_compared()
        self.losses.add(progress.losses)
        if self.losses:
            writer.notes[NOTE] = self.losses.to_json()

    def _bad(self, rows: Rows) -> dict[int, str]:
        """What is wrong with each row that cannot be ingested, by position.

        A stage may name the first of them only, and later ones have not seen the rest: halves bound what is repeated.
        """
        if not rows.numbers:
            return {}
        try:
            self._place(rows)
        except BadRow as error:
            bad = _named(error)
        else:
            return {}
        rest = [i for i in range(len(rows.numbers)) if i not in bad]
        for part in (rest[: len(rest) // 2], rest[len(rest) // 2 :]):
            bad |= {part[i]: problem for i, problem in self._bad(rows.only(part)).items()}
        return bad

    def _place(self, rows: Rows) -> tuple[Progress, RowBatch, Ragged, Placed]:
        """Rows as documents that are ready to be written, with their tokens alone. Raises: BadRow, InputError."""
        try:
            batch = rows.parse(rows.content)
            progress = Progress(spelled=Counter(batch.spelled))
            return progress, batch, *self._place_batch(batch, progress)
        except BadRow as error:
            if error.row < 0 and not isinstance(rows.content, list):
                raise InputError.saying(rows.path, error.problem) from error
            if error.row < 0 and len(rows.numbers) == 1:
                raise BadRow(0, error.problem) from error
            raise

    def _place_batch(self, batch: RowBatch, progress: Progress) -> tuple[Ragged, Placed]:
        options, format_options, places = self.job.options, self.writer.options, None
        if self.tokenizer is None or batch.texts is None:
            assert batch.tokens is not None
            tokens = batch.tokens
        else:
            marked = np.zeros(len(batch.ids), bool)  # the documents of which the places of the tokens matter
            for spans in batch.spans.values():
                marked[spans.row] = True
            self.tokenizer.spelled.clear()
            tokens, places = self.tokenizer.encode(batch.texts, marked.tolist())
        check_ids(tokens, format_options.token_limit)
        dtype, tokenizer = np.dtype("<" + format_options.written_type), options.tokenizer

        def decode(row: int, start: int, end: int) -> str | None:
            assert tokenizer is not None
            some = tokens.values[tokens.offsets[row] : tokens.offsets[row + 1]]
            return tokenizer.decode(some[start:end].tolist()) if 0 <= start < end <= len(some) else None

        placed = place(batch, tokens, places, options.appended, options, dtype, None if tokenizer is None else decode)
        ids, first, shard = batch.ids, self.writer.documents, self.writer.name

        def name(row: int) -> str:
            return f"document {ids[row]!r}" if ids[row] else f"document {first + row} of shard {shard}"

        progress.losses.note(batch, placed.lost, name, options.span_unit)
        if batch.answers:
            examples = [{**one, "document": name(one["row"])} for one in batch.unended]
            progress.losses.add({ANSWERS: TrackLoss(batch.answers, len(examples), examples[:3])})
        placed = placed if options.bos is None else with_bos(placed, options.bos)
        if batch.texts is not None and self.tokenizer is not None:
            progress.spelled += self.tokenizer.spelled
        return tokens, placed


def _doubled(tokens: Ragged, eos: int | None, bos: int | None) -> int:
    """How many documents end with this eos, or begin with this bos, before they get it."""
    starts, ends = tokens.offsets[:-1], tokens.offsets[1:]
    some, given = ends > starts, ((eos, ends - 1), (bos, starts))
    return sum(int(np.count_nonzero(tokens.values[at[some]] == token)) for token, at in given if token is not None)


def _named(error: BadRow) -> dict[int, str]:
    """What is wrong with each row that an error names."""
    return dict(error.rows) or ({error.row: error.problem} if error.row >= 0 else {})


def _special_tokens(options: Options) -> SpecialTokens:
    assert options.tokenizer is not None
    return SpecialTokens(options.tokenizer, options.spelled)


def read_piece(job: ShardJob, build: Build, piece: Piece) -> Iterator[tuple[Rows, int]]:
    """The rows of a piece in batches, each with the stored bytes that it took; blank lines are skipped."""
    source, options = job.sources[piece.source], job.options
    concepts = {track: Concepts(build.options.tracks[track]) for track in options.columns.tracks}
    chat = None if options.rules is None else ChatParser(options.rules, _special_tokens(options), options.columns)
    if source.row_groups is not None:
        parse: Callable[[Any], RowBatch] = chat.parse if chat else TableParser(options.columns, concepts).parse
        size = piece_bytes(source, piece)
        count = 0
        columns = None if chat else options.columns
        ignored = options.columns.ignored
        for table, first, share in read_row_groups(source.path, piece.begin, piece.end, columns, ignored):
            consumed = int(size * share) - count
            count += consumed
            yield Rows(source.path, table, parse, range(first, first + table.num_rows), "row {}".format), consumed
        return
    read = partial(read_record, tokens=options.columns.tokens)
    parse = chat.parse if chat else partial(TableParser(options.columns, concepts).parse_records, read=read)
    end = None if source.whole else piece.end

    def name(number: int) -> str:
        return f"line {lines_before(source.path, piece.begin) + number}"

    for numbers, rows, consumed in read_blocks(source.path, source.compression, begin=piece.begin, end=end):
        yield Rows(source.path, rows, parse, numbers, name), consumed
