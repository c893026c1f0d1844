"""Text that spells a special token of its tokenizer, such as <|endoftext|>: is it text, that token, or an error?"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.ingest.records.batch import BadRow, Ragged
from conceptloader.ingest.records.fast import Fast
from conceptloader.ingest.records.tokenizer import FileTokenizer, TextTokenizer

TEXT, CONTROL, ERROR = RULES = "text", "control", "error"


class SpecialTokens:
    """A tokenizer with a rule for text that spells its special tokens.

    Args:
        tokenizer: Of the text.
        rule: "text" (it is cut as any other text), "control" (it becomes the token) or "error".

    Attributes:
        spelled: How often text spelled each name; whoever reads it clears it.
        ends: Ids that may end what the assistant says: special ones and eos. Empty for bytes, whose eos no text spells.
    """

    def __init__(self, tokenizer: TextTokenizer, rule: str) -> None:
        self.tokenizer, self.rule = tokenizer, rule
        self.spelled = Counter[str]()
        self._file = tokenizer if isinstance(tokenizer, FileTokenizer) else None
        special = self._file.special_tokens() if self._file else {}
        self._names: dict[int, str] = {i: token.content for i, token in special.items()}
        self._loose = {i for i, token in special.items() if token.normalized}  # which texts spell in other ways, too
        self._unknown = self._file.unknown_id() if special and self._file else None
        self._is_special = np.zeros(tokenizer.vocab_size, bool)
        self._is_special[list(self._names)] = True
        self.ends = {*self._names, tokenizer.eos_id} if self._file else set[int | None]()

    def encode(self, texts: Sequence[str], places: Sequence[bool]) -> tuple[Ragged, Ints]:
        """See `TextTokenizer.encode`. Raises: BadRow for a text that spells a special token, if that is an error."""
        tokens, found = self.tokenizer.encode(texts, places)
        rows = self._suspects(texts, tokens)
        if self._file is None or not rows:
            return tokens, found
        plain, plain_places = self._file.encode([texts[row] for row in rows], [places[row] for row in rows], plain=True)
        parts = [(tokens.values[a:b], found[a:b]) for a, b in _pairs(tokens.offsets)]
        for row, (a, b) in zip(rows, _pairs(plain.offsets), strict=True):
            before, after = self._count(parts[row][0]), self._count(plain.values[a:b])
            unknown = {self._unknown: after[self._unknown]} if self._unknown is not None else {}  # for no name
            spelled = {self._names[i]: count for i, count in (before - Counter(unknown)).items()}
            kept = [self._names[i] for i in after if i != self._unknown]
            if self.rule == ERROR and (spelled or kept):
                name = next(iter(spelled or kept))
                raise BadRow(
                    row, f"found the special token {name!r} in text, expected text without any; {_SKIP} text or control"
                )
            if self.rule == TEXT and kept:
                raise BadRow(
                    row,
                    f"found {kept[0]!r}, which this tokenizer cannot cut as text, "
                    f"expected text without special tokens; {_SKIP} control",
                )
            self.spelled.update(spelled)
            if self.rule == TEXT:
                parts[row] = plain.values[a:b], plain_places[a:b]
        values, found = np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts])
        return Ragged(values, offsets_of([len(one) for one, _ in parts])), found

    def take_compared(self) -> tuple[int, int, str]:
        """Texts that were compared since the last call, and that were not gigatoken's; why none was, if known."""
        fast = vars(self._file).get("fast", "") if self._file else ""
        return (*fast.take_compared(), "") if isinstance(fast, Fast) else (0, 0, fast)

    def _suspects(self, texts: Sequence[str], tokens: Ragged) -> list[int]:
        """Rows with special tokens whose names are in the text: the token of unknown characters may be there, too."""
        at = np.flatnonzero(self._is_special[tokens.values]) if self._names else ()
        if not len(at):
            return []
        rows = np.searchsorted(tokens.offsets, at, "right") - 1
        pairs = {(row, i) for row, i in zip(rows.tolist(), tokens.values[at].tolist(), strict=True)}
        return sorted({row for row, i in pairs if self._names[i] in texts[row] or i in self._loose})

    def _count(self, ids: NDArray[Any]) -> Counter[int]:
        return Counter(ids[self._is_special[ids]].tolist())

    @cached_property
    def _spelled(self) -> "re.Pattern[str]":
        names = sorted(self._names.values(), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    def names_in(self, value: Any) -> list[str]:
        """The names that texts of a JSON value spell."""
        if isinstance(value, str):
            return self._spelled.findall(value)
        if isinstance(value, dict):
            value = [*value, *value.values()]
        return [name for item in value for name in self.names_in(item)] if isinstance(value, list) else []


_SKIP = "skip such records (--bad-records FILE), or pass --special-tokens"


def _pairs(offsets: Ints) -> list[tuple[int, int]]:
    return list(pairwise(offsets.tolist()))
