"""Codecs: what the bytes of a record mean.

A codec is any object with the three methods of `Codec`. A name in a manifest never imports anything: a codec that is
not built in has to be handed in by the caller.
"""

import json
import pickle
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from conceptloader.base.hashing import canonical_json
from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, FormatError, InputError
from conceptloader.format.spec.layout import FIELD_TYPES


class Codec(Protocol):
    """Turns objects into records and back. `decode` may return views of the record's memory."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, record: memoryview) -> Any: ...

    def check(self, record: bytes | memoryview) -> None:
        """Raise ValueError if `record` cannot be a record of this codec. Never executes what it contains."""


class ConceptsCodec:
    """Concept ids: `n` little-endian u4, n from the record's length. Decodes to an uint32 array [n].

    num_ids: ids that are decoded have to be below it, the size of the vocabulary.
    """

    def __init__(self, num_ids: int = 1 << 32) -> None:
        self.num_ids = num_ids

    def encode(self, value: Any) -> bytes:
        ids = np.asarray(value)
        if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= 2**32)):
            raise InputError(f"concept ids: found {value!r:.100}, expected a flat list of integers in [0, 2**32)")
        return ids.astype("<u4").tobytes()

    def decode(self, record: memoryview) -> "np.ndarray[Any, np.dtype[np.uint32]]":
        ids = np.frombuffer(record, "<u4")
        self.check_ids(ids)
        return ids

    def check_ids(self, ids: "np.ndarray[Any, np.dtype[np.uint32]]") -> None:
        """Raise ValueError for an id that is no concept."""
        most = int(ids.max(initial=0))
        if len(ids) and most >= self.num_ids:
            raise ValueError(f"found concept id {most}, expected ids below {self.num_ids}, the size of the vocabulary")

    def check(self, record: bytes | memoryview) -> None:
        if len(record) % 4:
            raise ValueError(f"found {len(record)} bytes, expected a multiple of 4 (concept ids of 4 bytes)")


class NumpyCodec:
    """A one-dimensional array of one fixed dtype, given as `parameters: {"dtype": "f4"}` (always little-endian)."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.dtype = np.dtype(f"<{parameters['dtype']}")

    def encode(self, value: Any) -> bytes:
        array = np.asarray(value)
        if array.ndim != 1 or not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise InputError(
                f"numpy record: found {array.dtype} of shape {array.shape}, expected one dimension of {self.dtype}"
            )
        cast = array.astype(self.dtype)
        if array.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise InputError(f"numpy record: found values that {self.dtype} cannot hold, expected values in its range")
        return cast.tobytes()

    def decode(self, record: memoryview) -> "np.ndarray[Any, Any]":
        return np.frombuffer(record, self.dtype)

    def check(self, record: bytes | memoryview) -> None:
        if len(record) % self.dtype.itemsize:
            raise ValueError(f"found {len(record)} bytes, expected a multiple of {self.dtype.itemsize} ({self.dtype})")


class JsonCodec:
    """One JSON value in UTF-8, written in canonical form."""

    def encode(self, value: Any) -> bytes:
        try:
            return canonical_json(value).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"json record: found {value!r:.100}, expected a JSON value: {error}") from error

    def decode(self, record: memoryview) -> Any:
        try:
            return json.loads(bytes(record))
        except RecursionError as error:
            raise ValueError("found JSON nested too deeply") from error

    def check(self, record: bytes | memoryview) -> None:
        self.decode(memoryview(record))


class MsgpackCodec:
    """One MessagePack value. Needs the msgpack package."""

    def __init__(self) -> None:
        self._msgpack = need("msgpack", "codec msgpack: the msgpack package is not installed")

    def encode(self, value: Any) -> bytes:
        try:
            packed: bytes = self._msgpack.packb(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"msgpack record: found {value!r:.100}, expected a MessagePack value: {error}") from error
        return packed

    def decode(self, record: memoryview) -> Any:
        return self._msgpack.unpackb(record)

    def check(self, record: bytes | memoryview) -> None:
        self._msgpack.unpackb(record)


class BytesCodec:
    """Raw bytes; decodes to `bytes`."""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InputError(f"bytes record: found {type(value).__name__}, expected bytes")
        return bytes(value)

    def decode(self, record: memoryview) -> bytes:
        return bytes(record)

    def check(self, record: bytes | memoryview) -> None:
        pass


class PickleCodec:
    """Any Python object. Decoding executes code from the data set; hence `allow_pickle`, which is False by default."""

    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value, protocol=4)

    def decode(self, record: memoryview) -> Any:
        return pickle.loads(record)

    def check(self, record: bytes | memoryview) -> None:
        if not len(record):
            raise ValueError("found 0 bytes, expected a pickle")


_PLAIN: dict[str, type] = {
    "concepts": ConceptsCodec,
    "msgpack": MsgpackCodec,
    "json": JsonCodec,
    "bytes": BytesCodec,
    "pickle": PickleCodec,
}
BUILT_IN = (*_PLAIN, "numpy")


def get_codec(name: str, parameters: Mapping[str, Any], given: Mapping[str, Codec] | None, where: str) -> Codec:
    """The codec called `name`: built in, or one of `given` by the caller.

    Raises: ConfigError for wrong parameters, FormatError for an unknown codec; both begin with `where`.
    """
    given = given or {}
    shadowed = sorted(set(given) & set(BUILT_IN))
    if shadowed:
        raise ConfigError(f"codecs: found {shadowed}, expected names that are not built in; rename them")
    if name in given:
        return given[name]
    if name not in BUILT_IN:
        raise FormatError(
            f"{where}: found codec {name!r}, expected one of {', '.join(BUILT_IN)} or one that the caller provides; "
            f"pass codecs={{{name!r}: your_codec}}"
        )
    problem = parameter_problem(name, parameters)
    if problem:
        raise ConfigError(f"{where}: {problem}")
    codec: Codec = NumpyCodec(parameters) if name == "numpy" else _PLAIN[name]()
    return codec


def parameter_problem(name: str, parameters: Mapping[str, Any]) -> str | None:
    """What is wrong with the parameters of a built-in codec."""
    if name != "numpy":
        found = f"found parameters {dict(parameters)!r:.200}, expected none for codec {name}; remove them"
        return found if parameters else None
    if set(parameters) == {"dtype"} and parameters["dtype"] in FIELD_TYPES:
        return None
    expected = f"{{'dtype': t}} with t one of {', '.join(FIELD_TYPES)}"
    return f"codec numpy: found parameters {dict(parameters)!r:.200}, expected {expected}"
