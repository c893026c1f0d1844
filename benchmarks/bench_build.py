"""Building from tokens that are there: GB/s of tokens written, beside memcpy and plain writes with fsync."""

import os
import shutil

import numpy as np
from data import DOCUMENT, ROOT
from harness import US, Contender, Report

import conceptloader as cl

report = Report("build")
DOCUMENTS = 20_000
tokens = np.random.default_rng(0).integers(0, 50_000, (DOCUMENTS, DOCUMENT), dtype=np.uint16)
target = ROOT / "built"


def build(span: bool) -> None:
    shutil.rmtree(target, ignore_errors=True)
    tracks = {"concepts": cl.TrackOptions(encoding="spans")} if span else {}
    handle = cl.create_build(target, cl.BuildOptions(token_type="u2", tracks=tracks))
    record = np.arange(5, dtype="<u4").tobytes()
    with handle.shard(0) as writer:
        for ids in tokens:
            writer.add_document(ids, spans={"concepts": [(0, DOCUMENT, record)]} if span else None)
    cl.finalize(target)


def write_plain() -> None:
    with open(ROOT / "plain", "wb") as file:
        file.write(tokens.tobytes())
        file.flush()
        os.fsync(file.fileno())


report.race(
    "pre-tokenized documents of 700 tokens",
    [
        Contender(US, lambda: build(False), tokens.nbytes, wall=True),
        Contender("conceptloader, with a span a document", lambda: build(True), tokens.nbytes, wall=True),
        Contender("write + fsync of the same bytes", write_plain, tokens.nbytes, wall=True),
        Contender("memcpy", lambda: tokens.copy(), tokens.nbytes, wall=True),
    ],
    unit="ns/byte",
    repeats=3,
)
report.finish()
