"""Codecs: what the bytes of a record mean.

A codec is any object with the three methods of `Codec`. A name in a manifest never imports anything: a codec that is
not built in is registered by code (`register_codec`), in each process that decodes.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np

from conceptloader.base.hashing import canonical_json
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.spec.layout import FIELD_TYPES

logger = logging.getLogger(__name__)

_SCALARS = {str, int, float, bool, type(None)}  # most of what is in records


class Codec(Protocol):
    """Turns objects into records and back. `decode` may return views of the record's memory."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, record: memoryview) -> Any: ...

    def check(self, record: bytes | memoryview) -> None:
        """Raise ValueError if `record` cannot be a record of this codec. Never executes what it contains."""


class ConceptsCodec:
    """Concept ids, `n` little-endian numbers, and then, if there are any, their n scores; n from the record's length.

    Decodes to an uint32 array [n] of the ids; `scores_of` has the others.

    parameters: {"ids": "u2" or "u4", "scores": "f2" or "f4"}, both optional. num_ids: ids that are decoded have to be
    below it, the size of the vocabulary. ids, scores: their types; scores is None if there are none. item: bytes of a
    concept in a record. dtype: of a concept outside of records, an id or, with scores, `id` and `score`.
    """

    def __init__(self, parameters: Mapping[str, str] | None = None, num_ids: int = 1 << 32) -> None:
        given = parameters or {}
        self.num_ids = num_ids
        self.ids = np.dtype("<" + given.get("ids", "u4"))
        self.scores = np.dtype("<" + given["scores"]) if "scores" in given else None
        self.dtype = self.ids if self.scores is None else np.dtype([("id", self.ids), ("score", self.scores)])
        self.item = self.dtype.itemsize

    def encode(self, value: Any) -> bytes:
        """value: a list of ids; with scores, a pair of lists of one length. Raises: InputError."""
        scores: Any = None
        if self.scores is not None:
            try:
                value, scores = value
                with np.errstate(over="ignore"):
                    scores = np.asarray(scores, self.scores)
            except (TypeError, ValueError) as error:
                raise InputError(
                    "concepts", f"{value!r:.100}", "a pair: ids and their scores", "pass (ids, scores)"
                ) from error
        ids, limit = np.asarray(value), 1 << 8 * self.ids.itemsize
        if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= limit)):
            bits = limit.bit_length() - 1
            raise InputError(
                "concept ids",
                f"{value!r:.100}",
                f"a flat list of integers in [0, 2**{bits})",
                "pass ids as a flat list of ints in this range",
            )
        data = ids.astype(self.ids).tobytes()
        if scores is None:
            return data
        if scores.shape != ids.shape or not np.isfinite(scores).all():
            raise InputError(
                "scores",
                f"{scores.tolist()!r:.100} for {len(ids)} concepts",
                f"a finite number for each, in the range of {self.scores}",
                f"pass a score for each concept, in the range of {self.scores}",
            )
        return data + bytes(scores.tobytes())

    def decode(self, record: memoryview) -> "np.ndarray[Any, np.dtype[np.uint32]]":
        ids = self.ids_of(record)
        self.check_ids(ids)
        return ids

    def ids_of(self, record: bytes | memoryview) -> "np.ndarray[Any, np.dtype[np.uint32]]":
        """uint32 [n], not checked. Raises: ValueError for a record of no whole number of concepts."""
        self.check(record)
        ids = np.frombuffer(record, self.ids, len(record) // self.item)
        return ids.astype(np.uint32, copy=False)

    def scores_of(self, record: bytes | memoryview) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """float32 [n]. Raises: ValueError if there are none."""
        if self.scores is None:
            raise ValueError("found a track without scores, expected one with them")
        self.check(record)
        n = len(record) // self.item
        return np.frombuffer(record, self.scores, n, n * self.ids.itemsize).astype(np.float32)

    def all_ids(self, data: bytes, sizes: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.uint32]]":
        """The ids of records of `sizes` bytes, end to end."""
        if self.scores is None:
            return np.frombuffer(data, self.ids).astype(np.uint32, copy=False)
        found = np.empty(len(data) // self.item, self.ids)
        found.view(np.uint8)[:] = np.frombuffer(data, np.uint8)[_places(self.dtype, sizes // self.item)["id"]]
        return found.astype(np.uint32, copy=False)

    def check_ids(self, ids: "np.ndarray[Any, np.dtype[np.uint32]]") -> None:
        """Raise ValueError for an id that is no concept."""
        most = int(ids.max(initial=0))
        if len(ids) and most >= self.num_ids:
            raise ValueError(f"found concept id {most}, expected ids below {self.num_ids}, the size of the vocabulary")

    def check(self, record: bytes | memoryview) -> None:
        if len(record) % self.item:
            what = f"concept ids of {self.ids.itemsize} bytes" + (" and their scores" if self.scores else "")
            raise ValueError(f"found {len(record)} bytes, expected a multiple of {self.item} ({what})")
        if self.scores is not None:
            n = len(record) // self.item
            if not np.isfinite(np.frombuffer(record, self.scores, n, n * self.ids.itemsize)).all():
                raise ValueError("found a score that is no finite number, expected finite ones")


def concept_records(concepts: "np.ndarray[Any, Any]", offsets: "np.ndarray[Any, Any]") -> tuple[bytes, Any]:
    """Lists of concepts of a type `ConceptsCodec.dtype`, list i being concepts[offsets[i]:offsets[i + 1]], as records.

    (data, where in it each begins and ends).
    """
    if concepts.dtype.names is None:
        return concepts.tobytes(), offsets * concepts.itemsize
    data = np.empty(concepts.nbytes, np.uint8)
    for name, at in _places(concepts.dtype, np.diff(offsets)).items():
        data[at] = np.ascontiguousarray(concepts[name]).view(np.uint8)
    return data.tobytes(), offsets * concepts.itemsize


def _places(dtype: "np.dtype[Any]", counts: "np.ndarray[Any, Any]") -> "dict[str, np.ndarray[Any, Any]]":
    """Where in records, end to end, of `counts` concepts each the bytes of all ids are, and those of all scores."""
    before = np.repeat(np.cumsum(counts) - counts, counts)
    place, first, found = np.arange(len(before)) - before, before * dtype.itemsize, {}
    for name in dtype.names or ():
        size = dtype[name].itemsize
        found[name] = ((first + place * size)[:, None] + np.arange(size)).ravel()
        first = first + np.repeat(counts, counts) * size
    return found


class NumpyCodec:
    """A one-dimensional array of one fixed dtype, given as `parameters: {"dtype": "f4"}` (always little-endian)."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.dtype = np.dtype(f"<{parameters['dtype']}")
        self.item = self.dtype.itemsize

    def encode(self, value: Any) -> bytes:
        array = np.asarray(value)
        whole = array.dtype.kind in "iu"
        fits = np.can_cast(array.dtype, self.dtype, "same_kind") or (whole and self.dtype.kind == "u")
        if array.ndim != 1 or (len(array) and not fits):
            raise InputError(
                "numpy record",
                f"{array.dtype} of shape {array.shape}",
                f"an array of one dimension, of {self.dtype}",
                f"write array.ravel().astype('{self.dtype}')",
            )
        with np.errstate(over="ignore"):
            cast = array.astype(self.dtype)
        if cast.tolist() != array.tolist() if whole else (np.isinf(cast) > np.isinf(array)).any():
            raise InputError(
                "numpy record",
                f"values that {self.dtype} cannot hold",
                "values in its range",
                'pass a wider type in the track\'s parameters: {"dtype": "f8"}',
            )
        return cast.tobytes()

    def decode(self, record: memoryview) -> "np.ndarray[Any, Any]":
        return np.frombuffer(record, self.dtype)

    def check(self, record: bytes | memoryview) -> None:
        if len(record) % self.dtype.itemsize:
            raise ValueError(f"found {len(record)} bytes, expected a multiple of {self.dtype.itemsize} ({self.dtype})")


def _check_keys(values: Iterable[Any]) -> None:
    """Raises: ValueError for a key in any of the values that would come back as another one, or not at all."""
    if isinstance(values, dict):
        for key in values:
            if not isinstance(key, str):
                raise ValueError(f"found the key {key!r:.100}, expected texts as keys; write {str(key)!r:.100}")
        values = values.values()
    for value in values:
        if type(value) not in _SCALARS and isinstance(value, (dict, list, tuple)):
            _check_keys(value)


class JsonCodec:
    """One JSON value in UTF-8, written in canonical form."""

    def encode(self, value: Any) -> bytes:
        try:
            packed = canonical_json(value).encode("ascii")
            _check_keys([value])
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                "json record",
                f"{value!r:.100}",
                f"a JSON value: {error}",
                "convert it to dict, list, str, int, float, bool or None",
            ) from error
        return packed

    def decode(self, record: memoryview) -> Any:
        try:
            return json.loads(str(record, "utf-8"))
        except RecursionError as error:
            raise ValueError("found JSON nested too deeply") from error

    def check(self, record: bytes | memoryview) -> None:
        self.decode(memoryview(record))


class BytesCodec:
    """Raw bytes; decodes to `bytes`."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InputError(
                "bytes record", str(type(value).__name__), "bytes", "write bytes(record), or record.encode() for text"
            )
        return bytes(value)

    def decode(self, record: memoryview) -> bytes:
        return bytes(record)

    def check(self, record: bytes | memoryview) -> None:
        pass


_WITH_PARAMETERS: dict[str, type] = {"concepts": ConceptsCodec, "numpy": NumpyCodec}
_PLAIN: dict[str, type] = {"json": JsonCodec, "bytes": BytesCodec}
BUILT_IN = (*_PLAIN, *_WITH_PARAMETERS)
_REGISTERED: dict[str, Codec] = {}
_SHOWN: set[str] | None = None  # where bytes stand for records of unknown codecs, the places of which that was said


def register_codec(name: str, codec: Codec) -> None:
    """Let tracks of codec `name` be written and decoded by `codec`, in this process and those that it forks.

    Datasets and builds that are pickled take their codecs with them. Everywhere else the code that registers has to
    run, too: put it into a module, and name that to a launcher (`--import my_codecs`) or import it in the script.

    Args:
        name: As in a dataset's manifest.
        codec: An object with the methods `encode`, `decode` and `check` of `Codec`, for any number of threads.

    Raises:
        ConfigError: For a name that is built in, or that a codec of another class or of other attributes has, and for
            what is no codec.
    """
    where, methods = f"register_codec: {name!r}", ("encode", "decode", "check")
    if not isinstance(name, str) or not name or name in BUILT_IN:
        raise ConfigError(
            where,
            "a name that is built in" if name in BUILT_IN else "no name",
            "a name of your own",
            "pass another name to register_codec",
        )
    if isinstance(codec, type) or not all(callable(getattr(codec, method, None)) for method in methods):
        raise ConfigError(
            where,
            f"the class {codec.__qualname__}" if isinstance(codec, type) else f"{type(codec).__qualname__}",
            f"an object with the methods {', '.join(methods)}",
            "pass an instance to register_codec: your_codec()",
        )
    other = _REGISTERED.get(name, codec)
    before, kind = type(other), type(codec)
    if (before.__module__, before.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ConfigError(
            where,
            f"{kind.__qualname__}",
            f"{before.__qualname__}, which is registered",
            "pass another name to register_codec",
        )
    if _parameters(codec) != (theirs := _parameters(other)):
        found, rule = f"{kind.__qualname__} with {_parameters(codec)}", f"{theirs}, as the one that is registered"
        raise ConfigError(where, found, rule, "pass another name to register_codec")
    _REGISTERED[name] = codec


def _parameters(codec: Codec) -> dict[str, Any]:
    """What distinguishes codecs of a class, as far as it can be compared: public attributes that JSON can hold."""
    found = {}
    for key, value in getattr(codec, "__dict__", {}).items():
        if key.startswith("_"):  # what a codec counts or keeps
            continue
        with suppress(TypeError, ValueError):
            found[key] = canonical_json(value)
    return found


def registered(names: Iterable[str]) -> dict[str, Codec]:
    """Those of these codecs that are registered, for `register_lacking` in another process."""
    return {name: _REGISTERED[name] for name in names if name in _REGISTERED}


def register_lacking(codecs: Mapping[str, Codec]) -> None:
    """Register what nobody has registered here."""
    for name, codec in codecs.items():
        if name not in _REGISTERED:
            register_codec(name, codec)


@contextmanager
def unknown_as_bytes() -> Iterator[None]:
    """Let bytes stand for records of unknown codecs, each with a warning: of commands, in which nobody can register."""
    global _SHOWN
    before, _SHOWN = _SHOWN, set()
    try:
        yield
    finally:
        _SHOWN = before


def is_known(name: str) -> bool:
    """Whether `get_codec` has one of this name."""
    return name in BUILT_IN or name in _REGISTERED or _SHOWN is not None


def get_codec(name: str, parameters: Mapping[str, Any], where: str) -> Codec:
    """The codec called `name`, built in or registered.

    Raises: ConfigError for wrong parameters, FormatError for an unknown codec; both begin with `where`.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in BUILT_IN and _SHOWN is not None:
        if where not in _SHOWN:
            _SHOWN.add(where)
            logger.warning("%s: codec %r is known to your code only: its records are bytes here", where, name)
        return BytesCodec()
    if name not in BUILT_IN:
        raise FormatError(
            where,
            f"codec {name!r}",
            f"one of {', '.join(BUILT_IN)} or one that is registered",
            f"call conceptloader.register_codec({name!r}, your_codec) before, in every process",
        )
    problem = parameter_problem(name, parameters)
    if problem:
        raise problem.within(where)
    codec: Codec = _WITH_PARAMETERS[name](parameters) if name in _WITH_PARAMETERS else _PLAIN[name]()
    return codec


def parameter_problem(name: str, parameters: Mapping[str, Any]) -> ConfigError | None:
    """What is wrong with the parameters of a built-in codec."""
    where, found = f"codec {name}", f"parameters {dict(parameters)!r:.200}"
    if name == "concepts":
        known = {"ids": ("u2", "u4"), "scores": ("f2", "f4")}
        if all(key in known and value in known[key] for key, value in parameters.items()):
            return None
        expected = '{"ids": "u2" or "u4", "scores": "f2" or "f4"}, both optional'
        return ConfigError(where, found, expected, "pass parameters of this form, or none")
    if name != "numpy":
        return ConfigError(where, found, "no parameters", "omit parameters") if parameters else None
    if set(parameters) == {"dtype"} and parameters["dtype"] in FIELD_TYPES:
        return None
    expected = f"{{'dtype': t}} with t one of {', '.join(FIELD_TYPES)}"
    return ConfigError(where, found, expected, "pass parameters of this form")
