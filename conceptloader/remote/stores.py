"""Object stores behind one call: a range of an object, with the size and the version of the whole.

obstore serves s3, gs, az and http(s), since a request costs a fourth of the processor time that it does by fsspec
(docs/remote.md). Every other URL goes to fsspec. Both take credentials and endpoints from the environment.
"""

import errno
import os
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from conceptloader.errors import ConfigError, ReadError

OBSTORE_SCHEMES = ("s3", "gs", "az", "http", "https")
_INSTALL = "pip install 'conceptloader[remote]'"


@dataclass(frozen=True)
class Part:
    """data: the bytes that were asked for, fewer at the object's end; size: of the whole object; version: changes when
    the object is replaced (an ETag), None if the store does not say."""

    data: bytes
    size: int
    version: str | None


class Store(Protocol):
    """Raises: ReadError, with an errno that tells what may pass (EIO) from what does not (ENOENT, EACCES)."""

    def get(self, path: str, offset: int, size: int) -> Part: ...

    def size(self, path: str) -> int: ...

    def forget(self, path: str) -> None:
        """Ask the store anew about an object."""


def is_url(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and "://" in path


def read_range(url: str, offset: int, size: int) -> Part:
    """Bytes [offset, offset + size) of the object at `url`, one attempt. Raises: ReadError."""
    store, path = _locate(url)
    return store.get(path, offset, size)


def object_size(url: str) -> int:
    """Raises: ReadError."""
    store, path = _locate(url)
    return store.size(path)


def object_version(url: str) -> tuple[int, str | None]:
    """Size and version of the object now. Raises: ReadError."""
    store, path = _locate(url)
    store.forget(path)
    part = store.get(path, 0, 1)
    return part.size, part.version


def _locate(url: str) -> tuple[Store, str]:
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    store = _open_store(parts.scheme, root, os.getpid())
    return store, parts.path.lstrip("/") if isinstance(store, _Obstore) else url


@lru_cache(maxsize=64)
def _open_store(scheme: str, root: str, process: int) -> Store:
    """One store per bucket, container or host. process: stores do not survive a fork."""
    return _Obstore(scheme, root) if scheme in OBSTORE_SCHEMES else _Fsspec(scheme)


class _Obstore:
    def __init__(self, scheme: str, root: str) -> None:
        try:
            import obstore
            from obstore import exceptions, store
        except ImportError as error:
            raise ConfigError(f"{root}: needs the obstore package to read {scheme}://; {_INSTALL}") from error
        self._obstore: Any = obstore
        self._errors: Any = exceptions
        self._root = root
        # Few and short retries here: those that matter are the caller's, which logs them.
        retry: Any = {"max_retries": 1, "retry_timeout": timedelta(seconds=20)}
        client: Any = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=10)}
        if scheme == "http" or os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            client["allow_http"] = True
        try:
            opened: Any = store
            self._store = opened.from_url(root, client_options=client, retry_config=retry)
        except Exception as error:  # whatever the backends raise for their configuration
            raise ConfigError(f"{root}: cannot be opened: {error}; check the URL and the environment") from error

    def get(self, path: str, offset: int, size: int) -> Part:
        try:
            found = self._obstore.get(self._store, path, options={"range": (offset, offset + size)})
            data = bytes(found.bytes())
            return Part(data, found.meta["size"], found.meta.get("e_tag"))
        except self._errors.BaseError as error:
            raise self._read_error(path, offset, error) from error
        except OSError as error:
            raise self._read_error(path, offset, error) from error

    def size(self, path: str) -> int:
        try:
            return int(self._obstore.head(self._store, path)["size"])
        except (self._errors.BaseError, OSError) as error:
            raise self._read_error(path, 0, error) from error

    def forget(self, path: str) -> None:
        """Nothing is kept."""

    def _read_error(self, path: str, offset: int, error: Exception) -> ReadError:
        number = errno.EIO
        if isinstance(error, FileNotFoundError | self._errors.NotFoundError):
            number = errno.ENOENT
        elif isinstance(error, self._errors.PermissionDeniedError | self._errors.UnauthenticatedError):
            number = errno.EACCES
        return _read_error(f"{self._root}/{path}", offset, number, error)


class _Fsspec:
    def __init__(self, scheme: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(f"{scheme}://: needs the fsspec package; {_INSTALL}") from error
        try:
            self._files: Any = fsspec.filesystem(scheme)
            self._infos: dict[str, dict[str, Any]] = {}
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{scheme}://: fsspec cannot read it: {error}; install what it names") from error

    def get(self, path: str, offset: int, size: int) -> Part:
        try:
            info = self._info(path)
            data: bytes = self._files.cat_file(path, start=offset, end=offset + size)
        except Exception as error:  # file systems raise whatever their clients do
            raise self._read_error(path, offset, error) from error
        version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("created")
        return Part(data, info["size"], None if version is None else str(version))

    def size(self, path: str) -> int:
        try:
            return int(self._info(path)["size"])
        except Exception as error:
            raise self._read_error(path, 0, error) from error

    def forget(self, path: str) -> None:
        self._infos.pop(path, None)
        self._files.invalidate_cache(path)

    def _info(self, path: str) -> dict[str, Any]:
        """Asked for once: most file systems need a request for it."""
        found = self._infos.get(path)
        if found is None:
            found = self._infos[path] = self._files.info(path)
        return found

    def _read_error(self, path: str, offset: int, error: Exception) -> ReadError:
        kinds = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
        number = next((number for kind, number in kinds.items() if isinstance(error, kind)), errno.EIO)
        return _read_error(path, offset, number, error)


def _read_error(url: str, offset: int, number: int, error: Exception) -> ReadError:
    """The first line of a store's message says it; the rest are its own internals."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ReadError(number, f"{url}: cannot be read at offset {offset}: {lines[0][:300]}")
