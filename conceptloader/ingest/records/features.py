"""What `datasets` says that values of a table mean, beyond what is stored: names of labels, text that is JSON."""

import json
from collections.abc import Collection, Iterator
from typing import Any

from conceptloader.errors import InputError


def check_features(path: str, schema: Any, names: Collection[str], ignored: Collection[str]) -> None:
    """Raise InputError for columns of these names that hold numbers of labels, or JSON: not what their rows say.

    ignored: columns, and parts of these, COLUMN.FIELD.
    """
    features: Any = {}
    try:
        if text := (schema.metadata or {}).get(b"huggingface"):
            features = json.loads(text).get("info", {}).get("features") or {}
        found = [(name, part) for name in names for part in _told(features.get(name), name)]
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            path,
            f"no readable features of datasets ({error})",
            "the features that datasets writes",
            "write the files again with datasets: Dataset.to_parquet",
        ) from error
    found += [(name, name) for name in names if name in schema.names and _holds_json(schema.field(name).type)]
    left = [(name, part) for name, part in dict.fromkeys(found) if not {name, part} & {*ignored}]
    for name, part in left:
        meant = [_meaning(features.get(one, {"_type": "Json"}), one) for one, _ in left]
        made = f"(SELECT * REPLACE ({', '.join(filter(None, meant))}) FROM {_quoted(path)})"
        line = f", in DuckDB COPY {made} TO {_quoted(path + '.jsonl')} (FORMAT json)" if all(meant) else ""
        field = ", or of spans and messages COLUMN.FIELD" if part != name else ""
        expected = "names in place of numbers, and values in place of JSON"
        fix = f"write what it means{line}; or omit it (--ignore-column {name}{field})"
        raise InputError(f"{path}: {part}", "labels or JSON of datasets", expected, fix)


def _quoted(text: str, mark: str = "'") -> str:
    """A text as SQL has it; a name with the other mark."""
    return mark + text.replace(mark, 2 * mark) + mark


def _meaning(feature: Any, name: str) -> str | None:
    """What the values of a column mean, in SQL; None for one that has only parts that mean something else."""
    column = _quoted(name, '"')
    names = feature.get("names") if isinstance(feature, dict) else None
    if isinstance(names, list) and feature.get("_type") == "ClassLabel":
        return f"[{', '.join(_quoted(str(one)) for one in names)}][{column} + 1] AS {column}"
    return f"{column}::JSON AS {column}" if isinstance(feature, dict) and feature.get("_type") == "Json" else None


def _told(feature: Any, name: str) -> Iterator[str]:
    """The parts of a feature whose values mean something else than is stored."""
    if isinstance(feature, list):
        for one in feature:
            yield from _told(one, name)
    elif isinstance(feature, dict) and isinstance(feature.get("_type"), str):
        if feature["_type"] in ("ClassLabel", "Json"):
            yield name
        yield from _told(feature.get("feature"), name)
    elif isinstance(feature, dict):
        for key, part in feature.items():
            yield from _told(part, f"{name}.{key}")


def _holds_json(kind: Any) -> bool:
    """Whether values of that type of pyarrow are JSON, or parts of them."""
    is_json = getattr(kind, "extension_name", "") == "arrow.json"
    return is_json or any(_holds_json(kind.field(i).type) for i in range(kind.num_fields))
