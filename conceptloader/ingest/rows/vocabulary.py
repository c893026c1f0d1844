"""Concept vocabularies: names to ids and back."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conceptloader.errors import InputError
from conceptloader.storage.reads import read_file


def load_vocabulary(path: str | os.PathLike[str]) -> list[str]:
    """Names of concepts, index = concept id, from a file in UTF-8: a JSON list of names, or one name per line.

    Raises: InputError naming file and line for broken UTF-8, empty or repeated names, anything but names.
    """
    file = os.fspath(path)
    data = read_file(file, 1 << 30)
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")  # a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}: line {line}: found bytes that are not UTF-8; convert the file to UTF-8") from error
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise InputError(f"{file}: found broken JSON ({error}), expected a list of names") from error
        where = "element"
    else:
        names = text.split("\n")
        if not names[-1]:
            names.pop()
        names = [name.removesuffix("\r") for name in names]
        where = "line"
    seen: dict[str, int] = {}
    for i, name in enumerate(names, 1):
        if not isinstance(name, str) or not name:
            raise InputError(f"{file}: {where} {i}: found {name!r:.50}, expected a name that is not empty")
        if name in seen:
            raise InputError(f"{file}: {where} {i}: found {name!r} as in {where} {seen[name]}, expected each name once")
        seen[name] = i
    if not names:
        raise InputError(f"{file}: found no names, expected at least one concept")
    return list(names)


class Concepts:
    """Concept ids of one track. Without names, only ids are accepted. dtype: of the ids in records."""

    def __init__(self, names: Sequence[str] | None, dtype: Any = np.uint32) -> None:
        self.dtype = dtype
        self.ids: Mapping[str, int] = {name: i for i, name in enumerate(names)} if names else {}
        self.limit = len(names) if names else 1 << 32
        self._expected = (
            f"one of the {self.limit} names of the vocabulary or an id below {self.limit}"
            if names
            else "an id in [0, 2**32), since no vocabulary was given (--concepts-vocabulary, --vocabulary)"
        )

    def id(self, value: object) -> int:
        """The id of a concept given by name or id. Raises: ValueError, whose message says what is wrong."""
        if isinstance(value, str):
            found = self.ids.get(value)
            if found is None:
                raise ValueError(f"found the unknown concept {value!r:.100}, expected {self._expected}")
            return found
        if type(value) is not int or not 0 <= value < self.limit:
            raise ValueError(f"found the concept {value!r:.100}, expected {self._expected}")
        return value
