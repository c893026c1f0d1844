"""What names of files say: which records they hold, which split, which of how many, which values of columns."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

from conceptloader.errors import ConfigError, InputError

EXPECTED = ".jsonl, .csv or .tsv (or one of these with .gz or .zst), .parquet or .arrow"
_LINES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_TABLES = (".parquet", ".parq", ".arrow")
_COMPRESSED = {".gz": "gz", ".zst": "zst"}

# Suffixes of what cannot be read -> what to do with such a file, the first that fits.
_REMEDIES = {
    (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2", ".zip", ".7z"): "unpack it, and name the directory",
    (".xz",): "compress it otherwise: xz -dc FILE | zstd -o NAME.zst",
    (".bz2",): "compress it otherwise: bzip2 -dc FILE | zstd -o NAME.zst",
    (".lz4", ".br", ".snappy", ".lzo", ".z"): "decompress it, or compress it with gzip or zstd",
    (".txt", ".md", ".text", ".html"): 'write a .jsonl with a line {"text": ...} for each document',
    (".feather", ".ipc", ".orc", ".avro", ".xlsx", ".db", ".sqlite", ".pkl", ".h5"): "write it as .parquet",
}

_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
    "holdout": ("holdout", "heldout"),
}  # the words that `datasets` knows, and the last ones
_USUAL = {word: usual for usual, words in _SPLITS.items() for word in words}
_NEUTRAL = {"data", "dataset", "set", "split", "part", "shard", "chunk", "file", "batch", "v", "raw"}
_NUMBERED = re.compile(r"(.*?)[-_.]?(\d+)-of-(\d+)(?!\d)")
_PUSHED = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")  # as `push_to_hub` names files
_KEY = re.compile(r"([^=/]+)=([^/]*)")


def kind_of(path: str) -> tuple[str, str | None]:
    """("lines" or "table", compression), by endings in any case; ("", None) for a file of another kind."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in _TABLES:
        return "table", None
    compression = _COMPRESSED.get(suffix)
    if compression:
        suffix = os.path.splitext(stem)[1]
    return ("lines", compression) if suffix in _LINES else ("", None)


def unknown_kind(path: str) -> ConfigError:
    """The error for a file whose records cannot be read, with what to do."""
    name = os.path.basename(path).lower()
    remedy = next((remedy for ends, remedy in _REMEDIES.items() if name.endswith(ends)), "rename the file")
    return ConfigError(f"input {path}", "an unknown file name", f"a name that ends in {EXPECTED}", remedy)


def stem_of(path: str) -> str:
    """The path without the suffixes of a kind of records."""
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _COMPRESSED:
        stem, suffix = os.path.splitext(stem)
    return stem if suffix.lower() in (*_LINES, *_TABLES) else path


def is_hidden(name: str) -> bool:
    """Whether Spark, `datasets` and others overlook the file: a part of its path begins with a dot or underscore.

    So does what `datasets` has not completed.
    """
    return any(part.startswith((".", "_")) or part.endswith(".incomplete") for part in name.split("/"))


def usual_split(split: str) -> str:
    """The usual word for a split, validation for dev, valid and so on; other names as they are."""
    return _USUAL.get(split.lower(), split)


def split_names(names: Sequence[str]) -> dict[str, str]:
    """The split that the path of each file names, "" for none.

    A folder or a file does so whose name is a word for a split, numbers and words such as "data" aside (train-00001,
    validation/), or one such word with others if one with the same others is there without it or with another one
    (wiki.train.raw, wiki.test.raw), or that begins with the word that such names begin with (train_sft, test_sft,
    train_gen), or, of a folder, one at its end (wiki_test_set). So training_notes.jsonl alone is of no split.
    """
    pushed = {name: found[1] for name in names if (found := _PUSHED.fullmatch(name))}
    if len({*pushed.values()}) > 1:
        return {name: pushed.get(name, "") for name in names}
    words = {part: _words(part) for name in names for part in _parts(name)}
    beside: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for split, others in words.values():
        beside[others].add(split)
    named = {part: split for part, (split, others) in words.items() if not others or len(beside[others]) > 1}
    first = {split for part, split in named.items() if split and words[part][1] and _begins(part, split)}
    named |= {part: split for part, (split, _) in words.items() if split in first and _begins(part, split)}
    folders = {part for name in names for part in _parts(name)[:-1]}
    named |= {part: words[part][0] for part in folders if words[part][0] and _known_words(part)[-1] == words[part][0]}
    return {name: next(filter(None, (named.get(part) for part in _parts(name))), "") for name in names}


