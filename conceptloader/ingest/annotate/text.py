"""The text of stored documents, for offsets in characters: only where decoding and encoding again gives the tokens."""

from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.ranges import Ranges
from conceptloader.format.spec.columns import Ints, offsets_of
from conceptloader.ingest.records.tokenizer import FileTokenizer, TextTokenizer, changes_text, is_of, kept_tokenizer


@dataclass(frozen=True)
class Read:
    """Documents.

    offsets: int64 [n + 1], of their tokens without eos; eos: bool [n], which of them end with one; texts, and places of
    the tokens (see `TextTokenizer.encode`), or None.
    """

    offsets: Ints
    eos: NDArray[np.bool_]
    texts: list[str] | None
    places: Ints | None


def known_text(ds: Ranges, tokenizer: TextTokenizer | None, unit: str | None) -> TextTokenizer | None:
    """What gives the text of the documents of `ds`, for offsets in `unit`: characters, or None for those of its build.

    A build counts characters of text, and tokens of what is tokenized already; of tokens of unknown origin the text is
    known if the tokenizer is. tokenizer: by default the one that a build left next to its tokens.

    Raises: ConfigError if offsets are in characters and there is no such tokenizer, or it is not the dataset's, or it
    changes texts (normalizes them, adds a space in front, is not of the byte-level kind), because then nobody can tell
    what an offset meant.
    """
    facts = ds.manifest.tokenizer
    if unit is None and tokenizer is None:
        columns = ds.manifest.extra.get("ingest", {}).get("columns", {})
        if facts is None or facts.name.startswith("unnamed-") or columns.get("tokens") is not None:
            return None
    tokenizer = tokenizer or kept_tokenizer(ds)
    if tokenizer is None:
        raise ConfigError(
            ds.path,
            "no tokenizer with the dataset",
            "a tokenizer for offsets in characters",
            "pass the --tokenizer that it was built with, or offsets in tokens with --span-unit token",
        )
    if not is_of(tokenizer, facts):
        raise ConfigError(
            ds.path,
            f"tokens of {facts.name if facts else 'an unknown tokenizer'}",
            f"{tokenizer.name!r}, the one given",
            "pass the --tokenizer that the dataset was built with, or offsets in tokens with --span-unit token",
        )
    problem = changes_text(tokenizer.definition)
    if problem:
        raise ConfigError(
            f"tokenizer {tokenizer.name}",
            str(problem),
            "a tokenizer that gives back every text exactly (bytes, or byte-level BPE without a normalizer)",
            "pass offsets in tokens, with --span-unit token",
        )
    if facts is not None and facts.eos_id is not None and facts.eos_id != tokenizer.eos_id:
        tokenizer = copy(tokenizer)
        tokenizer.eos_id = facts.eos_id  # what ends the documents
    return tokenizer


def read_texts(ds: Ranges, tokenizer: TextTokenizer, documents: Ints, first: Ints, stop: Ints) -> Read:
    """Documents by number, which have tokens [first, stop) of the dataset.

    Raises: InputError for a document whose tokens its text does not give back.
    """
    stored = [ds.tokens(a, b) for a, b in zip(first.tolist(), stop.tolist(), strict=True)]
    eos = np.array([len(ids) > 0 and ids[-1] == tokenizer.eos_id for ids in stored], bool)
    wanted = [ids[: -1 if ended else None] for ids, ended in zip(stored, eos.tolist(), strict=True)]
    texts = [tokenizer.decode(ids.tolist()) for ids in wanted]
    tokens, places = tokenizer.encode(texts, [True] * len(texts))
    found = [places[a:b] for a, b in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)]
    for i, ids in enumerate(wanted):
        again = tokens.values[tokens.offsets[i] : tokens.offsets[i + 1]]
        if not np.array_equal(again, ids) and isinstance(tokenizer, FileTokenizer):
            plain, found[i] = tokenizer.encode([texts[i]], [True], plain=True)  # its text spells special tokens
            again = plain.values
        if not np.array_equal(again, ids):
            raise InputError(
                f"{ds.path}: document {int(documents[i])}",
                "tokens that its text does not give back",
                "the same tokens",
                "pass offsets in tokens, with --span-unit token",
            )
    none = np.empty((0, 2), np.int64)
    return Read(offsets_of([len(ids) for ids in wanted]), eos, texts, np.concatenate([none, *found]))
