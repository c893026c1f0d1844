"""The queries of the join. Tables: chunks (a row each), cut (a document's boundaries), matched (both), wrong, good."""

from collections.abc import Sequence

import numpy as np

from conceptloader.ingest.chunks.concepts import Library
from conceptloader.ingest.chunks.options import Chunks

# What a chunk's text may have lost at its ends: all that Python's str.strip takes away.
_SPACES = "".join(rf"\x{{{code:x}}}" for code in range(0x3001) if chr(code).isspace())
MEMORY = "1GB"  # of a process
IN_CHARACTERS = "in_characters"  # the function that makes offsets in characters of a text's others


def text(value: str) -> str:
    """A literal."""
    return "'" + value.replace("'", "''") + "'"


def name(column: str) -> str:
    """An identifier."""
    return '"' + column.replace('"', '""') + '"'


def identity(options: Chunks) -> str:
    """A document's id, as text in all files: DuckDB would take 007 for 7."""
    return f"{name(options.join)}::VARCHAR"


def chunks(options: Chunks, path: str) -> str:
    """The wanted columns of a file of chunks under our names."""
    columns = [f"{identity(options)} AS id", "file_row_number AS row"]
    columns += [f"{name(options.status)} AS status" if options.status else "NULL::VARCHAR AS status"]
    columns += [f"{_stripped(name(options.text))} AS text" if options.text else "NULL::UBIGINT AS text"]
    for ours, theirs in (("number", options.number), ("start", options.start), ("stop", options.end)):
        columns += [f"{name(theirs) if theirs else 'NULL'}::BIGINT AS {ours}"]
    columns += [f"{name(column)} AS {name(f'{kind}_labels')}" for kind, column in options.labels.items()]
    columns += [f"{name(column)}::DOUBLE[] AS {name(f'{kind}_scores')}" for kind, column in options.scores.items()]
    return (
        f"CREATE TEMP VIEW chunks AS SELECT {', '.join(columns)} FROM read_parquet({text(path)}, file_row_number=true)"
    )


def dealt(directories: Sequence[str], options: Chunks) -> str:
    """The chunks of one file of documents; those without a number are numbered by where they begin."""
    some = ", ".join(text(f"{path}/*.parquet") for path in directories)
    number = "number" if options.starts else "row_number() OVER (PARTITION BY id ORDER BY start, stop) - 1"
    if some:
        source = f"read_parquet([{some}], hive_partitioning=false)"
    else:
        columns = ["NULL::VARCHAR AS id", *(f"0::BIGINT AS {key}" for key in ("number", "start", "stop"))]
        columns += ["'' AS status", "0::UBIGINT AS text"]
        columns += [f"[] AS {name(f'{kind}_labels')}" for kind in options.labels]
        columns += [f"[]::DOUBLE[] AS {name(f'{kind}_scores')}" for kind in options.scores]
        source = f"(SELECT {', '.join(columns)} WHERE false)"
    return f"CREATE TEMP TABLE chunks AS SELECT * REPLACE ({number} AS number) FROM {source}"


