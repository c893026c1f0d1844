"""What the ids in a token file say of their type and vocabulary: flat files are read as anybody says they are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import InputError
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.ingest.adopt.source import PIECE, IndexFile, TokenFile

_LARGEST = 1 << 20  # ids of a vocabulary that nobody names; the largest in use have a fourth of it
_LEAST = 16  # tokens, fewer say little


def check_ids(file: TokenFile, tokenizer: Tokenizer | None) -> None:
    """Raise InputError if the first ids are not of the tokenizer, or contradict the type of a flat file."""
    if not file.tokens or (tokenizer is None and file.kind != "flat"):
        return
    with IndexFile(file.path) as source:
        ids = source.array(f"<{file.token_type}", file.offset, 0, min(PIECE, file.tokens))
    size, greatest = None if tokenizer is None else tokenizer.vocab_size, int(ids.max())
    if file.kind == "flat" and (found := _other_type(ids, size)):
        fix = "pass the --dtype that the tokens were written with, or the --tokenizer if they are right"
        raise InputError(file.path, found, f"ids of {ids.dtype.name}", fix)
    if tokenizer is not None and greatest >= tokenizer.vocab_size:
        expected = f"ids below {size}, as {tokenizer.name!r} has them"
        fix = "pass the tokenizer that made the tokens (--tokenizer), or its size (--vocab-size)"
        raise InputError(file.path, f"token {greatest}", expected, fix)


def _other_type(ids: NDArray[Any], size: int | None) -> str:
    """Why ids are not of the type that they were read as; empty where they may be. size: how many there are, if known.

    A wider id that is read as several has the smallest numbers in its last part. Two that are read as one are large.
    """
    if size is not None and size > np.iinfo(ids.dtype).max + 1:
        return f"a vocabulary of {size:,} ids"
    for step, turn in ((2, "second"), (4, "fourth"), (8, "eighth")):
        turns = ids[: len(ids) // step * step].reshape(-1, step)
        if step * ids.itemsize <= 8 and len(turns) >= _LEAST:
            first, last = (int(turns[:, at].max()) for at in (0, -1))
            if first > 16 * last and (size is None or not last):
                return f"every {turn} id at most {last}, the others up to {first:,}, as of a wider type"
    greatest = int(ids.max())
    return f"ids up to {greatest:,}, at least {_LARGEST:,}" if size is None and greatest >= _LARGEST else ""
