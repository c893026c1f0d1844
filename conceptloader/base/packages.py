"""Packages that only some uses need, and which extra of ours installs them."""

from importlib import import_module
from typing import Any

from conceptloader.errors import ConfigError


def need(module: str, problem: str, extra: str = "ingest") -> Any:
    """The module. Raises: ConfigError that begins with `problem` and names the extra which installs the package."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{problem}; pip install 'conceptloader[{extra}]'") from error
