"""Plain data <-> dataclasses: the configuration, and what runs save.

Every message names the path of the key, what was found, what was expected.

Not left to dacite 1.9, which was tried: it names an unknown key of a nested mapping without its path, and one in a
mapping of sections without the section, takes true for 1 and NaN for a number, and has no rules for values.
"""

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from conceptloader.base.checks import MAX_COUNT
from conceptloader.errors import ConceptloaderError, ConfigError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Rule:
    """For a number. text: what is expected, after the word for its type."""

    holds: Callable[[float], bool]
    text: str


@dataclasses.dataclass(frozen=True)
class Reads:
    """For a type that plain data does not have.

    read: of plain data and the path of its key, for errors, makes one. text: what is expected.
    """

    read: Callable[[Any, str], Any]
    text: str


def within(least: int, most: int) -> Rule:
    return Rule(lambda value: least <= value <= most, f"from {least} to {most}")


Count = Annotated[int, Rule(lambda value: 1 <= value <= MAX_COUNT, "of 1 or more")]
Natural = Annotated[int, Rule(lambda value: 0 <= value <= MAX_COUNT, "of 0 or more")]
Negative = Annotated[int, Rule(lambda value: -(1 << 63) <= value < 0, "below 0")]
Positive = Annotated[float, Rule(lambda value: value > 0, "above 0")]


class Section:
    """Base of the configuration's dataclasses: checks its own fields by their annotations, also when built in Python.

    Lists become tuples and mappings dataclasses on the way. Raises ConfigError. ELSEWHERE: what to write for keys that
    other programs have.
    """

    ELSEWHERE: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        section: Any = type(self)  # hashable, which mypy does not see
        hints = _hints(section)
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, f.name, convert(getattr(self, f.name), hints[f.name], f.name))