def library(concepts: Library, path: str) -> None:
    """Write what `matched` reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = pa.array(concepts.keys)
    ids = pa.array(range(len(keys)), pa.uint32())
    pq.write_table(pa.table({"key": keys, "kind": pa.array(concepts.kinds, pa.string()), "concept": ids}), path)


def matched(content: str, tokens: bool, options: Chunks, path: str, concepts: str) -> list[str]:
    """Statements that find out which chunks of one file of documents are annotated as they should be.

    concepts: file that `library` wrote.
    """
    size = f"len({name(content)})" if tokens else f"length({name(content)})"
    starts = f"coalesce({name(options.starts)}, [])" if options.starts else "[]"
    other = options.span_unit not in (None, "character", "token")
    if other and options.starts:
        starts = f"{IN_CHARACTERS}({name(content)}, {starts}::BIGINT[])"
    documents = (
        f"SELECT file_row_number AS row, {identity(options)} AS id, {name(content)} AS content, {size} AS size, "
        f"{starts} AS starts FROM read_parquet({text(path)}, file_row_number=true)"
    )
    below = "false"
    compared = _stripped("substring(content, start + 1, stop - start)") if options.text else "NULL::UBIGINT"
    if options.starts:
        borders = (
            "SELECT *, unnest(range(len(starts))) AS number, unnest(starts)::BIGINT AS start, "
            f"unnest(list_append(starts[2:], size)[:len(starts)])::BIGINT AS stop FROM ({documents})"
        )
    else:
        borders = f"SELECT d.*, number, start, stop FROM chunks JOIN ({documents}) d USING (id)"
        if other:
            places = f"{IN_CHARACTERS}(content, [start, stop])"
            borders = f"SELECT * REPLACE ({places}[1] AS start, {places}[2] AS stop) FROM ({borders})"
        below = "start < lag(stop) OVER (PARTITION BY row ORDER BY number)"
    cut = f"SELECT row, id, size, number, start, stop, {compared} AS text FROM ({borders})"
    fine = " OR ".join(f"status = {text(value)}" for value in options.annotated) if options.status else "true"
    labels = {kind: name(f"{kind}_labels") for kind in options.labels}
    scores = {kind: name(f"{kind}_scores") for kind in options.scores}
    odd = {kind: f"coalesce(len({labels[kind]}), 0) <> coalesce(len({column}), 0)" for kind, column in scores.items()}
    label = " UNION ALL ".join(
        f"SELECT row, number, {text(kind)} AS kind, unnest({column}) AS key, "
        f"{f'unnest({scores[kind]})' if scores else 'NULL'} AS score FROM matched "
        f"WHERE annotated AND NOT ({odd.get(kind, 'false')})"
        for kind, column in labels.items()
    )
    highest = float(np.finfo(np.dtype(options.score_type)).max)
    leave_out = "true" if options.damaged_documents == "unannotated" else "false"
    place = "format('row {}: {} {}, chunk {}', row, " + text(options.join) + ", id, number)"
    document = "format('row {}: {} {}', row, " + text(options.join) + ", id)"
    return [
        f"CREATE TEMP TABLE cut AS {cut}",
        "CREATE TEMP TABLE crooked AS SELECT DISTINCT row, id FROM (SELECT row, id, start IS NULL OR start < 0 OR "
        f"start >= stop OR stop > size OR {below} AS found FROM cut) WHERE found",
        "CREATE TEMP TABLE matched AS SELECT cut.row, cut.id, cut.number, cut.start, cut.stop, chunks.status, "
        f"coalesce({fine}, false) AS annotated, cut.text IS DISTINCT FROM chunks.text AS other, "
        "count(*) OVER (PARTITION BY cut.row, cut.number) AS times, "
        + ", ".join(f"chunks.{column}" for column in [*labels.values(), *scores.values()])
        + " FROM cut JOIN chunks USING (id, number)",
        "CREATE TEMP TABLE labels AS SELECT l.row, l.number, l.kind, l.key, l.score, library.concept, "
        "library.kind AS found "
        f"FROM ({label}) l LEFT JOIN read_parquet({text(concepts)}) library USING (key)",
        f"CREATE TEMP TABLE wrong AS "
        f"SELECT row, -1 AS number, 'documents whose chunks do not follow each other' AS what, {document} AS place "
        "FROM crooked "
        f"UNION ALL SELECT -1, number, 'chunks beyond those of their document', format('{{}} {{}}, chunk {{}}', "
        f"{text(options.join)}, id, number) FROM chunks ANTI JOIN cut USING (id, number) "
        f"UNION ALL SELECT row, number, 'chunks of two rows', {place} FROM matched WHERE times > 1 GROUP BY ALL "
        f"UNION ALL SELECT row, number, 'chunks with another text than the document has there', {place} FROM matched "
        "WHERE other AND annotated AND times = 1 AND row NOT IN (SELECT row FROM crooked) "
        "UNION ALL SELECT DISTINCT l.row, l.number, 'chunks with labels that are no concepts of their kind', "
        "format('row {}: chunk {}, {} {}', l.row, l.number, l.kind, coalesce(l.key::VARCHAR, 'null')) FROM labels l "
        "WHERE concept IS NULL OR found <> kind"
        + "".join(
            f" UNION ALL SELECT row, number, 'chunks with another number of scores than of labels', format("
            f"'row {{}}: chunk {{}}, {{}}: {{}} scores of {{}} labels', row, number, {text(kind)}, "
            f"coalesce(len({scores[kind]}), 0), coalesce(len({labels[kind]}), 0)) FROM matched "
            f"WHERE annotated AND {condition}"
            for kind, condition in odd.items()
        )
        + (
            f" UNION ALL SELECT DISTINCT row, number, 'chunks with scores that are no finite {options.score_type}', "
            "format('row {}: chunk {}, {} {}: {}', row, number, kind, key::VARCHAR, coalesce(score::VARCHAR, 'null')) "
            f"FROM labels WHERE (abs(score) <= {highest}) IS NOT TRUE"
            if scores
            else ""
        ),
        f"CREATE TEMP TABLE flagged AS SELECT file_row_number AS row FROM read_parquet({text(path)}, "
        f"file_row_number=true) WHERE {name(options.damaged) if options.damaged else 'false'}",
        f"DELETE FROM wrong WHERE {leave_out} AND row IN (SELECT row FROM flagged)",
        "CREATE TEMP TABLE good AS SELECT m.row, m.number, m.start, m.stop FROM matched m "
        "ANTI JOIN (SELECT row, number FROM wrong) w ON m.row = w.row AND (w.number = m.number OR w.number = -1) "
        f"WHERE m.annotated AND NOT ({leave_out} AND m.row IN (SELECT row FROM flagged))",
    ]


def spans(columns: Sequence[str], path: str, scores: bool, first: int, stop: int) -> str:
    """The documents in rows [first, stop), in their order, with their spans."""
    wanted = ", ".join(f"d.{name(column)}" for column in columns)
    labels, more = f"FROM labels WHERE row >= {first} AND row < {stop}", ""
    found = f"list_sort(list(DISTINCT concept)) AS concepts {labels}"
    if scores:
        found = "list(concept ORDER BY concept) AS concepts, list(score ORDER BY concept) AS scores FROM "
        found += f"(SELECT row, number, concept, max(score) AS score {labels} GROUP BY ALL)"
        more = ', "scores": coalesce(scores, [])'
    return (
        f"WITH ids AS (SELECT row, number, {found} GROUP BY ALL), "
        'pieces AS (SELECT row, list({"start": start::INTEGER, "end": stop::INTEGER, "concepts": coalesce(concepts, [])'
        f"{more}}} ORDER BY number) AS spans FROM good LEFT JOIN ids USING (row, number) "
        f"WHERE row >= {first} AND row < {stop} GROUP BY row) "
        f"SELECT {wanted}, coalesce(spans, []) AS spans FROM read_parquet({text(path)}, file_row_number=true) d "
        f"LEFT JOIN pieces ON pieces.row = d.file_row_number WHERE d.file_row_number >= {first} "
        f"AND d.file_row_number < {stop} ORDER BY d.file_row_number"
    )


def _stripped(value: str) -> str:
    """A hash of a text without the whitespace at its ends. Anchored patterns: `trim` reads the whole text for that."""
    return f"hash(regexp_replace(regexp_replace({value}, '^[{_SPACES}]+', ''), '[{_SPACES}]+\\z', ''))"
