"""YAML -> Config."""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from conceptloader.base.lazy import uncollected
from conceptloader.base.strict import build
from conceptloader.base.yamlfile import read_yaml
from conceptloader.config.schema import Config, GivenPath
from conceptloader.errors import ConfigError

_VARIABLE = re.compile(r"\$?\$\{(?:(\w+)\})?")


@uncollected()
def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
) -> Config:
    """Read and check a configuration.

    Args:
        source: Path of a YAML file, or the same as plain data.
        defaults: Values for top-level keys that it lacks.
        base_dir: What relative paths are relative to: by default the YAML file's directory, or for plain data the
            working directory.

    Returns:
        The configuration, with absolute paths, in which ${NAME} is the value of that environment variable here.

    Raises:
        ConfigError: A key or value breaks a rule; the error names file and key.
        ReadError: The file cannot be read.
    """
    if isinstance(source, Mapping):
        return _resolved(_checked(source, defaults), Path(base_dir or "."))
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(
            "configuration", repr(source), "a path or a mapping", "pass the path of a YAML file, or its keys as a dict"
        )
    path, data = Path(source), read_yaml(source)
    try:
        config = _checked(data, defaults)
        return _resolved(config, Path(base_dir) if base_dir is not None else path.parent).read_from(str(path))
    except ConfigError as error:
        raise error.within(path) from error


def _checked(data: Any, defaults: Mapping[str, Any] | None) -> Config:
    if isinstance(data, Mapping):
        # Keys that stand there with nothing behind them are as if they were left out.
        data = {**(defaults or {}), **{key: value for key, value in data.items() if value is not None}}
    return build(Config, data, "")


def _resolved(config: Config, base: Path) -> Config:
    def absolute(path: str, key: str) -> str:
        given, path = path, _VARIABLE.sub(partial(_value, key), path)
        if "\0" in path:
            raise ConfigError(key, repr(path), "a path, which holds no byte 0", f"remove the byte 0 from {key}")
        if "://" in path:
            return GivenPath(path, given if "${" in given else None)
        if not os.path.isabs(path := os.path.expanduser(path)):
            given = os.path.join(os.path.abspath(base).replace("${", "$${"), given)
        return GivenPath(os.path.abspath(base / path), given if _VARIABLE.search(given) else None)

    return config.with_paths(absolute)


def _value(key: str, found: re.Match[str]) -> str:
    """What stands in a path in place of ${NAME}; $${ is ${ itself."""
    if found[0].startswith("$$"):
        return found[0][1:]
    value = os.environ.get(found[1] or "")
    if not value:  # with an empty one "${DATA}/web" would be another directory, /web
        wrong = f"{found[0]}, an environment variable that is {'unset' if value is None else 'empty'} here"
        name = found[1] or "NAME"
        fix = f"run `export {name}=...` on every node, or write ${found[0]} for a path that has {found[0]} in it"
        raise ConfigError(key, wrong, "a variable with a value", fix)
    return value
