"""New tracks over existing tokens, against a brute-force account of which token belongs to which record."""

import gzip
import json
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from conceptloader.errors import InputError, ReadError
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.database import database, load
from tests.corpora.small import written
from tests.raises import raises

Rows = list[dict[str, Any]]


def build(path, shards):
    """Documents of tokens in shards; ids are d0, d1, ... through all of them."""
    number = count()
    return written(path, *([(tokens, {}, f"d{next(number)}") for tokens in documents] for documents in shards))


def write_rows(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_little_memory(tmp_path):
    """Too little is an error that leaves nothing; what does not fit goes to files, which are removed."""
    build(tmp_path / "ds", [[[1, 2]]])
    rows = write_rows(tmp_path / "rows.jsonl", [{"id": "d1", "concepts": [7]}])
    with raises(ReadError, "out", "Out of Memory", fix="--sort-memory"):
        annotate(tmp_path / "ds", [rows], tmp_path / "out", track="c", sort_memory=1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "rows.jsonl"]
    with (
        raises(InputError, found="no such"),
        database(str(tmp_path), "24MB", lambda _: InputError("", "no such")) as db,
    ):
        load(db, "numbers", "n BIGINT", [[np.arange(1_000_000)[::-1]]])
        db.execute("CREATE TABLE sorted AS SELECT n, hash(n) AS h FROM numbers ORDER BY n")
        assert list(tmp_path.glob(".spill.*/*")), db.sql("FROM duckdb_temporary_files()")
        db.execute("FROM nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "rows.jsonl"]
