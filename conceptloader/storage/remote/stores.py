"""Object stores with one interface: a range of an object, with the size and the version of the whole.

obstore serves s3, gs, az and http(s), since a request costs a fourth of the processor time that it does by fsspec
(docs/object-stores.md); every other URL goes to fsspec. All take credentials and endpoints from the environment, but
for user and password of http(s), which are in the URL.
"""

import base64
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from conceptloader.base.packages import need
from conceptloader.errors import ConfigError, ReadError
from conceptloader.storage.objects import Part

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, for a store that is not Amazon's "
    "AWS_ENDPOINT_URL, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_SERVICE_ACCOUNT to the file of a service account's key, or GOOGLE_SKIP_SIGNATURE=true for a "
    "public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for a public "
    "container",
    **dict.fromkeys(("http", "https"), "write user and password into the URL"),
}
FRESH_S = 60.0  # that what fsspec says of an object is taken for true: it takes a request of its own
_VERSIONS = "ETag", "etag", "mtime", "modified", "LastModified", "last_modified", "updated", "blob_id", "created"
_owner = 0  # the process that has clients, and whose forked children can have none
# Asked for credentials, by the clients, when the environment has none.
_METADATA = ("//169.254.169.254", "//metadata.google", "//169.254.170.2")


class Client:
    """Of one host, bucket or container.

    Raises: ReadError, with an errno that tells what may pass (EIO) from what does not (ENOENT, EACCES).
    """

    errors: Any = Exception  # what the library below raises

    def get(self, url: str, offset: int, size: int) -> Part:
        """See Objects."""
        raise NotImplementedError

    def explain(self, error: Exception) -> tuple[int, str]:
        """An errno for an error of the library, and what to do."""
        raise NotImplementedError

    @contextmanager
    def named(self, url: str, offset: int) -> Iterator[None]:
        """Errors of the library as ReadErrors."""
        try:
            yield
        except self.errors as error:
            number, remedy = self.explain(error)
            message = f"cannot be read at offset {offset}: {_first_line(error)}"
            raise ReadError(url, message, fix=remedy, errno=number) from error


