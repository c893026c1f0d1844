"""Object stores with one interface: a range of an object, with the size and the version of the whole.

obstore serves s3, gs and az, since a request costs a fourth of the processor time that it does by fsspec
(docs/object-stores.md); http.py serves http(s), whose servers may redirect; every other URL goes to fsspec. All take
credentials and endpoints from the environment.
"""

import errno
import os
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

from conceptloader.base.packages import need, python_like_this
from conceptloader.errors import ConceptloaderError, ConfigError, ReadError
from conceptloader.remote.client import Client, first_line
from conceptloader.remote.http import Http
from conceptloader.storage.objects import Allows, Part

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, for a store that is not Amazon's "
    "AWS_ENDPOINT_URL, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_SERVICE_ACCOUNT to the file of a service account's key, or GOOGLE_SKIP_SIGNATURE=true for a "
    "public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_SKIP_SIGNATURE=true for a public "
    "container",
}
# Asked for credentials, by the clients, when the environment has none.
FRESH_S = 60.0  # that what fsspec says of an object is taken for true: it takes a request of its own
_VERSIONS = "ETag", "etag", "mtime", "modified", "LastModified", "last_modified", "updated", "blob_id", "created"
_owner = 0  # the process that has clients, and whose forked children can have none
_METADATA = ("//169.254.169.254", "//metadata.google", "//169.254.170.2")


def store_of(url: str) -> Client:
    """The client for an object."""
    parts = urlsplit(url)
    return _open_store(parts.scheme, f"{parts.scheme}://{parts.netloc}", os.getpid())


@lru_cache(maxsize=64)
def _open_store(scheme: str, root: str, process: int) -> Client:
    """One store per bucket, container or host. process: stores do not survive a fork."""
    global _owner
    if scheme in ("http", "https"):
        return Http(root)
    _owner = _owner or process
    if _owner != process:
        return _Courier()
    return _Obstore(scheme, root) if scheme in _CREDENTIALS else _Fsspec(scheme)


class _Obstore(Client):
    def __init__(self, scheme: str, root: str) -> None:
        problem = f"{root}: needs the obstore package to read {scheme}://"
        self._obstore = need("obstore", problem)
        self._kinds = need("obstore.exceptions", problem)
        self.errors = (self._kinds.BaseError, OSError)
        self._scheme, self._root, self._worked = scheme, root, False
        client: Any = {
            "timeout": timedelta(seconds=30),
            "connect_timeout": timedelta(seconds=10),
            "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
        }
        try:
            store = need("obstore.store", problem)
            # No retries here: those are the caller's, which logs them.
            self._store = store.from_url(root, client_options=client, retry_config={"max_retries": 0})
        except Exception as error:  # whatever the backends raise for their configuration
            raise ConfigError(
                root, f"cannot be opened: {first_line(error)}", fix=f"check the URL, and {_CREDENTIALS[scheme]}"
            ) from error

    def get(self, url: str, offset: int, size: int, allows: Allows) -> Part:
        data, path = b"", url[len(self._root) :].lstrip("/")
        with self.named(url, offset):
            if size:
                found = self._obstore.get(self._store, path, options={"range": (offset, offset + size)})
                data, meta = bytes(found.bytes()), found.meta
            else:
                meta = self._obstore.head(self._store, path)
        self._worked = True
        return Part(data, meta["size"], meta.get("e_tag"))

    def explain(self, error: Exception) -> tuple[int, str]:
        """What can't pass is named at once, with what to do. What worked before may have failed for a moment only."""
        text, number, remedy = str(error), errno.EIO, ""
        if isinstance(error, FileNotFoundError | self._kinds.NotFoundError):
            number = errno.ENOENT
            remedy = "" if self._worked else "check bucket and path of the URL, AWS_REGION and AWS_ENDPOINT_URL"
        elif "incorrectly configured region" in text:
            number, remedy = errno.ENXIO, "the bucket is in another region: set AWS_REGION to that"
        elif isinstance(error, self._kinds.PermissionDeniedError | self._kinds.UnauthenticatedError):
            number, remedy = errno.EACCES, f"the store refuses what it was given: {_CREDENTIALS[self._scheme]}"
            if self._worked:  # those that the client renews may come in time
                number, remedy = errno.EIO, "the store accepted it before: renew the token if that has expired"
        elif not self._worked and any(place in text for place in _METADATA):
            number, remedy = errno.EACCES, f"the environment has no credentials: {_CREDENTIALS[self._scheme]}"
        elif not self._worked and "Name or service not known" in text:
            number, remedy = errno.ENXIO, "there is no such host: check the endpoint and the region"
        return number, remedy


class _Fsspec(Client):
    def __init__(self, scheme: str) -> None:
        fsspec = need("fsspec", f"{scheme}://: needs the fsspec package")
        try:
            self._files: Any = fsspec.filesystem(scheme)
            self._known: dict[str, tuple[float, Part]] = {}
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{scheme}://", f"fsspec cannot read it: {error}", fix="install what it names") from error

    def get(self, url: str, offset: int, size: int, allows: Allows) -> Part:
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


class _Courier(Client):
    """In a process that was forked from one with clients, whose threads it lacks.

    Starts a process that makes the requests, and ends with this one. Megatron-LM's own loader can start its
    workers in no other way than by forking.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = python_like_this("from conceptloader.remote import stores; stores.serve()")
        with theirs:  # a session of its own: an interrupt is the business of the trainer
            subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True)
        self._of_thread = threading.local()

    def get(self, url: str, offset: int, size: int, allows: Allows) -> Part:
        try:
            # Taken out until the answer is there: after an interrupt nobody gets the answer to another question.
            connection = self._of_thread.__dict__.pop("connection", None) or self._connect()
            connection.send((url, offset, size))
            answer: Part | ConceptloaderError = connection.recv()
        except (EOFError, OSError) as error:
            _open_store.cache_clear()  # the next attempt starts another one
            raise ReadError(
                url, "the process that reads the store has ended", fix="run the same command again", errno=errno.EIO
            ) from error
        self._of_thread.connection = connection
        if isinstance(answer, ConceptloaderError):
            raise answer
        return answer

    def _connect(self) -> Connection:
        mine, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"."], [theirs.fileno()])
        return Connection(mine.detach())


def serve() -> None:
    """The courier: a thread for each connection that comes through the standard input, until that is closed."""
    with socket.socket(fileno=os.dup(0)) as connections:
        while descriptors := socket.recv_fds(connections, 1, 1)[1]:
            threading.Thread(target=_answer, args=(Connection(descriptors[0]),), daemon=True).start()
    os._exit(0)  # requests under way have nobody to answer


def _answer(connection: Connection) -> None:
    with suppress(EOFError, OSError):
        while True:
            url, offset, size = connection.recv()
            try:  # these clients ask about no redirect
                value: Part | ConceptloaderError = store_of(url).get(url, offset, size, bool)
            except Exception as error:
                value = error if isinstance(error, ConceptloaderError) else ReadError(url, error, errno=errno.EIO)
            connection.send(value)
