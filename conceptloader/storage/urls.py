"""URLs in one form, so that those which lead to the same place compare as the same, and none leads out of a root."""

import os
import posixpath
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from conceptloader.errors import ConfigError

_PORTS = {"http": 80, "https": 443}


def is_url(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and "://" in path


def normal(url: str) -> str:
    """Without `.`, `..`, `//`, a slash at the end, query and fragment; scheme and host in lower case, no default port.

    Raises: ConfigError for what is no URL.
    """
    parts = _split(url)
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme.lower(), user + at + _host(parts), _path(parts.path), "", ""))


def parent(url: str) -> str:
    """The URL above a normal one, in the same host or bucket, whose root is its own parent."""
    parts = urlsplit(url)
    path = posixpath.dirname(parts.path).rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def below(url: str, root: str) -> bool:
    """Whether `url`, a normal one, is `root` or in it, also for servers that decode %2e, %2f or %252e before they look.

    Schemes, hosts and buckets must be equal; a user named in `url` must be the root's.
    """
    found, limit = urlsplit(url), urlsplit(normal(root))
    user, theirs = found.netloc.rpartition("@")[0], limit.netloc.rpartition("@")[0]
    if (found.scheme, _host(found)) != (limit.scheme, _host(limit)) or user not in ("", theirs):
        return False
    return (_decoded(found.path) + "/").startswith(_decoded(limit.path) + "/")


def _decoded(path: str) -> str:
    while (once := unquote(path)) != path:
        path = once
    return _path(path.replace("\\", "/"))


def _path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/")).rstrip("/")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _host(parts)
    except ValueError as error:
        raise ConfigError(
            repr(url), f"no URL ({error})", "scheme://host/path", "write the URL as scheme://host/path"
        ) from error
    return parts


def _host(parts: SplitResult) -> str:
    """Of http the name and the port; of others, what their stores name it: a bucket, an organization, nothing."""
    scheme = parts.scheme.lower()
    host = parts.netloc.rpartition("@")[2]
    if scheme not in _PORTS:
        return host
    name = (parts.hostname or "").rstrip(".")
    name = f"[{name}]" if ":" in name else name
    return name if parts.port in (None, _PORTS[scheme]) else f"{name}:{parts.port}"
