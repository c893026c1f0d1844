"""Small corpora as records, in every input format, and builds of them."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import zstandard

from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.records.detect import detect_columns
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.tokenizer import BytesTokenizer

NAMES = ["animal", "verb", "größe", "x" * 40]


def build(inputs, out, tokenizer=None, workers=1, **more):
    """Build with the tokenizer, by default that of bytes, and the vocabulary NAMES where the track is there; any number
    of spans may be empty."""
    sources = find_sources(inputs)
    columns = more.pop("columns", None) or detect_columns(sources)
    keys = ("on_bad", "watch")
    build_more = {key: more.pop(key) for key in keys if key in more}
    if "vocab_size" not in more:
        tokenizer = tokenizer or BytesTokenizer()
    names = more.pop("vocabulary", {"concepts": NAMES} if "concepts" in columns.tracks else {})
    more.setdefault("max_unaligned_spans", 1)
    options = Options(columns=columns, tokenizer=tokenizer, vocabulary=names, **more)
    return build_dataset(sources, out, options, workers=workers, **build_more)


def write_rows(path, rows):
    """Rows of any columns as Parquet or JSONL (.gz, .zst), by the name of the file."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=len(rows) // 12 + 1)
    else:
        pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(text))
    return path


def content(path):
    """All files of a directory."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}
