"""The join, as tasks over files: each in bounded memory, in any order, on any machine that sees the directory.

Chunks are dealt to the files of their documents (a task for each file of chunks), then each file of documents is
written once more, with its chunks as a column of spans (a task for each). DuckDB sorts and joins, on disk where that
takes more than `sql.MEMORY`. A task that has ended has a file <task>.json next to what it wrote, and is not run again.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conceptloader.base.checks import check_task
from conceptloader.base.packages import need
from conceptloader.base.workers import Tell, run_all
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.jsonfile import dump_json, load_json
from conceptloader.ingest.align.units import UNITS
from conceptloader.ingest.chunks import sql
from conceptloader.ingest.chunks.concepts import Library
from conceptloader.ingest.chunks.options import Chunks, check_columns, check_path
from conceptloader.ingest.chunks.report import EXAMPLES, Joined, require_right
from conceptloader.ingest.database import PROBLEM, database
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.table import read_objects
from conceptloader.storage.durable import completed, make_directories, write_file

PLAN = "plan.json"
_LIBRARY = "concepts.parquet"
_ROWS, _LABELS = 1 << 16, 1 << 21  # documents that get their spans at a time, and about how many labels of them


@dataclass(frozen=True)
class _TaskFile:
    report: dict[str, Any]


OnBad = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Part:
    """Task `number` of `tasks` of a stage: "ids", "deal", "join", and of a build, "write".

    Each may run on a machine of its own. All of a stage have to end before the next one; there is no use for several of
    "ids".
    """

    stage: str
    number: int
    tasks: int


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Parquet files of documents. content: column of the text, or, if `tokens`, of the tokens. keep: more columns."""

    files: Sequence[str]
    content: str
    tokens: bool = False
    keep: Sequence[str] = ()


