"""Ids from gigatoken, some hundred times faster than from tokenizers, where both are known to give the same.

Nothing but time depends on it: names of tokenizers and the bytes of a dataset are those of tokenizers, or the build
ends. So an environment variable switches it off, CONCEPTLOADER_FAST=0, which worker processes inherit.
"""

import json
import os
from collections.abc import Sequence
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

    Raises:
        InputError: For any difference.
        ValueError: What gigatoken cannot load, as it says.
    """

    def __init__(self, tokenizer: Any, path: str) -> None:
        self._tokenizer, self._path, self._definition = tokenizer, path, tokenizer.to_str()
        self.compared, self._seen = 0, 0
        self._renew()
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        hard = [*HARD, *(f"a{name} {name}b {name}{name}\n{name[:-1]}" for name in added[:64])]
        for text in hard:
            self.compare(text, self._fast.encode(text))

    def _renew(self) -> None:
        self._fast: Any = import_module("gigatoken").Tokenizer.from_json(self._definition)
        self._left = RENEWED

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text."""
        found = []
        for text in texts:
            if self._left < 0:
                self._renew()
            self._left -= len(text)
            found.append(self._fast.encode(text))
        for k in range(len(texts)):
            if self._seen + k < FIRST or (self._seen + k) % EVERY == 0:
                self.compare(texts[k], found[k])
                self.compared += 1
        self._seen += len(texts)
        return found

    def take_compared(self) -> int:
        """How many texts were compared since the last call."""
        count, self.compared = self.compared, 0
        return count

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
    except InputError:
        raise
    except ValueError as error:
        return f"gigatoken refuses it: {error}"


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