def _parts(name: str) -> list[str]:
    *folders, last = map(stem_of, name.split("/"))  # a folder may be train.parquet, too
    found = _NUMBERED.match(last)
    return [*folders, found[1] if found else last]


def _known_words(part: str) -> list[str]:
    """The words of a name, but for neutral ones."""
    return [word for word in re.findall(r"[^\W\d_]+", part.lower()) if word not in _NEUTRAL]


def _begins(part: str, split: str) -> bool:
    return _known_words(part)[0] == split


def _words(part: str) -> tuple[str, tuple[str, ...]]:
    """(the word for a split in a name, "" if there is none or two; the other words)."""
    words = _known_words(part)
    found = [word for word in words if word in _USUAL]
    if len(found) != 1:
        return "", tuple(words) or ("",)
    return found[0], tuple(word for word in words if word != found[0])


def columns_of(name: str) -> dict[str, str | None]:
    """Values of columns that stand in the names of folders (Hive's `lang=en/`), as text; that of a split is none."""
    found = [_KEY.fullmatch(part) for part in name.split("/")[:-1]]
    values = {unquote(key[1]): unquote(key[2]) for key in found if key is not None}
    return {
        key: None if value == "__HIVE_DEFAULT_PARTITION__" else value for key, value in values.items() if key != "split"
    }


def check_numbered(folder: str, names: Iterable[str], unfinished: Iterable[str] = ()) -> None:
    """Of files NAME-i-of-n all n are there, once. unfinished: others, which a library did not complete.

    Raises: InputError.
    """
    found: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for name in names:
        head, _, last = name.rpartition("/")
        if number := _NUMBERED.match(last):
            found[f"{head}/{number[1]}".lstrip("/")].append((int(number[2]), int(number[3]), name))
    for stem, files in found.items():
        numbers, totals = sorted(number for number, _, _ in files), sorted({total for _, total, _ in files})
        total, first = totals[0], int(min(numbers) > 0 and max(numbers) == totals[0])
        problem = ""
        if len(totals) > 1:
            problem = f"files of {' and of '.join(map(str, totals))}"
        elif len({*numbers}) < len(numbers):
            twice = next(number for number in numbers if numbers.count(number) > 1)
            problem = f"number {twice} twice ({', '.join(name for number, _, name in files if number == twice)})"
        elif numbers != [*range(first, first + total)]:
            lacking = sorted({*range(first, first + total)} - {*numbers})
            shown = ", ".join(map(str, lacking[:5])) + (", ..." if lacking[5:] else "")
            problem = f"{len(numbers)} of {total} files, without {shown}" if lacking else f"number {numbers[-1]}"
        if problem:
            begun = next((name for name in unfinished if name.startswith(stem)), None)
            problem += f"; {begun} is not complete" if begun else ""
            raise InputError(
                os.path.join(folder, f"{stem}-*-of-*"),
                problem,
                "the files of one set, each once",
                "complete the set, remove what is left of another, or pass the files that are meant one by one",
            )


def beside_each_other(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of files whose names differ in the kind or the compression only."""
    met: dict[str, str] = {}
    pairs: Mapping[str, str] = {path: met.setdefault(stem_of(path), path) for path in paths}
    return [(path, first) for path, first in pairs.items() if path != first]
