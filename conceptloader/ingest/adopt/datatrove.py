"""datatrove's token files, which nanotron's Nanoset reads: NAME.ds, NAME.ds.index, NAME.ds.metadata.

The .ds holds u2 or u4 tokens and nothing else; .index the u8 end of each document in tokens; .metadata lines of text,
the first being `tokenizer|bytes per token`, the second the number of tokens. Source: datatrove's
src/datatrove/pipeline/tokens/tokenizer.py.
"""

import os
from collections.abc import Iterator

import numpy as np

from conceptloader.errors import InputError
from conceptloader.ingest.adopt.source import IndexFile, Starts, TokenFile, stat_file
from conceptloader.storage.reads import read_file

_TYPES = {2: "u2", 4: "u4"}
COPY = "copy the .ds, .ds.index and .ds.metadata again, or run datatrove's DocumentTokenizer again"


def datatrove_file(path: str) -> TokenFile:
    """Describe a .ds file by its index and metadata.

    The size of a token is that of the file over its last document's end, so that a missing .metadata costs only the
    tokenizer's name.

    Raises: InputError for a missing or corrupt index and for sizes that do not agree with each other.
    """
    found = stat_file(path, "give a .ds file or a folder of them")
    index = path + ".index"
    stat_file(index, "documents cannot be distinguished without it: copy it, or tokenize with save_index=True")
    with IndexFile(index) as file:
        if file.size % 8:
            raise InputError(index, f"{file.size} bytes", "a multiple of 8 (u8 document ends)", COPY)
        documents = file.size // 8
        tokens = int(file.array("<u8", 0, documents - 1, documents)[0]) if documents else 0
    tokenizer, noted = _read_metadata(path + ".metadata")
    size = found.st_size // tokens if tokens else (noted or 2)
    if size not in _TYPES or found.st_size != tokens * size:
        rule = f"2 or 4 bytes for each of the {tokens} tokens that {index} ends with"
        raise InputError(path, f"{found.st_size} bytes", rule, f"the file is truncated or of another index: {COPY}")
    if noted is not None and noted != size:
        raise InputError(path + ".metadata", f"tokens of {noted} bytes", f"{size}, as .ds and .index agree on", COPY)
    return TokenFile(
        kind="datatrove",
        path=path,
        found=found,
        token_type=_TYPES[size],
        tokens=tokens,
        index=index,
        starts=lambda: _starts(index, documents),
        tokenizer=tokenizer,
    )


def _read_metadata(path: str) -> tuple[str | None, int | None]:
    """(tokenizer, bytes per token) as far as they are noted. Early versions of datatrove noted the tokenizer only."""
    if not os.path.exists(path):
        return None, None
    head = read_file(path, 1 << 16).decode("utf-8", "replace").split("\n")[0].strip()
    name, separator, size = head.rpartition("|")
    if not separator:
        return head or None, None
    if not size.isdigit():
        raise InputError(path, f"the first line {head!r}", "tokenizer|bytes per token", COPY)
    # Without a tokenizer's name datatrove writes "Unknown Tokenizer|2|2".
    return (None if name.startswith("Unknown Tokenizer") else name or None), int(size)


def _starts(index: str, documents: int) -> Iterator[Starts]:
    """Each document begins where the one before ends."""
    last = 0
    with IndexFile(index) as file:
        for first, ends in file.pieces("<u8", 0, documents):
            starts = np.concatenate([np.array([last], np.uint64), ends[:-1]])
            wrong = np.flatnonzero(ends < starts)
            if len(wrong):
                i = int(wrong[0])
                raise InputError(
                    index,
                    f"document {first + i} to end at token {int(ends[i])}",
                    f"at least {int(starts[i])}, the end of the one before",
                    COPY,
                )
            yield starts
            last = int(ends[-1])
