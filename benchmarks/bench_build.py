"""Building from tokens that are there: parquet in, dataset out, beside plain writes of the same bytes and memcpy."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import DOCUMENT, ROOT
from harness import US, Contender, Report

import conceptloader as cl
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.inputs import find_sources

FILES, DOCUMENTS = 8, 24_000  # documents of a file: 270 MB of tokens in all

tokens = np.random.default_rng(0).integers(0, 50_000, (DOCUMENTS, DOCUMENT), dtype=np.uint16)
target, folder = ROOT / "built", ROOT / "tokens"
total = FILES * tokens.nbytes


def parquet():
    """Files of tokens, and the same with a span of 5 concepts a document."""
    for name in ("bare", "spans"):
        path = folder / name
        path.mkdir(parents=True, exist_ok=True)
        columns = {"tokens": pa.array(list(tokens))}
        if name == "spans":
            columns["spans"] = pa.array([[{"start": 0, "end": DOCUMENT, "concepts": [1, 2, 3, 4, 5]}]] * DOCUMENTS)
        for k in range(FILES):
            if not (path / f"{k}.parquet").exists():
                pq.write_table(pa.table(columns), path / f"{k}.parquet", compression="none", use_dictionary=False)


def build(name, workers):
    shutil.rmtree(target, ignore_errors=True)
    columns = Columns(text=None, tokens="tokens", tracks={"concepts": "spans"} if name == "spans" else {})
    options = Options(columns=columns, vocab_size=50_000, no_eos=True)
    build_dataset(find_sources([folder / name]), target, options, workers=workers)


def write_arrays(at_once):
    """The same with a writer in one's own program, from memory; so many documents a call."""
    shutil.rmtree(target, ignore_errors=True)
    handle = cl.writing.create_writer(target, cl.writing.BuildOptions(token_type="u2"), plan=list(range(FILES)))
    offsets = np.arange(at_once + 1) * DOCUMENT
    for shard in range(FILES):
        with handle.shard(shard) as writer:
            for k in range(0, DOCUMENTS, at_once):
                if at_once == 1:
                    writer.add_document(tokens[k])
                else:
                    writer.add_documents(tokens[k : k + at_once].reshape(-1), offsets, {}, [""] * at_once)
    cl.writing.finalize(target)


def read_parquet():
    """What reading the input takes, in one thread and batch by batch as a build reads it."""
    for k in range(FILES):
        with pq.ParquetFile(folder / "bare" / f"{k}.parquet") as file:
            for _ in file.iter_batches(batch_size=4096, use_threads=False):
                pass


def write_plain():
    with open(ROOT / "plain", "wb") as file:
        for _ in range(FILES):
            file.write(memoryview(tokens).cast("B"))
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":  # the workers import this file
    parquet()
    report = Report("build")
    report.race(
        "pre-tokenized documents of 700 tokens",
        [
            Contender(US, lambda: build("bare", 1), total, wall=True),
            Contender("conceptloader, 2 workers", lambda: build("bare", 2), total, wall=True),
            Contender("conceptloader, with spans", lambda: build("spans", 1), total, wall=True),
            Contender("conceptloader, with spans, 2 workers", lambda: build("spans", 2), total, wall=True),
            Contender("conceptloader, arrays: 1,000 a call", lambda: write_arrays(1000), total, wall=True),
            Contender("conceptloader, arrays: 1 a call", lambda: write_arrays(1), total, wall=True),
            Contender("pyarrow: read the parquet files", read_parquet, total, wall=True),
            Contender("write + fsync of the same bytes", write_plain, total, wall=True),
            Contender("memcpy", lambda: [tokens.copy() for _ in range(FILES)], total, wall=True),
        ],
        unit="ns/byte",
        repeats=3,
    )
    report.finish()