def _first_line(error: Exception) -> str:
    """The first line of a store's message says it; the rest are its own internals."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def store_of(url: str) -> Client:
    """The client for an object. Raises ConfigError in a process that was forked from one with clients."""
    global _owner
    _owner = _owner or os.getpid()
    if _owner != os.getpid():
        raise ConfigError(
            url,
            "a process that was forked from one that has read a store, whose clients do not work here",
            "a process with clients of its own",
            "set num_workers=0 (Megatron-LM: --num-workers 0, nanotron: num_loading_workers: 0), pass "
            'multiprocessing_context="forkserver" to a DataLoader of your own, or use make_dataloader, which reads in '
            "threads",
        )
    parts = urlsplit(url)
    return _open_store(parts.scheme, f"{parts.scheme}://{parts.netloc}")


@lru_cache(maxsize=64)
def _open_store(scheme: str, root: str) -> Client:
    """One per bucket, container or host."""
    return _Obstore(scheme, root) if scheme in _CREDENTIALS else _Fsspec(scheme)


class _Obstore(Client):
    def __init__(self, scheme: str, root: str) -> None:
        problem = f"{root}: needs the obstore package to read {scheme}://"
        self._obstore = need("obstore", problem)
        self._kinds = need("obstore.exceptions", problem)
        self.errors = (self._kinds.BaseError, OSError, ValueError)
        self._scheme, self._root, self._worked = scheme, root, False
        self._http = scheme.startswith("http")
        client: Any = {
            "timeout": timedelta(seconds=30),
            "connect_timeout": timedelta(seconds=10),
            "allow_http": (root if self._http else os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://"),
        }
        user, _, host = urlsplit(root).netloc.rpartition("@")
        if self._http and user:  # obstore would ignore them in the URL, and show them in its errors
            basic = base64.b64encode(unquote(user).encode()).decode()
            root, client["default_headers"] = f"{scheme}://{host}", {"authorization": f"Basic {basic}"}
        try:
            store = need("obstore.store", problem)
            # from_url takes the http(s) of some hosts for those of a cloud's store.
            opened = store.HTTPStore if self._http else store.from_url
            # No retries here: those are the caller's, which logs them.
            self._store = opened(root, client_options=client, retry_config={"max_retries": 0})
        except Exception as error:  # whatever the backends raise for their configuration
            raise ConfigError(
                root, f"cannot be opened: {_first_line(error)}", fix=f"check the URL, and {_CREDENTIALS[scheme]}"
            ) from error

    def get(self, url: str, offset: int, size: int) -> Part:
        data, path = b"", url[len(self._root) :].lstrip("/")
        with self.named(url, offset):
            if self._http:  # obstore escapes a path; an escaped slash it could not tell from one
                if "%2f" in path.lower():
                    raise ValueError("a path with %2F")
                path = unquote(path)
            if size:
                found = self._obstore.get(self._store, path, options={"range": (offset, offset + size)})
                data, meta = bytes(found.bytes()), found.meta
            else:
                meta = self._obstore.head(self._store, path)
        self._worked = self._worked or size > 0  # an answer to HEAD says nothing of ranges
        written = meta["last_modified"]  # 1970 if the server does not say
        return Part(data, meta["size"], meta.get("e_tag") or (str(written) if written.timestamp() else None))

    def explain(self, error: Exception) -> tuple[int, str]:
        """What can't pass is named at once, with what to do. What worked before may have failed for a moment only."""
        text, number, remedy = str(error), errno.EIO, ""
        if isinstance(error, FileNotFoundError | self._kinds.NotFoundError):
            number = errno.ENOENT
            settings = "" if self._http else " with its bucket, AWS_REGION and AWS_ENDPOINT_URL"
            remedy = "" if self._worked else f"check the URL{settings}"
        elif isinstance(error, ValueError):
            number, remedy = errno.EINVAL, "rename the file or directory"
        elif isinstance(error, self._kinds.NotSupportedError) or "Content-Length Header missing" in text:
            # One of several machines behind an address, or a cache on the way, may not know ranges for once.
            number = errno.EIO if self._worked else errno.ENOTSUP
            remedy = "use a server that answers Range requests with their bytes and Content-Length (curl -i -r 0-9 URL)"
        elif "incorrectly configured region" in text:
            number, remedy = errno.ENXIO, "the bucket is in another region: set AWS_REGION to that"
        elif isinstance(error, self._kinds.PermissionDeniedError | self._kinds.UnauthenticatedError):
            number, remedy = errno.EACCES, f"the store refuses what it was given: {_CREDENTIALS[self._scheme]}"
            if self._worked:  # those that the client renews may come in time
                number, remedy = errno.EIO, "the store accepted it before: renew the token if that has expired"
        elif not self._worked and any(place in text for place in _METADATA):
            number, remedy = errno.EACCES, f"the environment has no credentials: {_CREDENTIALS[self._scheme]}"
        elif not self._worked and "Name or service not known" in text:
            number, remedy = errno.ENXIO, "there is no such host: check URL, endpoint and region"
        return number, remedy


class _Fsspec(Client):
    def __init__(self, scheme: str) -> None:
        fsspec = need("fsspec", f"{scheme}://: needs the fsspec package")
        try:
            self._files: Any = fsspec.filesystem(scheme)
            self._known: dict[str, tuple[float, Part]] = {}
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{scheme}://", f"fsspec cannot read it: {error}", fix="install what it names") from error

    def get(self, url: str, offset: int, size: int) -> Part:
        now, (asked, known) = time.monotonic(), self._known.get(url, (-FRESH_S, Part(b"", 0, None)))
        with self.named(url, offset):
            if not size or now - asked >= FRESH_S:
                self._files.invalidate_cache(url)
                info = self._files.info(url)
                version = next((str(found) for name in _VERSIONS if (found := info.get(name)) is not None), None)
                known = Part(b"", int(info["size"]), version)
                self._known[url] = now, known
            return replace(known, data=self._files.cat_file(url, start=offset, end=offset + size)) if size else known

    def explain(self, error: Exception) -> tuple[int, str]:
        kinds = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
        return next((number for kind, number in kinds.items() if isinstance(error, kind)), errno.EIO), ""
