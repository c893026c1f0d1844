"""moto's S3 server with a delay and faults, as a program: `python -m tests.remote.server`; prints its port.

POST /-/plan with a JSON object of any of these for the GET requests that follow:
delay: seconds before each answer; unavailable, refused: so many answers of 503, 403; short: so many bodies cut in half.
GET /-/count: how many GET requests of objects there were since the last plan.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Answer = Callable[..., Any]
SIGNED = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"


class Faults:
    def __init__(self, application: Any) -> None:
        self._application = application
        self._plan: dict[str, float] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/-/plan":
            with self._lock:
                self._plan = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
                self._count = 0
            return _answer(start, b"{}")
        if path == "/-/count":
            return _answer(start, str(self._count).encode())
        environ.setdefault("HTTP_AUTHORIZATION", SIGNED)  # buckets are not public, and moto believes anything
        if environ["REQUEST_METHOD"] != "GET":
            return self._application(environ, start)
        with self._lock:
            self._count += 1
            fault = next((name for name in ("unavailable", "short", "refused") if self._plan.get(name, 0) > 0), None)
            if fault:
                self._plan[fault] -= 1
        time.sleep(self._plan.get("delay", 0))
        if fault in ("unavailable", "refused"):
            start("503 Slow Down" if fault == "unavailable" else "403 Forbidden", [("Content-Length", "0")])
            return []
        body = b"".join(self._application(environ, start))
        return [body[: len(body) // 2] if fault == "short" else body]


def _answer(start: Answer, body: bytes) -> list[bytes]:
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept

    def log(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = make_server(
        "127.0.0.1", 0, Faults(DomainDispatcherApplication(create_backend_app)), threaded=True, request_handler=Handler
    )
    print(server.server_port, flush=True)
    server.serve_forever()
