"""The server of the page: a token in the address, host names checked, read only.

Open pages.py next: what the page asks for.
"""

import hmac
import ipaddress
import json
import logging
import secrets
import socket
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from conceptloader.errors import ConceptloaderError, ConfigError
from conceptloader.viewer.pages import PAGES
from conceptloader.viewer.source import Looked, Query

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
HEADERS = {
    # The page builds itself by text nodes; should that ever fail, nothing inline or foreign runs or loads.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_DEFECT = "this is a defect of conceptloader; please report it, with what the server printed"


class Server(ThreadingHTTPServer):
    """Serves one `Looked` until it is shut down. url: the address of its page, with the token.

    host: "127.0.0.1" by default; port 0: any that is free. Raises ConfigError if it cannot listen there.
    """

    daemon_threads = True

    def __init__(self, looked: Looked, host: str = "127.0.0.1", port: int = 0) -> None:
        self.looked = looked
        self.token = secrets.token_urlsafe(18)
        self.files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in TYPES}
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{host}:{port}",
                f"an address that cannot be listened at ({error})",
                "a free port of an address of this machine",
                "pass another --port or --host",
            ) from error
        self.local = is_loopback(host)
        self.names = {"localhost", host.lower(), *([] if self.local else [socket.gethostname().lower()])}
        name = socket.gethostname() if host == "0.0.0.0" else host
        self.url = f"http://{name}:{self.server_address[1]}/{self.token}/"

    def knows(self, host: str) -> bool:
        """Whether a request may name this host: this machine's own names, at any port (one is forwarded, say).

        Another name is that of a web site which lets its name point here, to read what is served.
        """
        name = urlsplit(f"//{host}").hostname or ""
        number = name.replace(".", "").isdecimal() or ":" in name  # which cannot be made to point elsewhere
        return name in self.names or is_loopback(name) or (number and not self.local)


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Handler(BaseHTTPRequestHandler):
    """GET /TOKEN/ and /TOKEN/<file> are the page, /TOKEN/api/<name>?<parameters> is JSON: an answer, or an error."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "conceptloader", ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer; any error is shown on the page."""
        try:
            status, kind, body = self._answer()
        except Exception:
            logger.exception("%s", urlsplit(self.path).path.rpartition("/")[2])
            status, kind, body = _error(HTTPStatus.INTERNAL_SERVER_ERROR, "Defect", _DEFECT)
        try:
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # the browser went on to something else

    def _answer(self) -> tuple[HTTPStatus, str, bytes]:
        try:
            parts = urlsplit(self.path)
            known = self.server.knows(self.headers.get("Host", ""))
        except ValueError:
            return _error(HTTPStatus.BAD_REQUEST, "Address", "found no address, expected the address printed")
        _, token, name = [*parts.path.split("/", 2), "", ""][:3]
        same = hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode())
        if not (known and same):
            return _error(HTTPStatus.FORBIDDEN, "Address", "found another host or token, expected the address printed")
        if name.startswith("api/"):
            return self._data(name.removeprefix("api/"), dict(parse_qsl(parts.query)))
        name = name or "index.html"
        if name not in self.server.files:
            return _error(HTTPStatus.NOT_FOUND, "Address", "found no such page")
        return HTTPStatus.OK, TYPES[Path(name).suffix], self.server.files[name]

    def _data(self, name: str, values: Mapping[str, str]) -> tuple[HTTPStatus, str, bytes]:
        if name not in PAGES:
            return _error(HTTPStatus.NOT_FOUND, "Address", "found no such page")
        try:
            found = PAGES[name](self.server.looked, Query(values))
        except ConceptloaderError as error:
            mine = isinstance(error, ConfigError)
            status = HTTPStatus.BAD_REQUEST if mine else HTTPStatus.INTERNAL_SERVER_ERROR
            return _error(status, type(error).__name__, str(error))
        return HTTPStatus.OK, "application/json", json.dumps(found, allow_nan=False, separators=(",", ":")).encode()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the address holds the token."""


def _error(status: HTTPStatus, kind: str, message: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "application/json", json.dumps({"error": {"kind": kind, "message": message}}).encode()
