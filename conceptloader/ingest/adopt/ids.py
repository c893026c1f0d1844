"""What the ids in a token file say of their type and vocabulary: flat files are read as anybody says they are."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import InputError
from conceptloader.ingest.adopt.source import PIECE, IndexFile, TokenFile

LARGEST = 1 << 20  # ids of a vocabulary that nobody names; the largest in use have a fourth of it
_BINS = 256  # of ids, larger ones in the last
_LEAST = 4096  # tokens, fewer say little
_PERIODS = 16
_WIDER = "not those of a wider type"


@dataclass(frozen=True)
class Ids:
    """Of the first tokens of a file: how many, the greatest id, the commonest one and how often it is there."""

    tokens: int = 0
    greatest: int = -1
    commonest: int = -1
    times: int = 0

    def __str__(self) -> str:
        share = f"{self.times / max(1, self.tokens):.1%} are {self.commonest:,}"
        return f"of the first {self.tokens:,} tokens of a file, the greatest is {self.greatest:,}, and {share}"


def look(file: TokenFile, known: bool) -> Ids:
    """The first ids of a file, none of one that says its type itself where nobody asks for them.

    known: somebody says how many ids there are, which is checked elsewhere.

    Raises: InputError if they contradict their type, where the file itself does not say it.
    """
    if not (known or file.kind in ("flat", "npy")) or not file.tokens:
        return Ids()
    with IndexFile(file.path) as source:
        ids = source.array(f"<{file.token_type}", file.offset, 0, min(PIECE, file.tokens))
    if file.kind == "flat" and (problem := _other_type(ids, known)) is not None:
        fix = "" if known else " or, if they are right, --tokenizer or --tokenizer-name"
        raise InputError(file.path, *problem, f"pass the --dtype that the tokens were written with{fix}")
    values, counts = np.unique(ids, return_counts=True)
    most = int(np.argmax(counts))
    return Ids(len(ids), int(values[-1]), int(values[most]), int(counts[most]))


def _other_type(ids: NDArray[Any], known: bool) -> tuple[str, str] | None:
    """(found, expected) for ids that were read as a type that is not theirs; None where they may be of it.

    A token read as narrower ones makes streams that take turns, the last of the smallest numbers. Two that are read as
    one make both halves of it alike.
    """
    expected, size = f"ids of {ids.dtype.name}", ids.dtype.itemsize
    for step, turn in ((2, "second"), (4, "fourth"), (8, "eighth")):
        turns = ids[: len(ids) // step * step].reshape(-1, step)
        if step * size <= 8 and len(turns) >= _PERIODS and turns[:, 0].any() and not turns[:, -1].any():
            return f"every {turn} token to be 0", f"{expected}, {_WIDER}"
    many = len(ids) >= _LEAST
    allowed = 0.3 if known else 0.05  # codes of sound, for instance, take turns, too
    if size < 8 and many and _apart(ids[::2], ids[1::2]) > allowed + _noise(len(ids)):
        return "other ids at odd places than at even ones", f"{expected}, {_WIDER}"
    if known or size == 1:
        return None
    if (greatest := int(ids.max())) >= LARGEST:
        return f"ids up to {greatest:,}", f"ids below {LARGEST:,}, as vocabularies have them"
    halves = ids.view(f"<u{size // 2}")
    if many and _apart(halves[::2], halves[1::2]) < 0.02 + 0.7 * _noise(len(ids)):
        return "ids with twice the same numbers in their halves", f"{expected}, not those of a narrower type"
    return None


def _apart(*samples: NDArray[Any]) -> float:
    """How different the numbers of two samples are, from 0 to 1 (total variation)."""
    binned = (np.clip(one, 0, _BINS - 1).astype(np.int64) for one in samples)
    first, second = (np.bincount(one, minlength=_BINS) / len(one) for one in binned)
    return float(np.abs(first - second).sum()) / 2


def _noise(tokens: int) -> float:
    """More than samples of one stream differ by."""
    return float(np.sqrt(_BINS / tokens))
