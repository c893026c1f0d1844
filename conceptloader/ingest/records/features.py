"""What `datasets` says that values of a table mean: names of its labels, and text that is JSON."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from conceptloader.errors import InputError
from conceptloader.ingest.parquet import is_list, is_text, list_parts
from conceptloader.ingest.records.records import parse_value


def features_of(path: str, schema: Any) -> dict[str, Any]:
    """The features of the columns of a file, by name, that its schema keeps.

    Raises: InputError.
    """
    found: dict[str, Any] = {}
    try:
        if text := (schema.metadata or {}).get(b"huggingface"):
            found |= json.loads(text).get("info", {}).get("features") or {}
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            path,
            f"no readable features of datasets ({error})",
            "the features that datasets writes",
            "write the files again with datasets: Dataset.to_parquet",
        ) from error
    return {name: found[name] for name in schema.names if name in found}


def label_names(feature: Any) -> Sequence[str] | None:
    """The names of a ClassLabel, or of the labels that a list of them has."""
    if isinstance(feature, list) and feature:
        return label_names(feature[0])
    if not isinstance(feature, dict):
        return None
    names = feature.get("names")
    if feature.get("_type") == "ClassLabel":
        return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
    return label_names(_item(feature)) if "feature" in feature else None


def meant(table: Any, features: Mapping[str, Any], numbers: Collection[str | None]) -> Any:
    """A record batch with names in place of numbers of labels, and JSON as such, but for columns of `numbers`.

    Raises: ValueError.
    """
    for i, name in enumerate(table.schema.names):
        if name not in numbers and _tells(features.get(name)):
            table = table.set_column(i, name, _meant(table.column(i), features[name], name))
    return table


def _tells(feature: Any) -> bool:
    """Whether values of that feature mean something else than is stored, or parts of them."""
    if isinstance(feature, dict) and isinstance(feature.get("_type"), str):
        return feature["_type"] in ("ClassLabel", "Json") or _tells(feature.get("feature"))
    parts = feature.values() if isinstance(feature, dict) else feature if isinstance(feature, list) else ()
    return any(map(_tells, parts))


def _item(feature: Any) -> Any:
    """The feature of the items of a list."""
    return feature[0] if isinstance(feature, list) else feature.get("feature")


def _meant(array: Any, feature: Any, name: str) -> Any:
    import pyarrow as pa

    kind = array.type
    if not _tells(feature):
        return array
    if isinstance(feature, dict) and feature.get("_type") == "Json" and is_text(kind):
        return pa.ExtensionArray.from_storage(pa.json_(kind), array)
    if (names := label_names(feature)) is not None and pa.types.is_integer(kind):
        return _named(array, names, name)
    if pa.types.is_struct(kind):
        inner = _item(feature) if isinstance(feature, dict) and isinstance(feature.get("_type"), str) else feature
        of_lists = inner is not feature  # as datasets stores a list of objects, before version 4
        keys = [field.name for field in kind]
        parts = [
            _meant(part, {"_type": "List", "feature": inner.get(key)} if of_lists else inner.get(key), f"{name}.{key}")
            for key, part in zip(keys, array.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(parts, keys, mask=array.is_null())
    if is_list(kind):
        values, offsets = list_parts(array)
        values = _meant(values, _item(feature), name)
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=array.is_null())
    return array


def _named(array: Any, names: Sequence[str], name: str) -> Any:
    """-1 is no label, as datasets has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.if_else(pc.equal(array, -1), None, array)
    bounds = pc.min_max(found).as_py()
    wrong = [value for value in bounds.values() if value is not None and not 0 <= value < len(names)]
    if wrong:
        raise ValueError(f"{name}: found label {wrong[0]}, expected one of {len(names)}")
    return pa.DictionaryArray.from_arrays(found.cast(pa.int32()), pa.array(names, pa.string()))


def holds_json(kind: Any) -> bool:
    """Whether values of that type of pyarrow are JSON, or parts of them."""
    return _is_json(kind) or any(holds_json(kind.field(i).type) for i in range(kind.num_fields))


def _is_json(kind: Any) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.json"


def decoded(value: Any, kind: Any) -> Any:
    """A Python object of that type with what its JSON says. Raises: ValueError."""
    import pyarrow as pa

    if value is None or not holds_json(kind):
        return value
    if _is_json(kind):
        try:
            return parse_value(value)
        except ValueError as error:
            raise ValueError(f"found {value!r:.100} in a column of Json ({error}), expected JSON") from error
    if pa.types.is_struct(kind):
        return {name: decoded(item, kind.field(name).type) for name, item in value.items()}
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return {name: decoded(item, kind.item_type) for name, item in pairs}
    return [decoded(item, kind.value_type) for item in value]
