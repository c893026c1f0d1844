"""What `datasets` says that values of a table mean, beyond what is stored: names of labels, text that is JSON."""

import json
from collections.abc import Collection, Iterator
from typing import Any

from conceptloader.errors import InputError

_FIX = (
    "write what it means, such as COPY (SELECT * REPLACE (['neg', 'pos'][label + 1] AS label) FROM '{0}') TO "
    "'{0}.jsonl' (FORMAT json) in DuckDB, or label::JSON; or omit it (--ignore-column {1})"
)


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
    for name, part in found:
        if not {name, part} & {*ignored}:
            expected = "names in place of numbers, and values in place of JSON"
            raise InputError(f"{path}: {part}", "labels or JSON of datasets", expected, _FIX.format(path, part))


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
