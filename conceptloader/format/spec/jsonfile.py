"""Strict JSON files with a checksum: read as dataclasses with errors that name file and key, duplicate keys refused."""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar

import xxhash

from conceptloader.base.strict import Rule, build, within
from conceptloader.errors import ConfigError
from conceptloader.format.spec.layout import DAMAGED, MAX_SIZE, bad
from conceptloader.storage.reads import read_file

T = TypeVar("T")

LIMIT = 1 << 30
_SEAL = re.compile(rb',\n "checksum": "([0-9a-f]{16})"\n}\n')
_SEAL_SIZE = len(b',\n "checksum": "0123456789abcdef"\n}\n')


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


@dataclass(frozen=True)
class JsonFile:
    """A checksummed object, without its checksum, which is apart. where: its path, for messages."""

    value: dict[str, Any]
    where: str
    checksum: str

    def parse(self, kind: type[T], name: str = "", version: int = 0) -> T:
        """As a dataclass of its keys. name, version: what `format` and `version`, which are none of these, must be.

        Raises: FormatError for a key that is missing, unknown, or of another type or value.
        """
        value = dict(self.value)
        if name:
            self._check(value.pop("format", None), name, value.pop("version", None), version)
        with self.named():
            return build(kind, value, "")

    def _check(self, found: Any, name: str, number: Any, version: int) -> None:
        if found != name:
            rule = f'"{name}"'
            raise bad(
                f"{self.where}: format", describe(found), rule, "pass the path of such a file: this is another kind"
            )
        if type(number) is not int or number != version:
            rule = f"{version}, which this release of conceptloader reads"
            remedy = "make the file again with this release, or `pip install` the one that wrote it"
            raise bad(f"{self.where}: version", describe(number), rule, remedy)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """What is wrong with a value is so with one of this file: a FormatError that names it."""
        try:
            yield
        except ConfigError as error:
            where = f"{self.where}: {error.path}" if error.path else self.where
            raise bad(where, error.found, error.expected, error.fix or DAMAGED) from error


def load_json(path: str) -> JsonFile:
    """A file of this format, its seal checked. Raises: FormatError, ReadError."""
    return load_sealed(read_file(path, LIMIT), path)


def load_sealed(data: bytes, where: str) -> JsonFile:
    """What `dump_json` wrote: JSON that ends with the checksum of everything before it."""
    head, tail = data[:-_SEAL_SIZE], data[-_SEAL_SIZE:]
    found = _SEAL.fullmatch(tail)
    if found is None:
        parse_json(data, where)  # says what is wrong, if it is no JSON at all
        raise bad(
            where,
            "no checksum at the end",
            "a checksum as the last key, as written",
            "do not edit the file; " + DAMAGED,
        )
    checksum = xxhash.xxh3_64_hexdigest(head)
    if found[1].decode() != checksum:
        raise bad(where, f"checksum {checksum}", f"{found[1].decode()} as its end says", DAMAGED)
    value = parse_json(data, where)
    if type(value) is not dict:
        raise bad(where, describe(value), "an object", DAMAGED)
    del value["checksum"]
    return JsonFile(value, where, checksum)


def dump_json(value: dict[str, Any]) -> bytes:
    """Deterministic text with a checksum; two levels of keys on separate lines, so that its head is readable."""

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


def is_checksum(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 16 and set(value) <= set("0123456789abcdef")


def describe(value: Any) -> str:
    """A value as it is shown in a message: short for any value."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} elements"
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


Size = Annotated[int, within(0, MAX_SIZE)]
Checksum = Annotated[str, Rule(is_checksum, "of 16 lower-case hexadecimal digits")]
"""An xxh3-64 checksum as it is written."""
