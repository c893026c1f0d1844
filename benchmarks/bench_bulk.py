"""adopt and index beside the same bare work: numpy's and DuckDB's of the same files, with one thread.

BULK=10 makes each ten times as large: 10^7 documents or spans, which takes some minutes.
"""

import os
import shutil
import struct
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from data import ROOT
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.format.write.track import BulkSpans
from conceptloader.index.build import build_index
from conceptloader.ingest.adopt.adopt import adopt

BULK = int(os.environ.get("BULK", 1))
DOCUMENTS, EACH = 100_000 * BULK, 10
TOTAL = SHORT = DOCUMENTS * EACH
folder = ROOT / f"bulk-{BULK}"
tokens, rows, spans = folder / "megatron", folder / "spans.parquet", folder / "ds"


def make() -> None:
    """Tokens as Megatron has them; 10 spans of each document in another order, and in a dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lengths = rng.integers(60, 600, DOCUMENTS)
    ids = rng.integers(0, 50_000, lengths.sum(), np.uint16)
    places = np.append(0, np.cumsum(lengths))
    ids.tofile(f"{tokens}.bin")
    short = np.full(SHORT, len(ids) // SHORT)
    short[-1] += len(ids) - short.sum()
    with open(f"{tokens}.idx", "wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, SHORT, SHORT + 1))
        for column in (short.astype("<i4"), 2 * (np.cumsum(short) - short), np.arange(SHORT + 1)):
            column.tofile(file)
    start = (np.arange(EACH) * (lengths[:, None] // EACH)).reshape(-1)
    end = start + np.repeat(lengths // EACH, EACH)
    offsets = np.append(0, np.cumsum(rng.integers(1, 6, TOTAL))).astype(np.int32)
    labels = rng.integers(0, 1000, offsets[-1], np.uint32)
    order = rng.permutation(TOTAL)
    columns = {
        "start": start[order], "end": end[order],
        "labels": pa.ListArray.from_arrays(offsets, labels).take(order),
    }  # fmt: skip
    pq.write_table(pa.table(columns), rows)
    options = cl.writing.BuildOptions(token_type="u2", tracks={"concepts": cl.writing.TrackOptions()})
    build = cl.writing.create_writer(spans, options, plan=[0])
    base = np.repeat(places[:-1], EACH)
    found = BulkSpans(start + base, end + base, np.arange(TOTAL), labels.tobytes(), 4 * offsets.astype(np.int64))
    with build.shard(0) as writer:
        writer.add_documents(ids, places, {"concepts": found}, [""] * DOCUMENTS)
    cl.writing.finalize(spans)


def fresh(name: str) -> Path:
    shutil.rmtree(folder / name, ignore_errors=True)
    return folder / name


def index_bare() -> None:
    """Where documents begin, and checksums of both tables."""
    lengths = np.fromfile(f"{tokens}.idx", "<i4", SHORT, offset=34)
    np.append(0, np.cumsum(lengths, dtype=np.uint64)).tofile(folder / "starts")
    for path in (f"{tokens}.idx", folder / "starts"):
        xxhash.xxh3_128(Path(path).read_bytes()).digest()


def copy(query: str) -> None:
    with duckdb.connect(config={"threads": 1, "preserve_insertion_order": False}) as opened:
        opened.execute(f"COPY ({query}) TO '{folder / 'bare.parquet'}' (FORMAT parquet, COMPRESSION zstd)")


def find() -> None:
    build_index(spans, rebuild=True)


def find_bare() -> None:
    copy(
        f"""SELECT unnest(labels) AS concept, start, "end" - start AS length FROM read_parquet('{rows}')
        ORDER BY concept, start"""
    )


if __name__ == "__main__":
    if not (spans / "manifest.json").exists():
        make()
    report = Report("bulk")
    report.race(
        f"adopt: Megatron's files, {SHORT:,} documents",
        [
            Contender(US, lambda: adopt([str(tokens)], fresh("adopted")), SHORT),
            Contender("numpy: index, sum, write, checksums", index_bare, SHORT),
        ],
        unit="ns/document",
    )
    report.race(
        f"index: {TOTAL:,} spans",
        [Contender(US, find, TOTAL), Contender("duckdb: unnest, sort, copy", find_bare, TOTAL)],
        unit="us/span",
        scale=1e6,
        repeats=3,
    )
    report.finish()
