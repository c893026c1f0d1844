"""Flat token files: tokens and nothing else (OLMo's .npy files, which have no header), or a one-dimensional .npy array.

Such a file says nothing about its documents. Either they stay unknown, or the caller names the token that ends each
document, and the file is read once to find them.
"""

import io
import os
import tokenize
from collections.abc import Iterator

import numpy as np

from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.adopt.source import TOKEN_TYPES, IndexFile, Starts, TokenFile, stat_file

_MAGIC = b"\x93NUMPY"
_HEADS = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "zip, as .npz is",
    b"MMIDIDX": "Megatron's .idx",
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"\x89HDF": "HDF5",
    **{number.to_bytes(4, "little"): "llm.c, with a head of 1024 bytes" for number in (20240520, 20240801)},
}  # bytes that other kinds of files begin with
_HEAD = 1 << 16  # bytes; numpy itself refuses heads above 10,000


def flat_file(path: str, dtype: str | None, document_end: int | None) -> TokenFile:
    """Describe a flat token file.

    dtype: type of the tokens ("uint16" or "u2", ...); needed unless the file is a .npy with a header, and must agree
    with that. document_end: the id of the token that ends a document; None: documents are unknown.

    Raises: ConfigError for a missing or unknown dtype, InputError for a file that does not fit it.
    """
    found = stat_file(path, "give a file of tokens")
    given = _token_type(dtype) if dtype is not None else None
    kind, offset, token_type = "flat", 0, given
    with IndexFile(path) as file:
        magic = file.read(0, min(len(_MAGIC) + 1, file.size))
    if other := next((name for head, name in _HEADS.items() if magic.startswith(head)), None):
        fix = "write the tokens alone: numpy.save(FILE, tokens)"
        raise InputError(path, f"a file of another kind ({other})", "tokens and nothing else, or a .npy", fix)
    if magic.startswith(_MAGIC):
        kind = "npy"
        offset, token_type = _read_npy_head(path)
        if given is not None and given != token_type:
            raise InputError(path, f"tokens of type {token_type} in its head", f"{given}, as asked", "omit --dtype")
    if token_type is None:
        raise ConfigError(
            path,
            "a flat file of tokens and no dtype",
            f"one of {', '.join(TOKEN_TYPES)}: nothing in the file says it",
            "add --dtype TYPE",
        )
    size = int(token_type[1:])
    tokens, rest = divmod(found.st_size - offset, size)
    if rest:
        expected = f"a multiple of {size} for tokens of type {token_type}"
        raise InputError(
            path,
            f"{found.st_size - offset} bytes",
            expected,
            "pass the type that the tokens were written with: --dtype TYPE",
        )
    if document_end is not None and not 0 <= document_end < 1 << 8 * size:
        raise ConfigError(
            "document_end",
            str(document_end),
            f"an id that type {token_type} can hold",
            "correct --document-end, or pass the --dtype of the tokens",
        )
    return TokenFile(
        kind=kind,
        path=path,
        found=found,
        token_type=token_type,
        tokens=tokens,
        offset=offset,
        document_end=document_end,
        starts=None if document_end is None else lambda: _starts(path, offset, tokens, token_type, document_end),
    )


def _token_type(dtype: str) -> str:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    swapped = found.newbyteorder("<") != found
    if found.name not in TOKEN_TYPES or swapped:
        raise ConfigError(
            "dtype",
            repr(dtype),
            f"one of {', '.join(TOKEN_TYPES)}, little-endian",
            "write them again: numpy.save(FILE, tokens.astype('uint32'))"
            if swapped
            else "pass --dtype uint16, or another of these",
        )
    return TOKEN_TYPES[found.name]


def _read_npy_head(path: str) -> tuple[int, str]:
    """(bytes before the first token, token type) of a .npy file."""
    with open(path, "rb") as whole:
        file = io.BytesIO(whole.read(_HEAD))  # numpy would make room for as much as the head claims
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        except (ValueError, TypeError, EOFError, SyntaxError, RecursionError, tokenize.TokenError) as error:
            raise InputError(
                path,
                f"a corrupt .npy head ({error})",
                "a complete head",
                f"copy {path} again, or write it again with numpy.save",
            ) from error
        offset = file.tell()
    if len(shape) != 1 or dtype.name not in TOKEN_TYPES or dtype.newbyteorder("<") != dtype:
        raise InputError(
            path,
            f"{dtype.str} of shape {shape}",
            f"one dimension of little-endian {', '.join(TOKEN_TYPES)}",
            "write it again: numpy.save(FILE, tokens.ravel().astype('uint32'))",
        )
    expected = offset + shape[0] * dtype.itemsize
    if os.path.getsize(path) != expected:
        raise InputError(
            path,
            f"{os.path.getsize(path)} bytes",
            f"{expected} as its head says",
            f"copy {path} again, or write it again with numpy.save",
        )
    return offset, TOKEN_TYPES[dtype.name]


def _starts(path: str, offset: int, tokens: int, token_type: str, end: int) -> Iterator[Starts]:
    """A document begins at the first token, and after each token `end` but the last of the file."""
    yield np.zeros(min(tokens, 1), np.uint64)
    with IndexFile(path) as file:
        for first, ids in file.pieces("<" + token_type, offset, tokens):
            starts = np.flatnonzero(ids == end).astype(np.uint64) + np.uint64(first + 1)
            yield starts[starts < tokens]
