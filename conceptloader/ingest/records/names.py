"""Names of the concepts that an input has, for a vocabulary."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.vocabulary import dump_vocabulary
from conceptloader.ingest.records.columns import column_of
from conceptloader.ingest.records.inputs import Source, read_rows
from conceptloader.storage.durable import write_file


def count_names(
    sources: Sequence[Source],
    track: str,
    theirs: Mapping[str, str],
    max_line_bytes: int,
    *,
    flat: bool = False,
    on_bad: Callable[[str], None] | None = None,
) -> "Counter[str]":
    """How often each name stands in the spans of a track. Concepts that are ids have none.

    theirs: what columns and fields of spans are called, where that differs. flat: each row is a span. on_bad: called
    with what is wrong with a row, which is skipped then.

    Raises: InputError naming file and line, unless there is `on_bad`, and if there are no names at all.
    """
    ours, names = column_of(track), Counter[str]()
    labels = theirs.get("concepts", "concepts")
    column = labels if flat else theirs.get(ours, ours)
    for source in sources:
        for number, record in surveyed(source, max_line_bytes, column, on_bad):
            spans = [record] if flat else record.get(column)
            some: list[str] = []
            try:
                for span in () if spans is None else spans:
                    found = span[labels]
                    some += (one for one in ([found] if isinstance(found, str) else found) if isinstance(one, str))
            except (TypeError, KeyError) as error:
                problem = InputError(
                    f"{source.row_name(number)}: {column}",
                    f"{spans!r:.100}",
                    f"a list of spans with {labels}",
                    "correct the record, or name the columns of its spans: --column OURS=THEIRS",
                )
                if on_bad is None:
                    raise problem from error
                on_bad(str(problem))
            names.update(some)
        source.check_unchanged()
    if not names:
        raise InputError(
            ", ".join(source.path for source in sources[:5]),
            f"no concept name in column {column!r}",
            "at least one concept name",
            "pass --track topic for the column spans_topic, or --column",
        )
    return names


def surveyed(
    source: Source, limit: int, column: str | None, on_bad: Callable[[str], None] | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """`read_rows`; on_bad is called with what is wrong with a row, or with the rest of the file, and all else read."""
    if on_bad is None:
        yield from read_rows(source, limit, column)
        return
    try:
        yield from read_rows(source, limit, column, lambda row, what: on_bad(f"{source.row_name(row)}: {what}"))
    except InputError as error:
        on_bad(str(error))


def require_new(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError if something is there."""
    if os.path.lexists(path):
        raise _taken(path)


def _taken(path: str | os.PathLike[str]) -> ConfigError:
    return ConfigError(os.fspath(path), "a file", "a new file", f"pass another --out, or run `rm {os.fspath(path)}`")


def write_names(path: str | os.PathLike[str], names: Mapping[str, int], min_count: int = 1) -> tuple[int, int]:
    """Write a new file of names, the most frequent first. Return how many there are, and how many rarer ones not.

    Raises: ConfigError if there is such a file.
    """
    kept = sorted((name for name, n in names.items() if n >= min_count), key=lambda name: (-names[name], name))
    unfit = next((name for name in kept if not name or "\n" in name or name != name.removesuffix("\r")), None)
    if unfit is not None or (kept and kept[0].startswith(("[", "\ufeff"))):
        data = dump_vocabulary(kept)  # names that lines cannot hold: a JSON list, which `build` reads as well
    else:
        data = "".join(f"{name}\n" for name in kept).encode("utf-8")
    if not write_file(os.path.abspath(path), data, exclusive=True):
        raise _taken(path)
    return len(kept), len(names) - len(kept)
