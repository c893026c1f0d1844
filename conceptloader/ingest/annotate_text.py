"""The text of stored documents, for offsets in characters: only where decoding and encoding again gives the tokens."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from conceptloader.errors import ConfigError, InputError
from conceptloader.format.ranges import Ranges
from conceptloader.ingest.batch import Ints, Ragged
from conceptloader.ingest.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Read:
    """which: the documents that were read, as indices into those asked for, ascending; their tokens without eos, texts
    and positions (see `Tokenizer.encode`); eos: the id which all of them end with, or None."""

    which: Ints
    tokens: Ragged
    texts: list[str]
    positions: Ints
    eos: int | None


class Texts:
    """Decodes documents of `ds` by `tokenizer`.

    Raises: ConfigError if the dataset was made with another tokenizer, or if the tokenizer changes texts (normalizes
    them, adds a space in front, is not of the byte-level kind), because then nobody can tell what an offset meant.
    """

    def __init__(self, ds: Ranges, tokenizer: Tokenizer) -> None:
        found = ds.manifest.tokenizer.name if ds.manifest.tokenizer else None
        if found != tokenizer.name:
            raise ConfigError(
                f"{ds.path}: found tokens of {found or 'an unknown tokenizer'}, expected {tokenizer.name!r}, the one "
                "given; give the tokenizer that the dataset was built with, or offsets in tokens (--unit tokens)"
            )
        problem = _loss(tokenizer)
        if problem:
            raise ConfigError(
                f"tokenizer {tokenizer.name}: found {problem}, expected one that gives back every text exactly "
                "(bytes, or byte-level BPE without a normalizer); give offsets in tokens (--unit tokens)"
            )
        self._ds = ds
        self._tokenizer = tokenizer

    def read(self, documents: Ints, first: Ints, stop: Ints) -> Iterator[Read]:
        """Documents by number, which have tokens [first, stop) of the dataset. Raises: InputError for a document whose
        tokens its text does not give back."""
        eos = self._tokenizer.eos_id
        stored = [self._ds.tokens(a, b) for a, b in zip(first.tolist(), stop.tolist(), strict=True)]
        ended = np.array([eos is not None and len(ids) > 0 and ids[-1] == eos for ids in stored], bool)
        for has_eos in (False, True):
            which = np.flatnonzero(ended == has_eos)
            if not len(which):
                continue
            wanted = [stored[i][: -1 if has_eos else None] for i in which.tolist()]
            texts = [self._tokenizer.decode(ids.tolist()) for ids in wanted]
            tokens, positions = self._tokenizer.encode(texts, [True] * len(texts))
            for i, ids in enumerate(wanted):
                again = tokens.values[tokens.offsets[i] : tokens.offsets[i + 1]]
                if not np.array_equal(again, ids):
                    raise InputError(
                        f"{self._ds.path}: document {int(documents[which[i]])}: found tokens that its text does not "
                        "give back, expected the same tokens; give offsets in tokens (--unit tokens)"
                    )
            tokens = Ragged(tokens.values.astype(np.uint32), tokens.offsets)  # a type that holds eos, too
            yield Read(which=which, tokens=tokens, texts=texts, positions=positions, eos=eos if has_eos else None)


def _loss(tokenizer: Tokenizer) -> str | None:
    """What makes a tokenizer lose or change characters, or None if nothing does."""
    if tokenizer.definition is None:
        return None  # bytes
    definition: dict[str, Any] = json.loads(tokenizer.definition)
    if definition.get("normalizer"):
        return f"the normalizer {definition['normalizer'].get('type')}"
    if (definition.get("decoder") or {}).get("type") != "ByteLevel":
        return f"the decoder {(definition.get('decoder') or {}).get('type')}"
    before = definition.get("pre_tokenizer") or {}
    parts = before.get("pretokenizers", [before])
    if any(part.get("add_prefix_space") for part in parts):
        return "a space put in front of texts (add_prefix_space)"
    if any(part.get("behavior") == "Removed" for part in parts):
        return "a pre-tokenizer that removes characters"
    return None
