"""Quarantined token ranges: damaged data that keep their place in the order and give no loss."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from conceptloader.blend.schema import QuarantineConfig
from conceptloader.errors import ConfigError, ReadError

TokenRanges = Sequence[tuple[int, int]]


def read_quarantine(entries: Sequence[QuarantineConfig], num_tokens: Mapping[str, int]) -> dict[str, TokenRanges]:
    """Dataset -> its quarantined ranges [first, end), sorted, apart from each other, files read.

    num_tokens: of each dataset. Raises ConfigError for a range outside its dataset, ReadError.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for k, entry in enumerate(entries):
        ranges = [(entry.tokens, f"quarantine[{k}].tokens")] if entry.tokens else _read(entry.file or "")
        for (first, end), where in ranges:
            if not 0 <= first < end <= num_tokens[entry.dataset]:
                raise ConfigError(
                    where,
                    f"[{first}, {end}]",
                    f"tokens of {entry.dataset}: 0 <= first < end <= {num_tokens[entry.dataset]}",
                )
            found.setdefault(entry.dataset, []).append((first, end))
    return {name: _merged(ranges) for name, ranges in found.items()}


def read_lines(path: str, what: str) -> list[str]:
    """Of a text file, ended by line feeds alone: an id may hold other separators. Raises: ReadError that says what it
    is."""
    try:
        return Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(f"{path}: cannot read {what}: {error}") from error


def _read(path: str) -> list[tuple[tuple[int, int], str]]:
    """Lines of "first end"; # starts a comment."""
    ranges = []
    for number, line in enumerate(read_lines(path, "quarantined ranges"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
            raise ConfigError(f"{path}, line {number}", repr(line[:80]), "two token numbers: first end")
        ranges.append(((int(words[0]), int(words[1])), f"{path}, line {number}"))
    return ranges


def _merged(ranges: list[tuple[int, int]]) -> TokenRanges:
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged
