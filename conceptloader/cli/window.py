"""A range of tokens for people: its documents, text, spans with concepts, and the bytes that reading it takes."""

import os
from collections.abc import Iterator
from typing import Any

from conceptloader.base.terminal import printable
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.read.files import Files
from conceptloader.ingest.rows.tokenizer import TOKENIZER_FILE, TextTokenizer, load_tokenizer

_WIDTH = 100


class RecordingFiles(Files):
    """Remembers which bytes of which file were read."""

    reads: list[tuple[str, int, int]]

    def read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        self.reads.append((self.path(kind, shard), offset, size))
        return super().read(kind, shard, offset, size)


def record_reads(dataset: Dataset) -> list[tuple[str, int, int]]:
    """From now on, all reads of `dataset` are appended to the returned list: (file, offset, bytes)."""
    files = RecordingFiles(dataset.manifest, dataset.files.roots, dataset.files.source)
    files.reads = []
    dataset.files = dataset.reader.files = files
    return files.reads


def find_tokenizer(dataset: Dataset, given: str | None) -> TextTokenizer | None:
    """The tokenizer of a dataset: `given` (checked to be it), the built-in one, or the copy that the build left.

    Raises: ConfigError if the given tokenizer is another one.
    """
    facts = dataset.tokenizer
    if given is not None:
        eos = None if facts is None or given == "bytes" else facts.eos_id
        tokenizer = load_tokenizer(given, eos)
        named = facts is not None and not facts.name.startswith("unnamed-")
        if facts is not None and (tokenizer.name if named else tokenizer.vocab_size) != (
            facts.name if named else facts.vocab_size
        ):
            raise ConfigError(
                f"--tokenizer {given}: found {tokenizer.name} of {tokenizer.vocab_size} tokens, expected that of "
                f"{dataset.path}: {facts.name} of {facts.vocab_size}; name the one that it was built with"
            )
        return tokenizer
    if facts is None:
        return None
    if facts.name == "bytes":
        return load_tokenizer("bytes")
    directories = {dataset.path: None, os.path.dirname(dataset.files.path("stream.bin", 0)): None}
    for directory in directories:
        path = os.path.join(directory, TOKENIZER_FILE)
        if os.path.exists(path):
            tokenizer = load_tokenizer(path, facts.eos_id)
            if tokenizer.name == facts.name:
                return tokenizer
    return None


def describe(dataset: Dataset, start: int, stop: int, tokenizer: TextTokenizer | None) -> dict[str, Any]:
    """Everything about tokens [start, stop), as JSON values. Positions of spans are relative to `start`."""
    sample = dataset.read(start, stop, dataset.chosen_tracks(None), documents=True)
    tokens = sample["tokens"].tolist()
    firsts = sample["documents"].first.tolist()
    documents = []
    for first, number, end in zip(firsts, sample["documents"].ids.tolist(), [*firsts[1:], stop], strict=True):
        known = number >= 0
        documents.append(
            {
                "document": number if known else None,
                "id": dataset.document_id(number) if known else None,
                "start": max(0, first - start),
                "end": min(end, stop) - start,
                "begins_before": first < start,
            }
        )
    return {
        "tokens": [start, stop],
        "token_ids": tokens,
        "text": tokenizer.decode(tokens) if tokenizer else None,
        "documents": documents,
        "fields": {name: sample[name].tolist() for name in dataset.fields(start, start)},
        "tracks": {track: _spans(dataset, track, sample[track], tokens, tokenizer) for track in sorted(dataset.tracks)},
    }


def _spans(
    dataset: Dataset, track: str, spans: Any, tokens: list[int], tokenizer: TextTokenizer | None
) -> list[dict[str, Any]]:
    concepts = dataset.tracks[track].codec == "concepts"
    names = dataset.vocabulary(track) if concepts else None
    found = []
    for i, record in enumerate(spans.decode()):
        span: dict[str, Any] = {
            "start": int(spans.start[i]),
            "end": int(spans.end[i]),
            "begins_before": bool(spans.begins_before[i]),
            "ends_after": bool(spans.ends_after[i]),
        }
        if concepts:
            span["concepts"] = [names[c] if names else int(c) for c in record.tolist()]
        else:
            span["record"] = record
        if tokenizer:
            span["text"] = tokenizer.decode(tokens[span["start"] : span["end"]])
        found.append(span)
    return found


def lines(window: dict[str, Any]) -> Iterator[str]:
    """The description as lines of text."""
    start, stop = window["tokens"]
    yield f"tokens {start:,} to {stop:,} ({stop - start:,})"
    for part in window["documents"]:
        name = "without a document table" if part["document"] is None else f"document {part['document']}"
        shown = f" {printable(part['id'], 60)!r}" if part["id"] else ""
        more = ", begun before" if part["begins_before"] else ""
        yield f"  [{part['start']}, {part['end']}) {name}{shown}{more}"
    if window["text"] is None:
        shown = " ".join(map(str, window["token_ids"][:24]))
        yield f"  token ids {shown}{' ...' if len(window['token_ids']) > 24 else ''}"
    else:
        yield "text"
        for line in window["text"].splitlines():
            yield f"  {printable(line)}"
    for track, spans in window["tracks"].items():
        yield f"track {track}: {len(spans)} spans"
        for span in spans:
            left = "<" if span["begins_before"] else "["
            right = ">" if span["ends_after"] else ")"
            content = ", ".join(map(str, span["concepts"])) if "concepts" in span else str(span["record"])
            excerpt = f"  | {printable(span['text'], _WIDTH // 2)}" if "text" in span else ""
            yield f"  {left}{span['start']}, {span['end']}{right} {printable(content, _WIDTH)}{excerpt}"
