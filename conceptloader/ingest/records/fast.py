"""Ids from gigatoken, some hundred times faster than from tokenizers, where both are known to give the same.

Nothing but time depends on it: what gigatoken cannot load or encode, and documents with characters or added tokens
that are not proven, go to tokenizers; any other difference that is found ends the build. An environment variable
switches it off, CONCEPTLOADER_FAST=0, which worker processes inherit.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import InputError

VARIABLE = "CONCEPTLOADER_FAST"
PROVEN = "0.10."  # versions whose ids were compared, by tests/ingest/test_fast.py
FIRST, EVERY = 32, 1000  # documents of a process that are compared: the first ones, then one of so many
RENEWED = 32 << 20  # characters after which its cache is dropped: of random words it takes ten times their bytes

_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"Llama 3": _CASE + r"\p{N}{1,3}" + _REST, "Qwen": _CASE + r"\p{N}" + _REST}

# What tokenizers disagree on, if on anything: whitespace, contractions, marks that combine, scripts without spaces.
HARD = (
    "", " ", "\n", "\r\n\r\n", "a", "\u00e9", "e\u0301", "\u200b zero\u200cwidth", "\u0e44\u0e17\u0e22\u0e41",
    "\u0645\u0631\u062d\u0628\u0627", "\u4e2d\u6587\u5b57\u7b26\uff0c\u6807\u70b9\u3002", "\x00\x01\x7f",
    "don't DON'T I'LL", "   lead", "trail   ", "\t\t tabs", "1234567890 12 3", "\ufb01 ligature \u00bd",
    "\u0130stanbul \u01c5", "\ufeffmark", "a\u00a0b", "\U0001d518\U0001d52b\U0001d526", "x" * 500, " " * 300,
    "\n" * 200, "ab" * 300, "\U0001f469\u200d\U0001f469\u200d\U0001f467 family", "def f(x):\n\treturn x  # why?\n\n",
)  # fmt: skip


class Fast:
    """The ids of a tokenizer of the tokenizers package, compared with it again and again.

    Attributes:
        compared: Documents that were, after the hard texts.
        slowed: Documents that tokenizers encoded.

    Raises:
        InputError: For any difference.
        RuntimeError: What gigatoken cannot load or encode, as it says.
    """

    def __init__(self, tokenizer: Any, path: str) -> None:
        self._tokenizer, self._path, self._definition = tokenizer, path, tokenizer.to_str()
        self.compared, self.slowed, self._seen = 0, 0, 0
        self._proven = Proven(json.loads(self._definition))
        self._renew()
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        hard = [*HARD, *(f"a{name} {name}b {name}{name}\n{name[:-1]}" for name in added[:64])]
        for text in hard:
            self.compare(text, self._ids(text)[0])

    def _renew(self) -> None:
        self._fast: Any = _load(self._definition)
        self._left = RENEWED

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text."""
        found = []
        for text in texts:
            if self._left < 0:
                self._renew()
            self._left -= len(text)
            ids, fast = self._ids(text)
            if not fast:
                self.slowed += 1
            elif self._seen < FIRST or self._seen % EVERY == 0:
                self.compare(text, ids)
                self.compared += 1
            self._seen += 1
            found.append(ids)
        return found

    def _ids(self, text: str) -> tuple[NDArray[np.uint32], bool]:
        """The ids of a text, and whether they are gigatoken's."""
        if self._proven(text):
            try:
                return _guarded(self._fast.encode, text), True
            except RuntimeError:
                self._renew()  # a panic may leave anything behind
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.uint32), False

    def take_compared(self) -> tuple[int, int]:
        """How many texts were compared since the last call, and how many tokenizers encoded."""
        counts, self.compared, self.slowed = (self.compared, self.slowed), 0, 0
        return counts

    def compare(self, text: str, ids: NDArray[np.uint32]) -> Any:
        """The encoding of a text as tokenizers gives it. Raises: InputError for other ids."""
        theirs = self._tokenizer.encode(text, add_special_tokens=False)
        ours, expected = ids.tolist(), theirs.ids
        if ours != expected:
            pairs = enumerate(zip(ours, expected, strict=False))
            k = next((k for k, (a, b) in pairs if a != b), min(len(ours), len(expected)))
            raise InputError(
                f"tokenizer {self._path}",
                f"ids {ours[k : k + 8]} by gigatoken from token {k} of {text[:60]!r} on",
                f"{expected[k : k + 8]} as tokenizers gives",
                f"build with {VARIABLE}=0, without it, and report this text",
            )
        return theirs


