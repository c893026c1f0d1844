"""Small corpora as records, in every input format, and what a dataset of them must hold, token by token."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import zstandard
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.ingest.build.builder import IngestOptions, Summary, build_dataset
from conceptloader.ingest.records.detect import detect_columns
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.tokenizer import TextTokenizer, load_tokenizer

NAMES = ["animal", "verb", "größe", "x" * 40]
Record = dict[str, Any]
# Per token of a document: its id, and for each track the concepts of the span it is in, or None.
Truth = list[tuple[int, dict[str, list[int] | None]]]


@st.composite
def spans(draw: st.DrawFn, length: int, concepts: Sequence[Any], most: int = 4) -> list[dict[str, Any]]:
    """Disjoint spans within `length` characters or tokens, possibly empty, in any order."""
    borders = sorted(draw(st.lists(st.integers(0, length), max_size=2 * most)))
    pairs = list(zip(borders[::2], borders[1::2], strict=False))
    found = [
        {"start": start, "end": end, "concepts": draw(st.lists(st.sampled_from(concepts), max_size=3))}
        for start, end in pairs
    ]
    return draw(st.permutations(found))


@st.composite
def records(draw: st.DrawFn, tokenized: bool = False, most: int = 8) -> list[Record]:
    """Documents with the tracks concepts (names) and topic (ids), some without, and metadata."""
    result = []
    for i in range(draw(st.integers(1, most))):
        record: Record = {"id": draw(st.sampled_from([f"d{i}", "same", "ü"]))}
        if tokenized:
            record["tokens"] = draw(st.lists(st.integers(0, 299), max_size=20))
            length = len(record["tokens"])
        else:
            record["text"] = draw(st.text("ab \n€😀ß\u0301", max_size=20))
            length = len(record["text"])
        record["spans"] = draw(spans(length, NAMES))
        record["spans_topic"] = draw(spans(length, [0, 3, 2**32 - 1]))
        record["metadata"] = {"source": draw(st.sampled_from(["web", "book"])), "n": i}
        result.append(record)
    return result


def in_characters(k: int, text: str) -> Record:
    """Document `k`, with metadata, and with one span of all of it, with two, or with none."""
    found = [{"start": 0, "end": len(text), "concepts": [k]}] if k % 3 == 0 and text else []
    if k % 3 == 1 and len(text) > 4:
        found = [{"start": 0, "end": 2, "concepts": [k]}, {"start": 3, "end": len(text), "concepts": [99]}]
    return {"id": str(k), "text": text, "spans": found, "metadata": {"k": k}}


def spans_of(ds: cl.Dataset, number: int, track: str) -> list[tuple[int, int, Any]]:
    """(start, end, what it holds) of the spans of a document, counted from its first token."""
    spans = ds.documents()[number][track]
    return [(a, b, str(c)) for a, b, c in zip(spans.start.tolist(), spans.end.tolist(), spans.decode(), strict=True)]


def truth(record: Record, eos: int | None, eos_span: str = "none") -> Truth:
    """What becomes of a record with the bytes tokenizer, by looking at every token. Spans do not overlap."""
    if "tokens" in record:
        ids, place = record["tokens"], list(range(len(record["tokens"])))
    else:
        ids = list(record["text"].encode())
        place = [i for i, character in enumerate(record["text"]) for _ in character.encode()]
    result: Truth = []
    tracks = {"concepts": ("spans", {name: i for i, name in enumerate(NAMES)}), "topic": ("spans_topic", {})}
    for token, at in zip(ids, place, strict=True):
        held: dict[str, list[int] | None] = {}
        for track, (column, names) in tracks.items():
            over = [s for s in record[column] if s["start"] <= at < s["end"]]
            held[track] = [names.get(c, c) for c in over[0]["concepts"]] if over else None
        result.append((token, held))
    if eos is not None:
        final = {}
        for track in tracks:
            last = [held[track] for _, held in result if held[track] is not None]
            final[track] = last[-1] if last and eos_span == "last" else None
        result.append((eos, final))
    return result


def check(path: Path, expected: Sequence[Record], eos: int | None, eos_span: str = "none") -> None:
    """The dataset at `path` holds the records, in order."""
    with cl.open_dataset(path) as dataset:
        assert dataset.num_documents == len(expected)
        for number, record in enumerate(expected):
            start, stop = dataset.document_range(number)
            wanted = truth(record, eos, eos_span)
            assert dataset.document_id(number) == record["id"]
            assert dataset.tokens(start, stop).tolist() == [token for token, _ in wanted]
            for track in ("concepts", "topic"):
                found = dataset.spans(track, start, stop)
                held: list[list[int] | None] = [None] * len(wanted)
                for a, b, ids in zip(found.start, found.end, found.decode(), strict=True):
                    held[a:b] = [ids.tolist()] * (b - a)
                assert held == [one[track] for _, one in wanted]
                assert not found.begins_before.any()
                assert not found.ends_after.any()
            if wanted:
                assert dataset.spans("metadata", start, stop).decode() == [record["metadata"]]


def write(path: Path, found: Sequence[Record], kind: str = "jsonl", group: int = 3) -> Path:
    """A file of the records; `kind`: jsonl, gz, zst or parquet."""
    if kind == "parquet":
        integers = pa.list_(
            pa.struct([("start", pa.int32()), ("end", pa.int64()), ("concepts", pa.list_(pa.uint32()))])
        )
        strings = pa.list_(pa.struct([("concepts", pa.list_(pa.string())), ("start", pa.int64()), ("end", pa.int64())]))
        types = {
            "id": pa.string(),
            "text": pa.large_string(),
            "tokens": pa.list_(pa.uint16()),
            "spans": strings,
            "spans_topic": integers,
            "metadata": pa.struct([("source", pa.string()), ("n", pa.int64())]),
        }
        schema = pa.schema([(name, types[name]) for name in found[0]])
        target = path.with_suffix(".parquet")
        pyarrow.parquet.write_table(pa.Table.from_pylist(list(found), schema), target, row_group_size=group)
        return target
    data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in found).encode()
    if kind == "jsonl":
        target = path.with_suffix(".jsonl")
    else:
        target = path.with_suffix(f".jsonl.{kind}")
        data = gzip.compress(data, mtime=0) if kind == "gz" else zstandard.compress(data)
    target.write_bytes(data)
    return target


def build(
    inputs: Sequence[Path], out: Path, tokenizer: TextTokenizer | None = None, workers: int = 1, **more: Any
) -> Summary:
    """Build with the tokenizer, by default that of bytes, and the vocabulary NAMES where the track is there; any number
    of spans may be empty."""
    sources = find_sources(inputs)
    columns = more.pop("columns", None) or detect_columns(sources)
    keys = ("on_bad", "watch")
    build_more = {key: more.pop(key) for key in keys if key in more}
    if "vocab_size" not in more:
        tokenizer = tokenizer or load_tokenizer("bytes")
    vocabularies = more.pop("vocabularies", {"concepts": NAMES} if "concepts" in columns.tracks else {})
    more.setdefault("max_unaligned_spans", 1)
    options = IngestOptions(columns=columns, tokenizer=tokenizer, vocabularies=vocabularies, **more)
    return build_dataset(sources, out, options, workers=workers, **build_more)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows of any columns as Parquet or JSONL (.gz), by the name of the file."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def content(path: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}