def join_chunks(
    documents: Documents,
    chunks: Chunks,
    library: Library,
    directory: str | os.PathLike[str],
    *,
    workers: int = 1,
    part: Part | None = None,
    on_bad: OnBad | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Joined:
    """Write the documents with their chunks as spans to files in `directory`, or resume that after an interruption.

    library: the concepts of `chunks.concepts` (`load_library`). part: do only this one. on_bad: called at the end, if
    this is no part, with (file, place, what) for all that is wrong and left without annotation, whenever it was found.
    watch: called with (tasks that are done, all of them).
    Raises: InputError naming rows that contradict each other, unless `chunks.wrong` is "unannotated"; for ids that two
    documents have; ConfigError for another join in `directory`, or a part whose turn has not come.
    """
    check_task(None if part is None else (part.number, part.tasks))
    path = os.path.abspath(directory)
    check_join(documents, chunks, path)
    _plan(path, documents, chunks)
    joined = Joined([os.path.join(path, f"{k:05d}.parquet") for k in range(len(documents.files))])
    library = replace(library, details=())  # no task needs them, and only the first the others
    none = replace(library, keys=(), kinds=(), names=())
    numbers = {"ids": 1, "deal": len(chunks.files), "join": len(documents.files)}  # each needs what is before it
    done, total = 0, sum(numbers.values())
    stages: list[Task] = []
    for kind, count in numbers.items():
        known = library if kind == "ids" else none
        stage = [Task(path, documents, chunks, known, kind, number) for number in range(count)]
        missing = [task for task in stage if not os.path.exists(task.report)]
        if part is not None and missing:
            if part.stage != kind:
                raise ConfigError(
                    path,
                    f"{len(missing)} tasks of {kind!r} that are not finished",
                    f"tasks finished before {part.stage!r}",
                    "let its tasks wait for theirs",
                )
            missing = [task for task in missing if task.number % part.tasks == part.number]

        def on_end(*_: object) -> None:
            nonlocal done
            done += 1
            if watch:
                watch(done, total)

        done += len(stage) - len(missing)
        run_all(run_task, missing, workers, on_end)
        if part is not None and part.stage == kind:
            return joined
        for task in stage:
            report = load_json(task.report).parse(_TaskFile).report
            require_right(report, chunks.wrong)
            joined.add(report)
        stages += stage
    if part is None and on_bad is not None:
        for task in stages:
            for _, row in read_objects(task.listing) if os.path.exists(task.listing) else ():
                on_bad(task.file, row["place"], row["what"])
    return joined


def check_join(documents: Documents, chunks: Chunks, path: str) -> None:
    """All that can be known before anything is written to `path`, or removed. Raises: ConfigError, InputError."""
    need("duckdb", PROBLEM)
    if chunks.span_unit is not None and (chunks.span_unit == "token") != documents.tokens:
        units = "token for documents of tokens" if documents.tokens else "character, utf16 or byte for text"
        raise ConfigError("chunks: span_unit", repr(chunks.span_unit), units, "name one of these (--span-unit)")
    for file in [*documents.files, path]:
        check_path(file)
    wanted = [chunks.join, documents.content, chunks.starts, chunks.damaged, *documents.keep]
    check_columns(chunks, documents.files, wanted)
    if not os.path.exists(os.path.join(path, PLAN)) and _visible(path):
        raise ConfigError(
            path, f"files but no {PLAN}", "an empty directory for the join", f"move the files out of {path}"
        )


def _visible(path: str) -> list[str]:
    """What is in a directory, but for files of locks and of file systems."""
    return [name for name in os.listdir(path) if not name.startswith(".")] if os.path.isdir(path) else []


@dataclass(frozen=True)
class Task:
    """A part of the join in `directory`; number: of the file of chunks ("deal") or of documents ("join")."""

    directory: str
    documents: Documents
    chunks: Chunks
    library: Library
    kind: str
    number: int

    @property
    def report(self) -> str:
        return os.path.join(self.directory, f"{self.kind}-{self.number:05d}.json")

    @property
    def listing(self) -> str:
        """A file with all that is wrong, if there is anything."""
        return os.path.join(self.directory, f"{self.kind}-{self.number:05d}.wrong.parquet")

    @property
    def file(self) -> str:
        return (self.chunks.files if self.kind == "deal" else self.documents.files)[self.number]


def run_task(task: Task, tell: Tell) -> None:
    """Raises: InputError, ReadError."""

    def failed(problem: str) -> InputError:
        fix = "check the types of the columns, and the disk"
        if problem.startswith("Out of Memory"):
            fix = f"write {task.file} as several files, of fewer rows each"
        return InputError(task.file, f"cannot be joined: {problem}", fix=fix)

    with database(task.directory, sql.MEMORY, failed) as opened:
        report = {"ids": _ids, "deal": _deal, "join": _join}[task.kind](task, opened)
    write_file(task.report, dump_json({"report": report}))


def _plan(path: str, documents: Documents, chunks: Chunks) -> None:
    """The join in `path` is this one."""
    make_directories(path)
    name = os.path.join(path, PLAN)
    inputs = [source.to_json() for source in find_sources([*documents.files, *chunks.files, chunks.concepts.path])]
    options = {key: value for key, value in chunks.to_json().items() if key != "wrong"}  # all that ended is as without
    asked = {"inputs": inputs, "chunks": options, "content": documents.content, "keep": list(documents.keep)}
    data = dump_json({"plan": asked})
    if not write_file(name, data, exclusive=True):
        with open(name, "rb") as file:
            if file.read() != data:
                raise ConfigError(
                    path,
                    "the join of other files or options",
                    "a join of the same files and options",
                    f"run `rm -r {path}`, or pass another --out",
                )


def discard_join(path: str) -> None:
    """Remove the join in `path`, if there is one: its plan last, so that after a SIGKILL this can be done again.

    Raises: FormatError if that is not conceptloader's.
    """
    plan = os.path.join(path, PLAN)
    if not os.path.exists(plan):
        return
    load_json(plan)
    for name in set(_visible(path)) - {PLAN}:
        entry = os.path.join(path, name)
        if os.path.isdir(entry):
            shutil.rmtree(entry, ignore_errors=True)  # what stays of it, nobody needs
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry)
    if _visible(path) == [PLAN]:
        os.unlink(plan)
        shutil.rmtree(path, ignore_errors=True)


def _ids(task: Task, opened: Any) -> dict[str, Any]:
    """The file of each document's id. A join finds it there, in memory or on disk. And the concepts."""
    sql.library(task.library, os.path.join(task.directory, _LIBRARY))
    parts = " UNION ALL ".join(
        f"SELECT {sql.identity(task.chunks)} AS id, {k} AS file FROM read_parquet({sql.text(path)})"
        for k, path in enumerate(task.documents.files)
    )
    _copy(opened, parts, os.path.join(task.directory, "ids.parquet"))
    twice = opened.execute(
        f"SELECT id, count(*) FROM read_parquet({_ids_of(task)}) GROUP BY id HAVING count(*) > 1 OR id IS NULL LIMIT 1"
    ).fetchone()
    if twice:
        raise InputError(
            f"{task.documents.files[0]} (of {len(task.documents.files)} files)",
            f"{task.chunks.join} {twice[0]!r} of {twice[1]} documents",
            "ids of one document each",
            "chunks cannot be distinguished",
        )
    return {"wrong": {}, "examples": []}


