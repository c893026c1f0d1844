"""YAML -> plain data. Strict where YAML is not: repeated keys, aliases that expand without bound."""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from conceptloader.errors import ConfigError, ReadError

MAX_BYTES = 16 << 20
MAX_VALUES = 200_000
MERGE = "tag:yaml.org,2002:merge"
ODD = re.compile("[-+]?0[0-9_]+|.*:.*")  # numbers that YAML 1.1 reads to the base 8 or 60


_BASES: Any = (Composer, yaml.CSafeLoader) if yaml.__with_libyaml__ else (yaml.SafeLoader,)


class _Loader(*_BASES):  # type: ignore[misc]
    """Scans in C where PyYAML can, but composes in Python: C's recursion crashes on deep nesting."""

    def __init__(self, text: str) -> None:
        _BASES[-1].__init__(self, text)
        Composer.__init__(self)


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Plain data of a YAML file. Raises ConfigError with the line of what is wrong, ReadError."""
    try:
        return parse_yaml(_read(Path(path)))
    except ConfigError as error:
        raise error.within(path) from error


def parse_yaml(text: str) -> Any:
    """Plain data of a YAML text. Raises ConfigError with the line of what is wrong."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ConfigError(
                "",
                "an empty file",
                "keys and values",
                "write keys and values into the file, or pass the path of another",
            )
        _check_node(node, {})
        return loader.construct_document(node)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as the 40th of a month, or 5,000 digits
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else "".join(text.splitlines()[mark.line : mark.line + 1])
        fix = 'write "${NAME}/..." in quotes: YAML reads its braces' if "${" in line else "correct that line"
        fix = "indent this line by spaces: YAML allows no tab there" if line.lstrip(" ").startswith("\t") else fix
        raise ConfigError("", f"not valid YAML: {' '.join(str(error).split())}", fix=fix) from error
    except RecursionError as error:
        raise ConfigError(
            "",
            "lists or mappings that are nested too deeply for a parser",
            "a configuration",
            "pass the path of a YAML configuration",
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def _check_node(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node expands to. Raises ConfigError for repeated keys and for too many values."""
    if id(node) in sizes:
        if sizes[id(node)] < 0:
            raise ConfigError(
                f"line {_line(node)}",
                "an alias to a value that holds it",
                "a value that does not hold itself",
                "write the value out instead of the alias",
            )
        return sizes[id(node)]
    sizes[id(node)] = -1
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                if key.value in seen:
                    raise ConfigError(
                        f"line {_line(key)}",
                        f"the key {key.value!r} twice, first on line {seen[key.value]}",
                        "each key once",
                        f"remove {key.value} from one of these lines",
                    )
                seen[key.value] = _line(key)
            children += [key, value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    elif node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and ODD.fullmatch(node.value):
        raise ConfigError(
            f"line {_line(node)}",
            f"{node.value}, which YAML reads to the base {60 if ':' in node.value else 8}",
            "a number to the base 10",
            f"write {node.value!r} in quotes for text, or a number without zeros in front or colons",
        )
    size = 1 + sum(_check_node(child, sizes) for child in children)
    if size > MAX_VALUES:
        raise ConfigError(
            f"line {_line(node)}",
            f"more than {MAX_VALUES:,} values, aliases counted as what they repeat",
            f"at most {MAX_VALUES:,}",
            "write fewer values, or pass the path of a configuration",
        )
    sizes[id(node)] = size
    return size


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ReadError(
            f"{path}",
            f"cannot be read: {error.strerror or error}",
            fix=f"run `ls -l {path}`: the file must exist, and you must be allowed to read it",
            errno=error.errno,
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            "", f"more than {MAX_BYTES >> 20} MiB", "a configuration", "pass the path of a YAML configuration"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "",
            f"bytes that are not UTF-8 at offset {error.start}",
            "text",
            "save the file as UTF-8, such as by `iconv -f latin1 -t utf-8`",
        ) from error