def fast_of(tokenizer: Any, path: str) -> "Fast | str":
    """The fast twin of a tokenizer of the tokenizers package, or why there is none. Raises: InputError."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE} is 0"
    try:
        version = metadata.version("gigatoken")
    except metadata.PackageNotFoundError:
        return "gigatoken is not installed (pip install 'conceptloader[fast]')"
    if not version.startswith(PROVEN):
        return f"gigatoken is {version}, of which nobody knows whether it gives the same ids (known: {PROVEN}*)"
    if reason := unproven(json.loads(tokenizer.to_str())):
        return reason
    try:
        return Fast(tokenizer, path)
    except InputError as error:
        return f"gigatoken gives other ids: {error.found}"
    except RuntimeError as error:
        return f"gigatoken refuses it: {error}"


def _guarded(call: Callable[[str], Any], text: str) -> Any:
    """`call(text)`. Raises: RuntimeError for all that it raises, panics of Rust too, which are no Exceptions."""
    try:
        return call(text)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _load(definition: str) -> Any:
    return _guarded(import_module("gigatoken").Tokenizer.from_json, definition)


class Proven:
    """Whether gigatoken cuts a text as tokenizers does, by its characters and the added tokens in it.

    Both have tables of Unicode in which newer characters are missing, or in another class. So each character is
    encoded by both when it first comes, next to characters of every class that patterns distinguish, by a vocabulary
    that has a token for each pair that no pattern divides.
    """

    def __init__(self, definition: dict[str, Any]) -> None:
        odd = [token["content"] for token in definition.get("added_tokens", []) if _is_odd(token)]
        self._odd = re.compile("|".join(map(re.escape, odd))) if odd else None
        self._known: dict[str, bool] = {}
        self._both: tuple[Any, Any] | None = None
        self._composes = bool(definition.get("normalizer"))
        if definition.get("pre_tokenizer"):
            letters = sorted(import_module("tokenizers").pre_tokenizers.ByteLevel.alphabet())
            pairs = [(before, byte) for before in "a1!'\u0120" for byte in letters if ord(byte) > 127]
            names = [*letters, *(a + b for a, b in pairs)]
            model = {"type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": pairs}
            text = json.dumps({**definition, "model": model, "added_tokens": [], "post_processor": None})
            self._both = import_module("tokenizers").Tokenizer.from_str(text), _load(text)

    def __call__(self, text: str) -> bool:
        if self._odd is not None and self._odd.search(text):
            return False
        if self._both is None or text.isascii():
            return True
        known = self._known
        return all(known[one] if one in known else self._prove(one) for one in set(text))

    def _prove(self, one: str) -> bool:
        """Whether both see a character alike, alone and among others; with NFC, where pairs compose as before."""
        assert self._both is not None
        theirs, ours = self._both
        texts = one, f"a{one}", f"1{one}", f"!{one}", f" {one}", f"a'{one}a", f"e\u0315{one}\u0323"
        try:
            same = all(_guarded(ours.encode, text).tolist() == theirs.encode(text).ids for text in texts)
        except (RuntimeError, UnicodeError):
            same = False
        # The last pairs that compose in one plane came with Unicode 5, in the next one they still come.
        self._known[one] = same and not (self._composes and "\U00010000" <= one < "\U0001f000")
        return self._known[one]


def _is_odd(token: dict[str, Any]) -> bool:
    """Whether an added token takes whitespace from what is next to it, or has some that another one takes."""
    return bool(token.get("lstrip") or token.get("rstrip") or token["content"] != token["content"].strip())


def unproven(definition: dict[str, Any]) -> str:
    """What a tokenizer.json has that no test has compared; "" if there is nothing."""
    model, before = definition["model"], definition.get("pre_tokenizer") or {}
    if model.get("type") != "BPE":
        return f"its model is {model.get('type')}, not BPE"
    odd = [name for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix") if model.get(name)]
    if odd:
        return f"its model has {', '.join(odd)}"
    for token in definition.get("added_tokens", []):
        if token.get("single_word"):
            return f"its added token {token['content']!r} is for single words only"
        if _is_odd(token) and token.get("normalized") and definition.get("normalizer"):
            return f"its added token {token['content']!r} takes whitespace, in text that is normalized"
    cut, text = _shape(before), _shape(definition.get("normalizer") or {})
    if (cut, text) in _SHAPES:
        return ""
    return f"its pre-tokenizer {cut} with normalizer {text} was never compared"


def _shape(part: dict[str, Any]) -> str:
    """A normalizer or a pre-tokenizer in short, with all that decides what it does."""
    parts = part.get("pretokenizers") or part.get("normalizers")
    if parts:
        return "+".join(map(_shape, parts))
    kind = str(part.get("type", "none"))
    if kind == "ByteLevel":
        return f"{kind}({'prefix ' * bool(part.get('add_prefix_space'))}{'regex' * bool(part.get('use_regex', True))})"
    if kind == "Split":
        pattern = part.get("pattern", {}).get("Regex")
        named = next((name for name, known in PATTERNS.items() if known == pattern), "of another pattern")
        return f"{kind}({named} {part.get('behavior')}{' inverted' * bool(part.get('invert'))})"
    options = {key: value for key, value in part.items() if key != "type"}
    return kind + (f"({json.dumps(options)})" if options else "")


_SPLIT = "+ByteLevel()"
_SHAPES = {
    ("ByteLevel(regex)", "none"), ("ByteLevel(prefix regex)", "none"),
    *((f"Split({name} Isolated){_SPLIT}", text) for name in PATTERNS for text in ("none", "NFC")),
    ("none", 'Prepend({"prepend": "\\u2581"})+Replace({"pattern": {"String": " "}, "content": "\\u2581"})'),
}  # fmt: skip
