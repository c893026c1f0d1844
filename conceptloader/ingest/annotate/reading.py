"""The rows of input files, as batches of annotations: one file after the other, or several at once by processes."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from conceptloader.base.packages import need
from conceptloader.base.workers import Tell, run_tasks
from conceptloader.errors import InputError
from conceptloader.format.spec.codecs import get_codec
from conceptloader.ingest.annotate.columns import BatchParser
from conceptloader.ingest.annotate.join import as_batch, found_batch, schema
from conceptloader.ingest.annotate.options import AnnotateOptions
from conceptloader.ingest.database import PROBLEM
from conceptloader.ingest.records.inputs import Source
from conceptloader.ingest.records.lines import read_blocks
from conceptloader.ingest.records.records import read_record
from conceptloader.ingest.records.table import read_row_groups, rows_of
from conceptloader.ingest.records.vocabulary import Concepts
from conceptloader.storage.reads import named

OnBad = Callable[[str, str, str], None]
_Row = tuple[int, Mapping[str, Any]]  # its number, see `Source.row_name`
_BATCH_BYTES = 16 << 20
_WORTH = 8 << 20  # bytes of files that take longer than processes take to start


class Rows:
    """The annotations of files, or of the first rows of each, as batches of `Annotations`.

    workers: processes that read a file each. bad: how many rows were skipped. unseen: of the columns that were named,
    those that no row has had.
    """

    def __init__(
        self, sources: Sequence[Source], options: AnnotateOptions, on_bad: OnBad | None, first: float = math.inf,
        workers: int = 1,
    ) -> None:  # fmt: skip
        track = options.check()
        codec = get_codec(options.codec, options.parameters or {}, f"track {options.track!r}")
        concepts = Concepts(track) if track.codec == "concepts" else None
        self._sources, self._options, self._on_bad, self._workers = sources, options, on_bad, workers
        self._parser = BatchParser(codec, concepts, options.ignored, options.columns)
        self._first = None if first == math.inf else int(first)
        self.bad = 0

    @property
    def unseen(self) -> set[str]:
        return self._parser.unseen

    def batches(self, directory: str) -> Iterator[Any]:
        """All of them, in the order of the files. directory: for what workers read, until it is taken from there."""
        if self._workers > 1 and len(self._sources) > 1 and sum(one.size for one in self._sources) >= _WORTH:
            yield from self._of_workers(directory)
        else:
            for k in range(len(self._sources)):
                yield from self.of(k)

    def _of_workers(self, directory: str) -> Iterator[Any]:
        def end(_: int, unseen: set[str], error: Exception | None) -> None:
            if error is not None:
                raise error
            self._parser.unseen &= unseen

        task = partial(_read_file, directory, self._sources, self._options, self._on_bad is not None)
        numbers = range(len(self._sources))
        run_tasks(task, numbers, self._workers, lambda *_: None, end)
        for rows, bad in (_paths(directory, k) for k in numbers):
            with open(bad, encoding="utf-8") as lines:
                for line in lines:
                    self._report(*json.loads(line))
            with open(rows, "rb") as file, need("pyarrow", PROBLEM).ipc.open_stream(file) as batches:
                yield from batches
            os.remove(rows)
            os.remove(bad)

    def of(self, k: int) -> Iterator[Any]:
        """Those of a file."""
        source = self._sources[k]
        yield from self._lines(k) if source.row_groups is None else self._batches(k, source, len(source.row_groups))
        source.check_unchanged()

    def _lines(self, k: int) -> Iterator[Any]:
        """Of a file of lines, a block of about a MiB at a time: what can be by columns, and the other rows."""
        source, left = self._sources[k], self._first
        for numbers, lines, _ in read_blocks(source.path, source.compression, self._options.max_line_bytes):
            rows, bad = list[_Row](), list[tuple[int, str]]()
            for number, line in islice(zip(numbers, lines, strict=True), left):
                try:
                    rows.append((number, read_record(line)))
                except ValueError as error:
                    bad.append((number, str(error)))
            table = self._parser.batch_of([row for _, row in rows])
            if table is not None:
                found, odd = self._parser.parse_batch(table)
                for one in found:
                    yield found_batch(one, k, np.array([number for number, _ in rows])[one.row])
                rows = [rows[i] for i in np.flatnonzero(odd).tolist()]
            yield from self._singly(k, rows, bad)
            if left is not None and (left := left - len(numbers)) <= 0:
                break

    def _batches(self, k: int, source: Source, groups: int) -> Iterator[Any]:
        """Of a parquet file: what can be by columns, and the other rows."""
        ignored, numbers = self._parser.ignored, self._parser.values
        for table, first, _ in read_row_groups(source.path, 0, groups, None, ignored, numbers):
            if self._first is not None and first >= self._first:
                break
            some = table if self._first is None else table.slice(0, self._first - first)
            found, odd = self._parser.parse_batch(some)
            for one in found:
                yield found_batch(one, k, first + one.row)
            yield from self._singly(k, rows_of(source.path, some, np.flatnonzero(odd), first), [])

    def _singly(self, k: int, rows: Iterable[_Row], bad: list[tuple[int, str]]) -> Iterator[Any]:
        """Of some rows of a file; what is wrong with them is reported at the end, in order with the rows in `bad`."""
        source, found, size = self._sources[k], list[tuple[Any, ...]](), 0
        for number, row in rows:
            try:
                document, external, spans, content = self._parser.parse(row)
            except ValueError as error:
                bad.append((number, str(error)))
                continue
            for part, (start, stop, record, own) in enumerate(spans):
                found.append((document, external, start, stop, k, number, part, content, record, own))
                size += len(record) + len(own or "") + 150
            if size > _BATCH_BYTES:
                yield as_batch([*zip(*found, strict=True)])
                found, size = [], 0
        for number, problem in sorted(bad):
            if self._on_bad is None:
                raise InputError.saying(source.row_name(number), problem)
            self._report(source.path, source.row_name(number).removeprefix(f"{source.path}: "), problem)
        if found:
            yield as_batch([*zip(*found, strict=True)])

    def _report(self, *bad: str) -> None:
        assert self._on_bad is not None
        self._on_bad(*bad)
        self.bad += 1


def _read_file(
    directory: str, sources: Sequence[Source], options: AnnotateOptions, skip: bool, k: int, tell: Tell
) -> set[str]:
    """Write the batches of a file, and its bad rows, to two in `directory`. Returns: the columns that were not seen."""
    kept, listed = _paths(directory, k)
    with (
        named(directory, "written"),
        open(listed, "w", encoding="utf-8") as bad,
        need("pyarrow", PROBLEM).ipc.new_stream(kept, schema()) as file,
    ):
        rows = Rows(sources, options, (lambda *one: print(json.dumps(one), file=bad)) if skip else None)
        for batch in rows.of(k):
            file.write(batch)
            tell(None)  # which ends this process if its parent is gone
    return rows.unseen


def _paths(directory: str, k: int) -> tuple[str, str]:
    return os.path.join(directory, f"rows-{k}.arrow"), os.path.join(directory, f"bad-{k}.jsonl")
