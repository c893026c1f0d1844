"""guidelabs/fineweb-atlas, or a folder of its shape, to a dataset: chunks become spans by SQL, and spans a track.

    python examples/atlas/convert.py data/fineweb-atlas data/atlas --tokenizer tokenizer.json

Folders and columns are those of its card of v0.1 (2026), which does not say that starts count characters (code points),
that chunk_id counts the chunks of a document from 0, and that the ids of all kinds are those of one table. The queries
check that, and count what is left without annotation. For other files change the names; to drop documents that say they
are wrong, add `WHERE NOT has_segmentation_error`; for scores, add a list `scores` beside `concepts`, and "scores": "f2"
to the parameters.
"""

import argparse
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import conceptloader as cl

KINDS = ("content", "tone", "document", "entity")
CONCEPTS = """
CREATE TABLE concept AS SELECT
  row_number() OVER (ORDER BY list_position($kinds, concept_type), concept_type, concept_id) - 1 AS number,
  CASE WHEN count(*) OVER (PARTITION BY name) = 1 THEN name
    WHEN count(*) OVER (PARTITION BY name, concept_type) = 1 THEN format('{} ({})', name, concept_type)
    ELSE format('{} ({} {})', name, concept_type, concept_id) END AS unique_name, *
FROM read_parquet($folder || '/fineweb-concept-atlas.parquet') ORDER BY number
"""
CHUNKS = """
CREATE TABLE chunk AS WITH
  given AS (FROM read_parquet($folder || '/fineweb-atlas-annotated/*.parquet')),
  place AS (SELECT doc_int_id, chunk_id, start, stop, substring(body, start + 1, stop - start) AS body FROM (
    SELECT doc_int_id, document_text AS body, unnest(range(len(chunk_char_starts))) AS chunk_id,
      unnest(chunk_char_starts) AS start,
      unnest(list_append(chunk_char_starts[2:], length(document_text))[:len(chunk_char_starts)]) AS stop
    FROM read_parquet($folder || '/fineweb-atlas-documents/*.parquet'))),
  label AS ({labels}),
  labels AS (SELECT doc_int_id, chunk_id, list_sort(list(DISTINCT number)) AS concepts,
      count(*) > count(number) AS unknown
    FROM label LEFT JOIN concept ON concept_id = id AND concept_type = kind GROUP BY ALL)
SELECT doc_int_id::VARCHAR AS id, start::BIGINT AS start, stop::BIGINT AS "end", coalesce(concepts, []) AS concepts,
  CASE WHEN chunk_text IS NULL THEN 'without a row' WHEN body IS NULL THEN 'without a place in a document'
    WHEN chunk_status <> 'ok' THEN 'of status ' || chunk_status WHEN start < 0 OR start >= stop THEN 'without text'
    WHEN regexp_replace(body, '[\\s\\pZ\\pC]', '', 'g') <> regexp_replace(chunk_text, '[\\s\\pZ\\pC]', '', 'g')
      THEN 'of another text than the document has there'
    WHEN unknown THEN 'with labels that are no concepts of their kind' ELSE 'annotated' END AS found
FROM given FULL JOIN place USING (doc_int_id, chunk_id) LEFT JOIN labels USING (doc_int_id, chunk_id)
"""
LABEL = "SELECT doc_int_id, chunk_id, '{0}' AS kind, unnest({0}_ids) AS id FROM given WHERE chunk_status = 'ok'"


def convert(folder, out, tokenizer, workers=1):
    """Make the dataset `out`, whose tokens lie in `<out>-tokens`. Returns: how many chunks there are of each state."""
    documents, tokens, rows = folder / "fineweb-atlas-documents", Path(f"{out}-tokens"), Path(f"{out}-rows.parquet")
    names = {name for path in sorted(documents.glob("*.parquet")) for name in pq.read_schema(path).names}
    ignored = sorted(names - {"document_text", "doc_int_id"})
    columns = {"text": "document_text", "id": "doc_int_id"}
    cl.build(documents, tokens, tokenizer=tokenizer, column=columns, ignore_column=ignored, workers=workers)
    with duckdb.connect(config={"temp_directory": f"{out}-spill"}) as db:
        db.execute(CONCEPTS, {"kinds": list(KINDS), "folder": str(folder)})
        labels = " UNION ALL ".join(LABEL.format(kind) for kind in KINDS)
        db.execute(CHUNKS.replace("{labels}", labels), {"folder": str(folder)})
        counts = dict(db.sql("SELECT found, count(*) FROM chunk GROUP BY found ORDER BY found").fetchall())
        db.sql("SELECT * EXCLUDE found FROM chunk WHERE found = 'annotated'").write_parquet(str(rows))
        concepts = pa.table(db.sql("FROM concept")).to_pylist()
    details = [
        {key: None if value != value else value for key, value in one.items() if key not in ("number", "unique_name")}
        for one in concepts  # NaN is no JSON
    ]
    cl.annotate(
        tokens, [rows], out, track="concepts", vocabulary=[one["unique_name"] for one in concepts], details=details,
        groups=[*Counter(one["concept_type"] for one in concepts).items()], span_unit="character",
        parameters={"ids": "u2" if len(concepts) <= 1 << 16 else "u4"},
    )  # fmt: skip
    rows.unlink()
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", required=True, help="bytes, or a byte-level tokenizer.json")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenize")
    args = parser.parse_args()
    for state, count in convert(args.folder, args.out, args.tokenizer, args.workers).items():
        print(f"{count:,} chunks {state}")
