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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from conceptloader.base.checks import MAX_COUNT
from conceptloader.errors import ConceptloaderError, ConfigError

T = TypeVar("T")
Converter = Callable[[Any, str], Any]
"""Of plain data and the path of its key, for errors, makes the value."""


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

    read: Converter
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
        for name, convert in _converters(section).items():
            object.__setattr__(self, name, convert(getattr(self, name), name))


class Saved:
    """Base of dataclasses that are read from what `plain` made of them: of their fields none may be missing."""


@cache
def _converters(cls: Any) -> dict[str, Converter]:
    """Of the fields of a dataclass, whose hints are looked at once."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: _converter(hints[f.name]) for f in dataclasses.fields(cls)}


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint` says.

    Known are bool, int, float (int passes), str, Any, Literal, None in a union, a dataclass, a tuple, int or str with
    something else in one, tuple, Sequence (which becomes a tuple), dict and Mapping with str keys, dataclasses, and
    Annotated with a rule, or with what reads it.
    """
    return _converter(hint)(value, where)


@cache
def _converter(hint: Any) -> Converter:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Sequence:
        return _converter(types.GenericAlias(tuple, (*args, ...)))
    if origin is Annotated:
        rule, convert = hint.__metadata__[0], _converter(args[0])
        return rule.read if isinstance(rule, Reads) else lambda value, where: _ruled(convert(value, where), hint, where)
    if origin in (Union, types.UnionType):
        kinds = {kind: _converter(kind) for kind in args if kind is not type(None)}
        first, *others = kinds.values()
        if not others:
            return lambda value, where: None if value is None else first(value, where)
        return lambda value, where: _union(value, kinds, len(kinds) < len(args), where)
    if origin is Literal:
        return lambda value, where: _literal(value, args, where)
    if origin is tuple:
        each, endless = [_converter(kind) for kind in args if kind is not Ellipsis], args[-1] is Ellipsis
        if args == (int, ...):  # long ones; what is odd is found one by one
            return lambda value, where: (
                tuple(value)
                if type(value) is list and {*map(type, value)} == {int}
                else _tuple(value, hint, each, endless, where)
            )
        return lambda value, where: _tuple(value, hint, each, endless, where)
    if origin in (dict, Mapping):
        free, convert = args[1] is Any, _converter(args[1])
        return lambda value, where: {
            _name(key, where, free): convert(item, f"{where}.{key}") for key, item in _mapping(value, where).items()
        }
    if dataclasses.is_dataclass(hint):
        return lambda value, where: _dataclass(value, hint, where)
    return (lambda value, _: value) if hint is Any else lambda value, where: _scalar(value, hint, where)


def _ruled(value: Any, hint: Any, where: str) -> Any:
    for rule in hint.__metadata__:
        if not rule.holds(value):
            raise ConfigError(where, repr(value), _describe(hint), f"set {where} in this range")
    return value


def _union(value: Any, kinds: Mapping[Any, Converter], optional: bool, where: str) -> Any:
    if value is None and optional:
        return None
    fits = [a for a in kinds if type(value) is a or (dataclasses.is_dataclass(a) and isinstance(value, Mapping))]
    fits += [a for a in kinds if get_origin(a) is tuple and isinstance(value, (list, tuple))]
    return kinds[(fits or list(kinds))[0]](value, where)


def _dataclass(value: Any, cls: Any, where: str) -> Any:
    if isinstance(value, Section) and isinstance(value, cls):
        return value
    return build(cls, vars(value) if isinstance(value, cls) else value, where)  # which has checked nothing


def _scalar(value: Any, hint: Any, where: str) -> Any:
    if type(value) is hint and hint is not float:
        return value
    if not isinstance(value, (int, float) if hint is float else hint) or (type(value) is bool and hint is not bool):
        raise _wrong(value, hint, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(where, str(value), "a finite number", f"set {where} to a number, or omit it")
    return value


@cache
def _required(cls: Any) -> dict[str, Any]:
    """Fields that may not be missing, and their hints."""
    hints, missing = get_type_hints(cls, include_extras=True), dataclasses.MISSING
    return {
        f.name: hints[f.name]
        for f in dataclasses.fields(cls)
        if issubclass(cls, Saved) or f.default is f.default_factory is missing
    }


def build(cls: type[T], data: Any, where: str) -> T:
    """A dataclass from a mapping of its fields. `where` is the path of the mapping, "" for the whole configuration."""
    section: Any = cls  # hashable, which mypy does not see
    known, required = _converters(section), _required(section)
    example = f"{{{next(iter(required))}: {data}}}" if isinstance(data, str) and len(required) == 1 else "{KEY: VALUE}"
    data = _mapping(data, where or "configuration", example)
    prefix = f"{where}." if where else ""
    if not data.keys() <= known.keys():
        key = next(key for key in data if key not in known)
        raise unknown(f"{prefix}{key}", key, known, fix=getattr(cls, "ELSEWHERE", {}).get(key, ""))
    if not required.keys() <= data.keys():
        name = next(name for name in required if name not in data)
        raise ConfigError(f"{prefix}{name}", "nothing", _describe(required[name]), f"set {prefix}{name}")
    return cls(**{name: known[name](item, prefix + name) for name, item in data.items()})


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
    expected = f"one of {', '.join(names[:40])}" if names else f"no {what}: there are none here"
    return kind(path, f"an unknown {what} {name!r}", expected, fix, code="unknown")


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


def _tuple(value: Any, hint: Any, each: Sequence[Converter], endless: bool, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or not (endless or len(value) == len(each)):
        raise _wrong(value, hint, where)
    return tuple([each[0 if endless else k](item, f"{where}[{k}]") for k, item in enumerate(value)])


def _mapping(value: Any, where: str, example: str = "{KEY: VALUE}") -> Mapping[Any, Any]:
    if type(value) is not dict and not isinstance(value, Mapping):  # which is slow
        raise ConfigError(where, _shown(value), "a mapping of keys to values", f"write {example}")
    return value


def _name(key: Any, where: str, free: bool) -> str:
    if not isinstance(key, str) or not (key or free):
        raise ConfigError(where, f"the name {key!r}", "text", f"put the key {key!r} under {where} in quotes")
    return key


def _wrong(value: Any, hint: Any, where: str) -> ConfigError:
    fix = f"set {where} to {_describe(hint)}"
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