class Saved:
    """Base of dataclasses that are read from what `plain` made of them: of their fields none may be missing."""


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint` says.

    Known are bool, int, float (int passes), str, Any, Literal, None in a union, a dataclass or a tuple with something
    else in one, tuple, dict and Mapping with str keys, dataclasses, and Annotated with a rule, or with what reads it.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(hint.__metadata__[0], Reads):
        return hint.__metadata__[0].read(value, where)
    if origin is Annotated:
        converted = convert(value, args[0], where)
        if not all(rule.holds(converted) for rule in hint.__metadata__):
            raise ConfigError(
                where,
                repr(value),
                _describe(hint),
                f"set {where} in this range",
            )
        return converted
    if origin in (Union, types.UnionType):
        kinds = [a for a in args if a is not type(None)]
        fits = [a for a in kinds if dataclasses.is_dataclass(a) and (isinstance(value, Mapping) or type(value) is a)]
        fits += [a for a in kinds if get_origin(a) is tuple and isinstance(value, (list, tuple))]
        return None if value is None and len(kinds) < len(args) else convert(value, (fits or kinds)[0], where)
    if origin is Literal:
        return _literal(value, args, where)
    if origin is tuple:
        return _tuple(value, hint, where)
    if origin in (dict, Mapping):
        items = _mapping(value, where).items()
        return {_name(key, where, args[1] is Any): convert(item, args[1], f"{where}.{key}") for key, item in items}
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint) and not isinstance(value, Section):  # type: ignore[arg-type]
            value = vars(value)  # has checked nothing
        return value if isinstance(value, Section) else build(hint, value, where)  # type: ignore[arg-type]
    if hint is Any:
        return value
    wanted: Any = (int, float) if hint is float else hint
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        raise _wrong(value, hint, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(
            where,
            str(value),
            "a finite number",
            f"set {where} to a number, or omit it",
        )
    return value


def build(cls: type[T], data: Any, where: str) -> T:
    """A dataclass from a mapping of its fields. `where` is the path of the mapping, "" for the whole configuration."""
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    required = [
        name
        for name, f in known.items()
        if issubclass(cls, Saved) or (f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)
    ]
    example = f"{{{required[0]}: {data}}}" if isinstance(data, str) and len(required) == 1 else "KEY: VALUE"
    data = _mapping(data, where or "configuration", example)
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in known:
            advice = getattr(cls, "ELSEWHERE", {}).get(key, "")
            raise unknown(f"{prefix}{key}", key, known, fix=advice)
    hints = _hints(cls)  # type: ignore[arg-type]
    for name in required:
        if name not in data:
            raise ConfigError(f"{prefix}{name}", "nothing", _describe(hints[name]), f"set {prefix}{name}")
    return cls(**{name: convert(item, hints[name], f"{prefix}{name}") for name, item in data.items()})


def plain(value: Any) -> Any:
    """What `build` makes an equal value of, as JSON and YAML have it; fields that are None only where it must."""
    if dataclasses.is_dataclass(value):
        items = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {key: plain(item) for key, item in items.items() if item is not None or isinstance(value, Saved)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def unknown(
    path: str,
    name: object,
    known: Iterable[str],
    what: str = "key",
    fix: str = "",
    kind: type[ConceptloaderError] = ConfigError,
) -> ConceptloaderError:
    """The error for a name that nobody knows: with the known one that it resembles, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, 1)
    fix = fix or (f"did you mean {close[0]}?" if close else "")
    return kind(path, f"an unknown {what} {name!r}", f"one of {', '.join(names[:40]) or 'none'}", fix, code="unknown")


def _literal(value: Any, allowed: tuple[Any, ...], where: str) -> Any:
    if isinstance(value, bool):  # YAML 1.1 reads the words on and off as booleans
        word = "on" if value else "off"
        value = word if word in allowed else value
    if value not in allowed or isinstance(value, bool):
        expected = f"one of {', '.join(map(str, allowed))}" if len(allowed) > 1 else repr(allowed[0])
        raise ConfigError(
            where, _shown(value), expected, f"set {where} to {'one of these' if len(allowed) > 1 else allowed[0]}"
        )
    return allowed[allowed.index(value)]


def _tuple(value: Any, hint: Any, where: str) -> tuple[Any, ...]:
    args = get_args(hint)
    if not isinstance(value, (list, tuple)) or (args[-1] is not Ellipsis and len(value) != len(args)):
        raise _wrong(value, hint, where)
    kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
    return tuple(convert(item, kind, f"{where}[{k}]") for k, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _mapping(value: Any, where: str, example: str = "KEY: VALUE") -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(where, _shown(value), "a mapping of keys to values", f"write {example}")
    return value


def _name(key: Any, where: str, free: bool) -> str:
    if not isinstance(key, str) or not (key or free):
        raise ConfigError(where, f"the name {key!r}", "text", f"put the key {key!r} under {where} in quotes")
    return key


def _wrong(value: Any, hint: Any, where: str) -> ConfigError:
    fix = ""
    if hint in (int, float) and isinstance(value, str):
        fix = f"write {where} without quotes; in YAML an exponent needs a point and a sign, as in 1.0e+9"
        if unit := re.fullmatch(r"([0-9]+)([kmg])i?b?", value.lower()):
            power = "kmg".index(unit[2]) + 1
            fix = f"write the number out: {where}: {int(unit[1]) << 10 * power}, or {int(unit[1]) * 1000**power}"
    elif hint is str:
        fix = f"put the value of {where} in quotes"
    return ConfigError(where, _shown(value), _describe(hint), fix)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _describe(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(hint.__metadata__[0], Reads):
        return hint.__metadata__[0].text
    if origin is Annotated:
        return " ".join([_describe(args[0]), *(rule.text for rule in hint.__metadata__)])
    if origin in (Union, types.UnionType):
        return _describe(next(a for a in args if a is not type(None)))
    if origin is tuple:
        return "a list" if args[-1] is Ellipsis else f"a list of {len(args)}: " + ", ".join(map(_describe, args))
    if origin in (dict, Mapping) or dataclasses.is_dataclass(hint):
        return "a mapping"
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
    return names.get(hint, str(hint))
