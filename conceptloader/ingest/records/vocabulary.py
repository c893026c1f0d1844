"""Concept vocabularies: names to ids and back."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from conceptloader.base.strict import Reads
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.spec.codecs import ConceptsCodec
from conceptloader.format.spec.options import TrackOptions
from conceptloader.storage.reads import read_file


def _checked(value: Any, where: str) -> str | tuple[str, ...]:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    fix = f"set {where} to the path of a file, or to a list of text"
    raise ConfigError(where, f"{value!r:.80}", "a file of concept names, or a list of them", fix)


Names = Annotated[str | Sequence[str], Reads(_checked, "a file of concept names, or a list of them")]


def load_vocabulary(path: str | os.PathLike[str]) -> list[str]:
    """Names of concepts, index = concept id, from a file in UTF-8: a JSON list of names, or one name per line.

    Raises: ConfigError if there is no file, InputError naming file and line for broken UTF-8, empty or repeated names,
    anything but names.
    """
    file = os.fspath(path)
    if os.path.isdir(file) or not os.path.exists(file):
        fix = f"run `ls {file}`, and pass the path of a file of names to --vocabulary"
        raise ConfigError(f"vocabulary {file}", "no such file", "names, one per line or a JSON list", fix)
    data = read_file(file, 1 << 30)
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")  # a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{file}: line {line}",
            "bytes that are not UTF-8",
            "UTF-8",
            f"save {file} as UTF-8, such as by `iconv -f latin1 -t utf-8`",
        ) from error
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise InputError(
                file,
                f"broken JSON ({error})",
                "a list of names",
                f"correct the JSON of {file}, or pass another --vocabulary",
            ) from error
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
            raise InputError(
                f"{file}: {where} {i}",
                f"{name!r:.50}",
                "a name that is not empty",
                f"write a name in {where} {i}, or remove it",
            )
        if name in seen:
            raise InputError(
                f"{file}: {where} {i}",
                f"{name!r} as in {where} {seen[name]}",
                "each name once",
                f"remove {name!r} from {where} {i}, or from {where} {seen[name]}",
            )
        seen[name] = i
    if not names:
        raise InputError(
            file, "no names", "at least one concept", f"write a name on each line of {file}, or a list in JSON"
        )
    return list(names)


class Concepts:
    """Concepts of one track.

    Without names, only ids are accepted. dtype: see `ConceptsCodec`; id_type: of its ids. keys: of a span in the
    input. highest: score that there may be, None without scores.
    """

    def __init__(self, track: TrackOptions) -> None:
        codec, names = ConceptsCodec(track.parameters), track.vocabulary
        self.dtype, self.id_type = codec.dtype, codec.ids
        self.highest = None if codec.scores is None else float(np.finfo(codec.scores).max)
        self.keys = {"start", "end", "concepts"} | ({"scores"} if codec.scores is not None else set())
        self.ids: Mapping[str, int] = {name: i for i, name in enumerate(names)} if names else {}
        bits = 8 * codec.ids.itemsize
        self.limit = len(names) if names else 1 << bits
        self._expected = (
            f"one of the {self.limit} names of the vocabulary or an id below {self.limit}"
            if names
            else f"an id in [0, 2**{bits}), since no vocabulary was given (--vocabulary)"
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

    def expected(self, found: Collection[str]) -> str:
        """What a span has to have, for one with the keys `found`."""
        if self.highest is not None:
            return "start, end, concepts and scores"
        more = "; scores need `--scores concepts=f4`, or with the track of this column" if "scores" in found else ""
        return f"start, end and concepts{more}"

    def fit(self, scores: Any) -> Any:
        """Which numbers may be scores: not NaN, and none that becomes infinite."""
        return abs(scores) <= self.highest

    @property
    def expected_score(self) -> str:
        return f"a finite number, at most {self.highest:g} or so for its type; fix it, or omit the span"

    def pairs(self, ids: Any, scores: Any) -> NDArray[Any]:
        """Concepts as an array of `dtype`; scores: of each, ignored without scores."""
        if self.highest is None:
            return np.asarray(ids, self.dtype)
        found = np.empty(len(ids), self.dtype)
        found["id"], found["score"] = ids, scores
        return found
