"""Text that spells a special token of its tokenizer, such as <|endoftext|>: is it text, that token, or an error?"""

import json
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
_GUARD = "\ufdd2"  # inside a name that is text; no character, so in no text
_OPEN, _CLOSE, _DIGITS = "\ufdd3", "\ufdd4", "".join(map(chr, range(0xFDE0, 0xFDF0)))
_RESERVED = re.compile("[\ufdd2-\ufdef]")


class SpecialTokens:
    """A tokenizer with a rule for text that spells its special tokens.

    Args:
        tokenizer: Of the text.
        rule: "text" (it is cut as any other text), "control" (it becomes the token) or "error".

    Attributes:
        spelled: How often text spelled each name; whoever reads it clears it.
        framed: How many documents begin or end with each name as text, of those given to `look`; cleared likewise.
    """

    def __init__(self, tokenizer: TextTokenizer, rule: str) -> None:
        self.tokenizer, self.rule = tokenizer, rule
        self.spelled, self.framed = Counter[str](), Counter[str]()
        self._file = tokenizer if isinstance(tokenizer, FileTokenizer) else None
        special = self._file.special_tokens() if self._file else {}
        self._names: dict[int, str] = {i: token.content for i, token in special.items()}
        self._loose = {i for i, token in special.items() if token.normalized}  # which texts spell in other ways, too
        self._unknown = self._file.unknown_id() if special and self._file else None
        self._is_special = np.zeros(tokenizer.vocab_size, bool)
        self._is_special[list(self._names)] = True

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
                raise BadRow(row, _refusal(next(iter(spelled or kept)), "text"))
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

    def look(self, texts: Sequence[str]) -> None:
        """Count the texts of a document in `framed`, if the names of special tokens are text."""
        names = tuple(self._names.values()) if self.rule == TEXT else ()
        stripped = [text.strip() for text in texts]
        if any(text.startswith(names) or text.endswith(names) for text in stripped):
            self.framed.update(name for name in names if any(t.startswith(name) or t.endswith(name) for t in stripped))

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

    def guard(self, value: Any) -> Any:
        """A JSON value in which no text spells a special token: each name has a mark in it. Raises: ValueError."""
        if isinstance(value, str):
            if _RESERVED.search(value):
                raise ValueError("found one of U+FDD2 to U+FDEF, which stand for no character; take it out")
            return self._spelled.sub(lambda found: found[0][0] + _GUARD + found[0][1:], value)
        if isinstance(value, dict):
            return {self.guard(key): self.guard(item) for key, item in value.items()}
        return [self.guard(item) for item in value] if isinstance(value, list) else value

    def unguard(self, text: str) -> str:
        return text.replace(_GUARD, "")

    def marked(self, text: str) -> str:
        """A text with placeholders for the special tokens that it spells, and the guarded names as they were."""
        numbers = {name: i for i, name in self._names.items()}
        return self.unguard(self._spelled.sub(lambda found: _placeholder(numbers[found[0]]), text))

    def encode_marked(self, text: str) -> tuple[NDArray[Any], Ints]:
        """(ids, places) of what `marked` returns: placeholders are the special tokens, all else is text."""
        twin, ids = self._twin
        tokens, places = twin.encode([text], [True], plain=True)
        return ids[tokens.values], places

    @cached_property
    def _twin(self) -> tuple[FileTokenizer, NDArray[Any]]:
        """The tokenizer with the placeholders as tokens of their own, and what its ids stand for."""
        assert self._file is not None
        definition = json.loads(self._file.definition or b"")
        added = {token["id"]: token for token in definition["added_tokens"]}
        for k, i in enumerate(self._names):
            more = {"id": self._file.vocab_size + k, "content": _placeholder(i), "special": False, "normalized": False}
            definition["added_tokens"].append({**added[i], **more})
        twin = FileTokenizer(json.dumps(definition).encode(), "tokenizer", None)
        ids = np.arange(twin.vocab_size, dtype=np.int64)
        for i in self._names:
            ids[twin.id_of(_placeholder(i))] = i
        return twin, ids


_SKIP = "skip such records (--bad-records FILE), or pass --special-tokens"


def _refusal(name: str, where: str) -> str:
    return f"found the special token {name!r} in {where}, expected text without special tokens; {_SKIP} text or control"


def refuse(name: str, where: str) -> None:
    """Raise ValueError for a name in a message."""
    raise ValueError(_refusal(name, where))


def _placeholder(number: int) -> str:
    return _OPEN + "".join(_DIGITS[int(digit, 16)] for digit in f"{number:06x}") + _CLOSE


def _pairs(offsets: Ints) -> list[tuple[int, int]]:
    return list(pairwise(offsets.tolist()))
