r"""Megatron's IndexedDataset: PREFIX.bin with the tokens, PREFIX.idx with lengths, pointers and documents.

The .idx, little-endian: b"MMIDIDX\0\0", u8 version 1, u1 code of the token type, u8 sequences, u8 document entries;
then i4 length of each sequence in tokens, i8 byte offset of each sequence in the .bin, and i8 first sequence of each
document followed by the number of sequences. Source: megatron-core's megatron/core/datasets/indexed_dataset.py.
"""

import struct
from collections.abc import Iterator

import numpy as np

from conceptloader.errors import InputError
from conceptloader.format.spec.columns import Ints
from conceptloader.ingest.adopt.source import TOKEN_TYPES, IndexFile, Starts, TokenFile, stat_file

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_REBUILD = "the .idx is corrupt or incomplete: copy it again, or run Megatron's preprocess_data.py again"


def megatron_file(prefix: str) -> TokenFile:
    """Describe PREFIX.bin by the head of PREFIX.idx and the sizes of both.

    Raises: InputError for missing or truncated files, another magic or version, and token types that cannot be read.
    """
    path, index = prefix + ".bin", prefix + ".idx"
    stat_file(index, "give the prefix of a .bin and its .idx")
    found = stat_file(path, "give the prefix of a .bin and its .idx")
    with IndexFile(index) as file:
        token_type, sequences, entries = _read_head(file)
        tokens = _count_tokens(file, sequences, entries, int(token_type[1:]))
    expected = tokens * int(token_type[1:])
    if found.st_size != expected:
        raise InputError(
            path, f"{found.st_size} bytes", f"{expected} as {index} says ({tokens} tokens of type {token_type})",
            f"the file is truncated, or belongs to another index: copy {path} and {index} again",
        )  # fmt: skip
    return TokenFile(
        kind="megatron",
        path=path,
        found=found,
        token_type=token_type,
        tokens=tokens,
        index=index,
        starts=lambda: _starts(index),
    )


def count_sequences(index: str) -> tuple[int, int]:
    """(sequences, documents) of an .idx. Raises: InputError for a file that is none."""
    with IndexFile(index) as file:
        _, sequences, entries = _read_head(file)
    return sequences, entries - 1


def _read_head(file: IndexFile) -> tuple[str, int, int]:
    """(token type, sequences, document entries), after checking that the file has the size which follows from them."""
    path = file.path
    if file.size < _HEAD.size:
        raise InputError(path, f"{file.size} bytes", f"at least {_HEAD.size}", _REBUILD)
    magic, version, code, sequences, entries = _HEAD.unpack(file.read(0, _HEAD.size))
    if magic != _MAGIC:
        raise InputError(
            path,
            f"a file that begins with {magic!r}",
            repr(_MAGIC),
            "pass the path of a Megatron .idx",
        )
    if version != 1:
        raise InputError(path, f"version {version}", "1", "write it again with tools/preprocess_data.py of Megatron-LM")
    name = _CODES.get(code, f"code {code}")
    if name not in TOKEN_TYPES:
        raise InputError(
            path, f"tokens of type {name}", f"one of {', '.join(TOKEN_TYPES)}",
            f"write {path} again with dtype int32",
        )  # fmt: skip
    expected = _HEAD.size + 12 * sequences + 8 * entries
    if file.size == expected + sequences and sequences:
        raise InputError(
            path, "a mode for each sequence (a multimodal index)", "an index of text",
            "write the text part with an IndexedDatasetBuilder of its own (multimodal=False)",
        )  # fmt: skip
    if file.size != expected:
        rule = f"{expected} for {sequences} sequences and {entries} document entries"
        raise InputError(path, f"{file.size} bytes", rule, _REBUILD)
    if not entries:
        raise InputError(path, "no document entry", "at least the closing one", _REBUILD)
    return TOKEN_TYPES[name], sequences, entries


def _count_tokens(file: IndexFile, sequences: int, entries: int, itemsize: int) -> int:
    """Tokens up to the end of the last sequence. The rest of the index is checked when the documents are read."""
    if not sequences:
        return 0
    length = int(file.array("<i4", _HEAD.size, sequences - 1, sequences)[0])
    pointer = int(file.array("<i8", _HEAD.size + 4 * sequences, sequences - 1, sequences)[0])
    if length < 0 or pointer < 0 or pointer % itemsize:
        found = f"sequence {sequences - 1} of {length} tokens at byte {pointer}"
        raise InputError(file.path, found, f"a length and a multiple of {itemsize}, both at least 0", _REBUILD)
    return pointer // itemsize + length


def _starts(index: str) -> Iterator[Starts]:
    """First tokens of the documents. Lengths, pointers and documents are read in step, a piece at a time."""
    with IndexFile(index) as file:
        token_type, sequences, entries = _read_head(file)
        lengths_at = _HEAD.size
        pointers_at = lengths_at + 4 * sequences
        documents = _documents(file, pointers_at + 8 * sequences, entries, sequences)
        pending = next(documents, None)  # first sequences of documents which are not placed yet
        base = 0
        for a, lengths in file.pieces("<i4", lengths_at, sequences):
            b = a + len(lengths)
            ends = base + np.cumsum(lengths, dtype=np.int64)
            firsts = ends - lengths
            pointers = file.array("<i8", pointers_at, a, b)
            expected = firsts * int(token_type[1:])
            wrong = np.flatnonzero((lengths < 0) | (pointers != expected))
            if len(wrong):
                i = int(wrong[0])
                raise InputError(
                    index, f"sequence {a + i} of {int(lengths[i])} tokens at byte {int(pointers[i])}",
                    f"sequences end to end in the .bin, this one at byte {int(expected[i])}", _REBUILD,
                )  # fmt: skip
            while pending is not None:
                placed = int(np.searchsorted(pending, b))
                yield firsts[pending[:placed] - a].astype(np.uint64)
                pending = pending[placed:]
                if len(pending):
                    break  # the rest begins behind this piece
                pending = next(documents, None)
            base = int(ends[-1])
        while pending is not None:  # empty documents behind the last sequence
            yield np.full(len(pending), base, np.uint64)
            pending = next(documents, None)


def _documents(file: IndexFile, offset: int, entries: int, sequences: int) -> Iterator[Ints]:
    """First sequence of each document, checked, in pieces."""
    closing = int(file.array("<i8", offset, entries - 1, entries)[0])
    if closing < sequences:
        raise InputError(
            file.path, f"documents that end at sequence {closing}", f"{sequences}, the number of sequences",

"write it again, with end_document() before finalize(): the last sequences belong to no "
"document",
        )  # fmt: skip
    if closing > sequences:
        found = f"documents that end at sequence {closing}, past the end"
        raise InputError(file.path, found, f"{sequences}, the number of sequences", _REBUILD)
    last = 0
    for first, documents in file.pieces("<i8", offset, entries - 1):
        before = np.concatenate([[last], documents[:-1]])
        limit = np.full(len(documents), sequences)
        if not first:
            limit[0] = 0  # the first document begins with the first sequence
        wrong = np.flatnonzero((documents < before) | (documents > limit))
        if len(wrong):
            i = int(wrong[0])
            raise InputError(
                file.path, f"a document, {first + i}, that begins at sequence {int(documents[i])}",
                f"a sequence in [{int(before[i])}, {sequences}]" if first + i else "0", _REBUILD,
            )  # fmt: skip
        yield documents
        last = int(documents[-1])
