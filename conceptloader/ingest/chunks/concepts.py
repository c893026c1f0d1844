"""The concepts of a table under dense ids, those of one kind side by side."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conceptloader.errors import InputError
from conceptloader.ingest.chunks.options import ConceptTable
from conceptloader.ingest.records.documents import plain
from conceptloader.ingest.records.table import column_types, read_objects


@dataclass(frozen=True)
class Library:
    """Index = dense id.

    keys: what the labels of the corpus call them. kinds: of each. names: each once. details: all columns of the table,
    by concept; `to_json` makes JSON of them.
    """

    keys: Sequence[Any]
    kinds: Sequence[str]
    names: Sequence[str]
    details: Sequence[Mapping[str, Any]]

    def groups(self) -> dict[str, int]:
        """How many concepts each kind has, in the order of their ids."""
        return dict(Counter(self.kinds))

    def to_json(self) -> list[dict[str, Any]]:
        return [{name: _json(value) for name, value in row.items()} for row in self.details]


def load_library(table: ConceptTable, kinds: Sequence[str]) -> Library:
    """The concepts, ordered by kind as in `kinds`, then by key.

    A name that several concepts have is followed by their kind, and, within a kind, by the key too.
    Raises: InputError for a missing column, a key twice, a kind that is not in `kinds`.
    """
    names = column_types(table.path)
    for column in filter(None, (table.key, table.kind, table.name)):
        if column not in names:
            raise InputError(
                table.path,
                f"columns {', '.join(names)}",
                repr(column),
                "name the columns of the table: key, kind and name of chunks.concepts in the recipe",
            )
    rows = [row for _, row in read_objects(table.path)]
    seen: dict[Any, int] = {}
    for number, row in enumerate(rows):
        key, kind = row[table.key], row[table.kind] if table.kind else kinds[0]
        if key is None or key in seen:
            where = "" if key is None else f", as in row {seen[key]}"
            raise InputError(
                f"{table.path}: row {number}",
                f"{table.key} {key!r}{where}",
                "each key once",
                "remove one of the two rows",
            )
        seen[key] = number
        if kind not in kinds:
            raise InputError(
                f"{table.path}: row {number}",
                f"kind {kind!r}",
                f"one of {', '.join(kinds)}, of which there are columns of labels",
                "name a column for it",
            )
        if not isinstance(row[table.name], str) or not row[table.name]:
            raise InputError(
                f"{table.path}: row {number}", f"name {row[table.name]!r}", "a name", "fill it in, or remove the row"
            )
    rows.sort(key=lambda row: (kinds.index(row[table.kind]) if table.kind else 0, row[table.key]))
    keys = [row[table.key] for row in rows]
    of = [row[table.kind] if table.kind else kinds[0] for row in rows]
    return Library(keys, of, _distinct([row[table.name] for row in rows], of, keys), rows)


def _json(value: Any) -> Any:
    """Bytes become text."""
    found = plain(value)
    return found.hex() if isinstance(found, bytes) else found


def _distinct(names: list[str], kinds: list[str], keys: list[Any]) -> list[str]:
    longer = [f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True)]
    longest = [f"{name} ({kind} {key})" for name, kind, key in zip(names, kinds, keys, strict=True)]
    times, times_longer = Counter(names), Counter(longer)
    return [
        names[i] if times[names[i]] == 1 else longer[i] if times_longer[longer[i]] == 1 else longest[i]
        for i in range(len(names))
    ]
