"""Names of the concepts that an input has, for a vocabulary."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from conceptloader.errors import ConfigError
from conceptloader.format.spec.vocabulary import dump_vocabulary
from conceptloader.ingest.records.columns import column_of
from conceptloader.ingest.records.inputs import Source, read_rows
from conceptloader.storage.durable import write_file


def count_names(
    sources: Sequence[Source], track: str, theirs: Mapping[str, str], on_bad: Callable[[str], None]
) -> Counter[str]:
    """How often each name stands in the spans of a track. Concepts that are ids have none.

    theirs: what columns and fields of spans are called, where that differs. on_bad: called
    with what is wrong with a row, which is skipped then.
    """
    ours, names = column_of(track), Counter[str]()
    labels = theirs.get("concepts", "concepts")
    column = theirs.get(ours, ours)
    for source in sources:
        for number, record in read_rows(source, column, on_bad):
            spans = record.get(column)
            some: list[str] = []
            try:
                for span in () if spans is None else spans:
                    found = span[labels]
                    some += (one for one in ([found] if isinstance(found, str) else found) if isinstance(one, str))
            except (TypeError, KeyError):
                where, expected = f"{source.row_name(number)}: {column}", f"a list of spans with {labels}"
                on_bad(f"{where}: found {spans!r:.100}, expected {expected}")
            names.update(some)
        source.check_unchanged()
    return names


def require_new(path: str) -> None:
    """Raise ConfigError if something is there."""
    if os.path.lexists(path):
        raise _taken(path)


def _taken(path: str) -> ConfigError:
    return ConfigError(path, "a file", "a new file", f"pass another --out, or run `rm {path}`")


def write_names(path: str, names: Mapping[str, int]) -> None:
    """Write a new file of names, the most frequent first. Raises: ConfigError if there is such a file."""
    kept = sorted(names, key=lambda name: (-names[name], name))
    unfit = next((name for name in kept if not name or "\n" in name or name != name.removesuffix("\r")), None)
    if unfit is not None or (kept and kept[0].startswith(("[", "\ufeff"))):
        data = dump_vocabulary(kept)  # names that lines cannot hold: a JSON list, which `build` reads as well
    else:
        data = "".join(f"{name}\n" for name in kept).encode("utf-8")
    if not write_file(os.path.abspath(path), data, exclusive=True):
        raise _taken(path)
