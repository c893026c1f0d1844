"""A track from 10^6 annotations in another order than the documents, and all checks of a dataset's ids.

Beside the bare work: DuckDB's join, sort and copy of the same parquet file, and a plain read of it.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import ROOT
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.format.tools.verify import verify
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.annotate.options import AnnotateOptions

DOCUMENTS, EACH, SHARDS = 100_000, 10, 8
TOTAL = DOCUMENTS * EACH
folder = ROOT / "annotate"
source, spans, lines, ids, target = (
    folder / name for name in ("ds", "spans.parquet", "spans.jsonl", "ids.parquet", "out")
)


def make() -> None:
    shutil.rmtree(folder, ignore_errors=True)
    rng, number = np.random.default_rng(0), 0
    lengths = rng.integers(60, 600, DOCUMENTS)
    options = cl.writing.BuildOptions(token_type="u2", tokenizer=cl.writing.Tokenizer(name="random", vocab_size=50_000))
    build = cl.writing.create_writer(source, options, plan=list(range(SHARDS)))
    names = [f"document-{number:08d}" for number in range(DOCUMENTS)]
    for shard in range(SHARDS):
        with build.shard(shard) as writer:
            for number in range(shard * DOCUMENTS // SHARDS, (shard + 1) * DOCUMENTS // SHARDS):
                writer.add_document(rng.integers(0, 50_000, lengths[number]), id=names[number])
    cl.writing.finalize(source)
    order = rng.permutation(TOTAL)
    document, slot = order // EACH, order % EACH
    start = slot * (lengths[document] // EACH)
    end = start + 1 + (rng.random(TOTAL) * (lengths[document] // EACH - 1)).astype(np.int64)
    offsets = np.append(0, np.cumsum(rng.integers(1, 6, TOTAL))).astype(np.int32)
    concepts = pa.ListArray.from_arrays(offsets, rng.integers(0, 1000, offsets[-1]))
    table = {"id": pa.array(names).take(document), "start": start, "end": end, "concepts": concepts}
    pq.write_table(pa.table(table), spans)
    with open(lines, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in pa.table(table).to_pylist())
    pq.write_table(pa.table({"id": names, "number": np.arange(DOCUMENTS)}), ids)


def ours(file: Path = spans) -> None:
    shutil.rmtree(target, ignore_errors=True)
    annotate(source, [file], target, AnnotateOptions(track="concepts", span_unit="token"))


def bare() -> None:
    with duckdb.connect(config={"threads": 1, "preserve_insertion_order": False}) as opened:
        opened.execute(
            f"COPY (SELECT number, start, \"end\", concepts FROM read_parquet('{spans}') JOIN read_parquet('{ids}') "
            f"USING (id) ORDER BY number) TO '{folder / 'sorted.parquet'}' (FORMAT parquet)"
        )


def parse() -> None:
    with open(lines) as file:
        for line in file:
            json.loads(line)


def read() -> None:
    with pq.ParquetFile(spans) as file:
        for _ in file.iter_batches(use_threads=False):
            pass


def peak(function: str) -> float:
    """MB of a process of its own."""
    done = subprocess.run([sys.executable, __file__, function], check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


if __name__ == "__main__":
    if sys.argv[1:]:
        {"ours": ours, "bare": bare}[sys.argv[1]]()
        # Not ru_maxrss, which counts what the parent had when it forked.
        sys.exit(print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1e3))
    if not lines.exists():
        make()
    report = Report("annotate")
    report.race(
        "10^6 annotations of 10^5 documents, from parquet in another order",
        [
            Contender(US, ours, TOTAL),
            Contender("duckdb: join, sort, copy", bare, TOTAL),
            Contender("pyarrow: read", read, TOTAL),
            Contender("conceptloader, from JSONL", lambda: ours(lines), TOTAL),
            Contender("json: parse the lines", parse, TOTAL),
        ],
        unit="us/annotation",
        scale=1e6,
        repeats=5,
    )
    report.fact("memory, 10^6 annotations", US, peak("ours"), "MB")
    report.fact("memory, 10^6 annotations", "duckdb: join, sort, copy", peak("bare"), "MB")
    path = ROOT / "ids"
    if not (path / "manifest.json").exists():
        build = cl.writing.create_writer(path, cl.writing.BuildOptions(), plan=[0])
        with build.shard(0) as writer:
            for number in range(200_000):
                writer.add_document([1], id=f"https://example.org/crawl/{number:09d}")
        cl.writing.finalize(path)
    checks = [Contender(US, lambda: verify(path, full=True), 200_000)]
    report.race("verify --full, documents of a token with ids of 35 bytes", checks, unit="us/document", scale=1e6)
    report.finish()
