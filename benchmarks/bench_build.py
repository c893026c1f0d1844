"""Building from tokens that are there: parquet in, dataset out, beside reading it and writing the same bytes."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import DOCUMENT, ROOT, VOCABULARY
from harness import US, Contender, Report

import conceptloader as cl

FILES, DOCUMENTS = 8, 24_000  # documents of a file: 270 MB of tokens in all

tokens = np.random.default_rng(0).integers(0, VOCABULARY, (DOCUMENTS, DOCUMENT), dtype=np.uint16)
IGNORE = {}, {"ignore_column": ["spans"]}
target, folder = ROOT / "built", ROOT / "parquet"


def parquet():
    """Files of tokens, with a span of 5 concepts a document."""
    folder.mkdir(exist_ok=True)
    spans = pa.array([[{"start": 0, "end": DOCUMENT, "concepts": [1, 2, 3, 4, 5]}]] * DOCUMENTS)
    table = pa.table({"tokens": pa.array(list(tokens)), "spans": spans})
    for k in range(FILES):
        if not (folder / f"{k}.parquet").exists():
            pq.write_table(table, folder / f"{k}.parquet", compression="none", use_dictionary=False)


def build(workers=1, **spans):
    shutil.rmtree(target, ignore_errors=True)
    column = {"tokens": "tokens", **spans}
    cl.build(folder, target, workers=workers, column=column, vocab_size=VOCABULARY, no_eos=True, **IGNORE[not spans])


def read_parquet():
    """What reading the input takes, in one thread and batch by batch as a build reads it."""
    for k in range(FILES):
        with pq.ParquetFile(folder / f"{k}.parquet") as file:
            for _ in file.iter_batches(batch_size=4096, use_threads=False, columns=["tokens"]):
                pass


def write_plain():
    with open(ROOT / "plain", "wb") as file:
        for _ in range(FILES):
            file.write(memoryview(tokens).cast("B"))
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":  # the workers import this file
    parquet()
    works = {
        US: build,
        "with spans": lambda: build(spans="spans"),
        "with spans, 2 workers": lambda: build(2, spans="spans"),
        "pyarrow: read the tokens": read_parquet,
        "write + fsync of the same bytes": write_plain,
    }
    report = Report("build")
    contenders = [Contender(name, work, FILES * tokens.nbytes, wall=True) for name, work in works.items()]
    report.race("pre-tokenized documents of 700 tokens", contenders, unit="ns/byte", repeats=3)
    report.finish()
