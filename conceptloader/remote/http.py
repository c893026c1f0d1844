"""Ranges of files by http and https.

Redirects are followed only to where the caller allows: obstore's client follows all of them and does not tell, so that
a server could send requests to any host that this machine reaches.
"""

import errno
import re
import socket
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from conceptloader.base.packages import need
from conceptloader.errors import FormatError, ReadError
from conceptloader.remote.client import Client
from conceptloader.storage.objects import Allows, Part
from conceptloader.storage.urls import normal

_HOPS = 5
_FINAL = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT, 407: errno.EACCES}
_CONNECTIONS = 64


class Http(Client):
    """Files of one host. Connections are kept; proxies and certificates are those of the environment."""

    def __init__(self, root: str) -> None:
        urllib3 = need("urllib3", f"{root}: needs the urllib3 package to be read")
        parts = urlsplit(root)
        proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
        options: Any = {
            "maxsize": _CONNECTIONS,
            "timeout": urllib3.Timeout(connect=10, read=30),
            "retries": False,  # those that matter are the caller's, which logs them
        }
        self.errors = urllib3.exceptions.HTTPError
        self._http: Any = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        self._headers: Any = urllib3.make_headers
        self._worked = self._ranges = False  # it has answered; with a range

    def get(self, url: str, offset: int, size: int, allows: Allows) -> Part:
        if not size:
            with self.named(url, 0), self._answer("HEAD", url, None, allows) as answer:
                if (length := answer.headers.get("Content-Length", "")).isdecimal():
                    return Part(b"", int(length), _version(answer))
            raise ReadError(
                url,
                "an answer without the size of the file",
                "a server that tells it",
                "use a server that sends Content-Length",
                errno=errno.ENOTSUP,
            )
        wanted = f"bytes={offset}-{offset + size - 1}"
        with self.named(url, offset), self._answer("GET", url, wanted, allows) as answer:
            data = answer.read(size + 1)[:size]
            part = answer.headers.get("Content-Range", "")
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", part)
            if answer.status == 206 and found:
                self._ranges = True
                if int(found[1]) != offset:  # a cache between may be wrong for once
                    message = f"cannot be read at offset {offset}: the server answers with {part:.99}"
                    raise ReadError(url, message, errno=errno.EIO)
                return Part(data, int(found[2]), _version(answer))
            if answer.status == 200 and offset == 0 and int(answer.headers.get("Content-Length", -1)) == len(data):
                return Part(data, len(data), _version(answer))
        if self._ranges:  # it has them: one machine of several, or a cache on the way, may not for once
            message = f"cannot be read at offset {offset}: the server answers without ranges of bytes, unlike before"
            raise ReadError(url, message, errno=errno.EIO)
        message = "the server answers without ranges of bytes"
        raise ReadError(
            url, message, fix=f"use a server that answers Range requests (curl -r 0-9 {url})", errno=errno.ENOTSUP
        )

    def explain(self, error: Exception) -> tuple[int, str]:
        """A host that was there before may come back; one that never was is misspelt."""
        cause = error.__cause__
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME and not self._worked:
            return errno.ENXIO, "there is no such host: check the URL"
        return errno.EIO, ""

    def _answer(self, method: str, url: str, wanted: str | None, allows: Allows) -> Any:
        """The answer to a request, its body not read yet; a context that ends the connection if it is not read."""
        at = url
        for _ in range(_HOPS):
            answer = self._request(method, at, wanted)
            if not answer.get_redirect_location():
                break
            answer.drain_conn() if method == "HEAD" else answer.close()
            found = urljoin(at, answer.get_redirect_location())
            target = normal(found)
            if not allows(target):
                raise FormatError(
                    url,
                    f"a redirect to {target}",
                    "a redirect within the roots",
                    "pass roots=[...] (allowed_roots in a configuration) with where it leads, if you trust this server",
                )
            at = urlunsplit(urlsplit(target)._replace(query=urlsplit(found).query))  # it may hold a signature
        else:
            raise ReadError(
                url,
                f"more than {_HOPS} redirects",
                "fewer redirects",
                "pass the URL to which they lead",
                errno=errno.ELOOP,
            )
        if answer.status >= 300:
            answer.close()
            number = _FINAL.get(answer.status, errno.EIO)
            raise ReadError(
                url,
                f"cannot be read: the server answers {answer.status} {answer.reason}",
                fix=f"open {url} with curl -I: the URL, or the permission to read it, is wrong",
                errno=number,
            )
        self._worked = True
        return answer

    def _request(self, method: str, url: str, wanted: str | None) -> Any:
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        headers = self._headers(basic_auth=unquote(user) or None, accept_encoding="identity")
        if wanted:
            headers["Range"] = wanted
        target = urlunsplit((parts.scheme, host, parts.path or "/", parts.query, ""))
        return self._http.request(method, target, headers=headers, preload_content=False, redirect=False)


def _version(answer: Any) -> Any:
    return answer.headers.get("ETag") or answer.headers.get("Last-Modified")
