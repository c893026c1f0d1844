"""Strict JSON: typed access with errors that name file and key, duplicate keys refused, atomic and durable writing."""

import difflib
import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import xxhash

from conceptloader.format.spec.layout import DAMAGED, bad
from conceptloader.storage.reads import read_file

T = TypeVar("T")

_LIMIT = 1 << 30
_SEAL = re.compile(rb',\n "checksum": "([0-9a-f]{16})"\n}\n')
_SEAL_SIZE = len(b',\n "checksum": "0123456789abcdef"\n}\n')
_MISSING: Any = object()
_KINDS = {int: "an integer", str: "a string", list: "a list", dict: "an object", bool: "true or false"}


def parse_json(data: bytes, where: str) -> Any:
    """The value of a UTF-8 JSON text. Raises: FormatError for anything else, duplicate keys, NaN and 1e999 included."""

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    def finite(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            raise ValueError(f"{digits:.100} is more than a number of 64 bits holds")
        return value

    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=each_once, parse_constant=constant, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise bad(where, f"no valid JSON ({error})", "JSON in UTF-8", DAMAGED) from error


def each_once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, as json's object_pairs_hook. Raises: ValueError for a key that is there twice: json takes the last."""
    found: dict[str, Any] = {}
    for key, value in items:  # in less time than dict(items)
        found[key] = value
    if len(found) < len(items):
        keys = [key for key, _ in items]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"found the duplicate key {twice!r:.100}, expected each key of an object once; remove one")
    return found


def load_json(path: str) -> "JsonObject":
    """A file of this format, its seal checked. Raises: FormatError, ReadError."""
    return load_sealed(read_file(path, _LIMIT), path)


def load_sealed(data: bytes, where: str) -> "JsonObject":
    """What `dump_json` wrote: JSON that ends with the checksum of everything before it."""
    head, tail = data[:-_SEAL_SIZE], data[-_SEAL_SIZE:]
    found = _SEAL.fullmatch(tail)
    if found is None:
        parse_json(data, where)  # says what is wrong, if it is no JSON at all
        raise bad(
            where, "no checksum at the end", "one as the last key, as written", "do not edit the file; " + DAMAGED
        )
    checksum = xxhash.xxh3_64_hexdigest(head)
    if found[1].decode() != checksum:
        raise bad(where, f"checksum {checksum}", f"{found[1].decode()} as its end says", DAMAGED)
    value = JsonObject(parse_json(data, where), where)
    value.take("checksum", str)
    return value


def dump_json(value: dict[str, Any]) -> bytes:
    """Deterministic text, sealed; two levels of keys on lines of their own, so that a person can look at its head."""

    def compact(item: Any) -> str:
        return json.dumps(item, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    lines = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            inner = ",\n".join(f"  {json.dumps(k)}: {compact(v)}" for k, v in item.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {compact(item)}")
    return seal(("{\n" + ",\n".join(lines)).encode("ascii"))


def seal(head: bytes) -> bytes:
    """Close a JSON object, which is open at its end, with its checksum."""
    return head + b',\n "checksum": "%s"\n}\n' % xxhash.xxh3_64_hexdigest(head).encode()


class JsonObject:
    """A JSON object of a file, read key by key; `done` refuses what was not read."""

    def __init__(self, value: Any, where: str) -> None:
        if type(value) is not dict:
            raise bad(where, describe(value), "an object", DAMAGED)
        self.value: dict[str, Any] = value
        self.where = where
        self._read: set[str] = set()

    def at(self, key: str) -> str:
        return f"{self.where}: {key}"

    def take(self, key: str, kind: type, default: Any = _MISSING) -> Any:
        """The value of `key`, checked to be of `kind` (int, str, list, dict or bool); `default` if it is absent."""
        self._read.add(key)
        if key not in self.value:
            if default is _MISSING:
                raise bad(self.at(key), "nothing", _KINDS[kind], DAMAGED)
            return default
        value = self.value[key]
        if type(value) is not kind and not (value is None and default is None):
            raise bad(self.at(key), describe(value), _KINDS[kind], DAMAGED)
        return value

    def natural(self, key: str, limit: int, least: int = 0, default: Any = _MISSING) -> int:
        """An integer in [least, limit]."""
        value = self.take(key, int, default)
        if value is not None and not least <= value <= limit:
            raise bad(self.at(key), value, f"an integer in [{least}, {limit}]", DAMAGED)
        return value  # type: ignore[no-any-return]

    def taken(self, **kinds: type) -> dict[str, Any]:
        """The values of several keys, each of its kind."""
        return {key: self.take(key, kind) for key, kind in kinds.items()}

    def object(self, key: str, default: Any = _MISSING) -> "JsonObject":
        return JsonObject(self.take(key, dict, default), self.at(key))

    def optional(self, key: str, parse: Callable[["JsonObject"], T]) -> T | None:
        """What `parse` makes of the object `key`, reading all of it; None if it is null or absent."""
        return None if self.take(key, dict, None) is None else self.object(key).whole(parse)

    def whole(self, parse: Callable[["JsonObject"], T]) -> T:
        """What `parse` makes of this object. Raises: FormatError for a key that it did not ask for."""
        value = parse(self)
        self.done()
        return value

    def checksum(self, key: str, default: Any = _MISSING) -> Any:
        """An xxh3-64 checksum as it is written."""
        value = self.take(key, str, default)
        if value is not None and not is_checksum(value):
            rule = "16 lower-case hexadecimal digits" + (" or null" if default is None else "")
            raise bad(self.at(key), describe(value), rule, DAMAGED)
        return value

    def done(self) -> None:
        """Raises: FormatError for a key that nobody asked for, with the nearest key that exists."""
        for key in self.value:
            if key not in self._read:
                near = difflib.get_close_matches(key, self._read, 1)
                hint = f"did you mean {near[0]!r}?" if near else DAMAGED
                raise bad(self.at(key), "an unknown key", f"only {', '.join(sorted(self._read))}", hint)


def is_checksum(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 16 and set(value) <= set("0123456789abcdef")


def describe(value: Any) -> str:
    """A value as it is shown in a message: short, whatever it is."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} elements"
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def expect_format(head: JsonObject, name: str, version: int) -> None:
    """Check the two keys that every file of this format begins with. Raises: FormatError."""
    found = head.take("format", str)
    if found != name:
        raise bad(head.at("format"), describe(found), f'"{name}"', "this is not such a file; check the path")
    number = head.take("version", int)
    if number != version:
        rule = f"{version}, which this release of conceptloader reads"
        raise bad(head.at("version"), number, rule, "make the file again with this release, or read it with its own")