def _deal(task: Task, opened: Any) -> dict[str, Any]:
    """The chunks of one file, by file of their documents."""
    path = task.file
    opened.execute(sql.chunks(task.chunks, path))
    where = f"LEFT JOIN read_parquet({_ids_of(task)}) ids USING (id)"
    total = opened.execute("SELECT count(*) FROM chunks").fetchone()[0]
    place = f"format('row {{}}: {{}} {{}}', row, {sql.text(task.chunks.join)}, id)"
    lost = f"SELECT 'chunks without a document' AS what, {place} AS place, row, 0 AS number FROM chunks {where}"
    report = _report(task, opened, f"({lost} WHERE ids.file IS NULL)")
    target = os.path.join(task.directory, f"deal-{task.number:05d}")
    shutil.rmtree(target, ignore_errors=True)
    opened.execute(
        f"COPY (SELECT chunks.*, ids.file FROM chunks {where} WHERE ids.file IS NOT NULL) TO {sql.text(target)} "
        "(FORMAT parquet, COMPRESSION lz4_raw, PARTITION_BY (file))"
    )
    return {**report, "chunks": total}


def _join(task: Task, opened: Any) -> dict[str, Any]:
    """One file of documents with the spans that its chunks are."""
    chunks, path = task.chunks, task.file
    dealt = [os.path.join(task.directory, f"deal-{j:05d}", f"file={task.number}") for j in range(len(chunks.files))]
    opened.execute(sql.dealt([name for name in dealt if os.path.isdir(name)], chunks))
    concepts = os.path.join(task.directory, _LIBRARY)
    cut = partial(_in_characters, chunks.span_unit)
    opened.create_function(sql.IN_CHARACTERS, cut, ["VARCHAR", "BIGINT[]"], "BIGINT[]")
    for statement in sql.matched(task.documents.content, task.documents.tokens, chunks, path, concepts):
        opened.execute(statement)
    report = _report(task, opened, "wrong")
    columns = [chunks.join, task.documents.content, *(name for name in task.documents.keep if name != chunks.join)]
    target = os.path.join(task.directory, f"{task.number:05d}.parquet")
    count = "SELECT count(*) FROM"
    (rows,) = opened.execute(f"{count} read_parquet({sql.text(path)})").fetchone()
    opened.execute("SET preserve_insertion_order = true")
    # Some rows after the others: in its memory DuckDB can neither sort a large file nor gather the lists of all of it.
    (labels,) = opened.execute(f"{count} labels").fetchone()
    step = max(1, min(_ROWS, rows * _LABELS // max(1, labels)))
    for first in range(0, max(1, rows), step):
        found = sql.spans(columns, path, bool(chunks.scores), first, first + step)
        opened.execute(f"INSERT INTO joined {found}" if first else f"CREATE TEMP TABLE joined AS {found}")
    _copy(opened, "FROM joined", target)
    by_status = opened.execute("SELECT status, count(*) FROM matched WHERE NOT annotated GROUP BY 1").fetchall()
    return {
        **report,
        "annotated": opened.execute(f"{count} good").fetchone()[0],
        "damaged": opened.execute(f"{count} flagged").fetchone()[0],
        "missing": opened.execute(f"{count} cut ANTI JOIN chunks USING (id, number)").fetchone()[0],
        "by_status": {str(status): number for status, number in by_status},
    }


def _in_characters(unit: str | None, text: str, offsets: list[int]) -> list[int]:
    """Offsets in characters, from those in `unit`; -1 for one that is outside of the text or inside of a character."""
    kind = UNITS[unit or "character"]
    return [-1 if (cut := kind.cut(text, 0, offset)) is None else len(cut) for offset in offsets]


def _report(task: Task, opened: Any, table: str) -> dict[str, Any]:
    """Counts and examples of what is wrong in a file. Raises: InputError if that is not allowed."""
    counts = dict(opened.execute(f"SELECT what, count(*) FROM {table} GROUP BY 1 ORDER BY 1").fetchall())
    if not counts:
        return {"wrong": {}, "examples": []}
    listed = f"SELECT place, what FROM {table} ORDER BY row, number, what"
    found = opened.execute(f"{listed} LIMIT {EXAMPLES}").fetchall()
    examples = [f"{task.file}: {place}: {what}" for place, what in found]
    report = {"wrong": counts, "examples": examples}
    require_right(report, task.chunks.wrong)
    _copy(opened, listed, task.listing)
    return report


def _ids_of(task: Task) -> str:
    return str(sql.text(os.path.join(task.directory, "ids.parquet")))


def _copy(opened: Any, query: str, path: str) -> None:
    """The rows of a query as a parquet file, which is whole once it has its name."""
    with completed(path) as temporary:
        opened.execute(
            f"COPY ({query}) TO {sql.text(temporary)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192)"
        )
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
