"""Files of ranges of tokens, lines of "first end": what `subset --ranges` writes, and `exclude` reads.

The first two lines of what the command wrote say of which dataset and tracks the ranges are, and how they were chosen.
Other files are somebody's list, and # starts a comment.
"""

import os
from collections.abc import Collection
from pathlib import Path
from shlex import quote

import numpy as np

from conceptloader.config.mask import Mask
from conceptloader.errors import ConfigError, ReadError
from conceptloader.format.read.dataset import Dataset
from conceptloader.format.spec.columns import Ints
from conceptloader.storage.durable import write_file

_HEAD = "# conceptloader ranges 1: "
_CHOSEN = "# chosen by: "


def write_ranges(path: str, dataset: Dataset, start: Ints, stop: Ints, chosen: str) -> tuple[int, int]:
    """Write ranges [start, stop) of the tokens of a dataset, sorted, those that touch as one.

    chosen: the options of `conceptloader subset` that they come from. Returns: how many ranges, of how many tokens.

    Raises: ConfigError for a file that is there and is no such list, ReadError.
    """
    if os.path.exists(path) and not read_lines(path, "ranges")[0].startswith(_HEAD):
        raise ConfigError(path, "another file", "a new name, or a file of ranges of this command", "pass another FILE")
    ranges = Mask.of(start, stop, 0).ranges(0)
    lines = [_head(dataset, ranges), _CHOSEN + chosen, *(f"{first} {end}" for first, end in ranges)]
    write_file(path, "\n".join([*lines, ""]).encode())
    return len(ranges), _count(ranges)


def read_ranges(path: str, dataset: Dataset, past: bool) -> Ints:
    """int64 [n, 2]: the ranges [first, end) of a file.

    past: whether they may be of earlier tracks.

    Raises: ConfigError for what is no range of the dataset, and for ranges of another one, or of other tracks, that the
    command wrote, or of which some are missing; ReadError.
    """
    found, lines = dict[str, tuple[int, int]](), read_lines(path, "ranges to exclude")
    headed = any(line.lstrip().startswith(_HEAD[:22]) for line in lines)
    if headed and not lines[0].startswith(_HEAD):
        raise ConfigError(
            path, "a first line that is not as subset --ranges writes it", "the file as it was written",
            "write the file again, or remove that line to keep the ranges as a list of your own",
        )  # fmt: skip
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path}, line {number}"
        if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            raise ConfigError(where, repr(line[:80]), "two token numbers: first end", f"write `first end` on {where}")
        found[where] = int(words[0]), int(words[1])
    if lines[0].startswith(_HEAD):
        said, expected = (one.split(",")[: 1 if past else 2] for one in (lines[0], _head(dataset, found.values())))
        if said != expected:
            how = "".join(lines[1:2]).removeprefix(_CHOSEN)
            again = f"conceptloader subset {quote(dataset.path)} {how} --ranges {quote(path + '.new')}"
            fix = f"run `{again}` and name that file; a run that has read by the old ranges keeps them: remove line 1"
            raise ConfigError(path, ",".join(said), f"{','.join(expected)}, as of {dataset.path}", fix)
    if not found:
        raise ConfigError(
            path, "no range", "a line `first end` for each range", "correct the file, or remove the entry"
        )
    for where, (first, end) in found.items():
        check_range(first, end, where, dataset.num_tokens)
    return np.array([*found.values()], np.int64).reshape(-1, 2)


def check_range(first: int, end: int, where: str, size: int) -> None:
    """Raise ConfigError unless tokens [first, end) are some of a dataset's."""
    if not 0 <= first < end <= size:
        expected = f"tokens of the dataset: 0 <= first < end <= {size}"
        raise ConfigError(where, f"[{first}, {end}]", expected, f"correct {where}")


def read_lines(path: str, what: str) -> list[str]:
    """Of a text file, ended by line feeds alone: an id may hold other separators.

    Raises: ReadError that says what it is.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(
            f"{path}",
            f"cannot read {what}: {error}",
            fix=f"run `ls -l {path}`: it must exist, and you must be allowed to read it",
        ) from error


def _head(dataset: Dataset, ranges: Collection[tuple[int, int]]) -> str:
    """The first line. What is after the comma covers tracks, ids and where documents begin."""
    count = f"{len(ranges)} ranges of {_count(ranges)} tokens"
    return f"{_HEAD}{count} of the dataset {dataset.stream_fingerprint}, its tracks {dataset.tracks_fingerprint}"


def _count(ranges: Collection[tuple[int, int]]) -> int:
    return sum(end - first for first, end in ranges)
