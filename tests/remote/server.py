"""An S3 server in memory, with a delay and faults, as a program: `python -m tests.remote.server`; prints its port.

Knows PUT of buckets and objects, GET with ranges, HEAD, and the listing of a bucket; signatures are not looked at.
POST /-/plan with a JSON object of any of these for the GET requests that follow:
delay: seconds before each answer; unavailable, refused: so many answers of 503, 403; short: so many bodies cut in half.
GET /-/count: how many GET requests of objects there were since the last plan.
"""

import hashlib
import json
import re
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

objects: dict[str, tuple[bytes, str]] = {}  # with the time of their PUT
plan: dict[str, float] = {}
counts = {"GET": 0}
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        with lock:
            plan.clear()
            plan.update(json.loads(self._sent()))
            counts["GET"] = 0
        self._answer(200)

    def do_PUT(self) -> None:
        with lock:
            objects[self._name()] = self._sent(), formatdate(usegmt=True)
        self._answer(200)

    def do_HEAD(self) -> None:
        self._give("")

    def do_GET(self) -> None:
        if self.path == "/-/count":
            return self._answer(200, str(counts["GET"]).encode())
        with lock:
            counts["GET"] += 1
            fault = next((name for name in ("unavailable", "short", "refused") if plan.get(name, 0) > 0), "")
            if fault:
                plan[fault] -= 1
            delay = plan.get("delay", 0)
        time.sleep(delay)
        return self._give(fault)

    def _give(self, fault: str) -> None:
        """The object that is asked for, or its range."""
        if fault in ("unavailable", "refused"):
            return self._answer(503 if fault == "unavailable" else 403)
        found = objects.get(self._name())
        if found is None:
            return self._answer(404)
        (data, date), status = found, 200
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"', "Last-Modified": date, "Accept-Ranges": "bytes"}
        if asked := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            size, (first, last) = len(data), asked.groups()
            start = int(first) if first else max(0, size - int(last))
            stop = min(size, int(last) + 1) if first and last else size
            if start >= size:
                return self._answer(416)
            status, data, headers["Content-Range"] = 206, data[start:stop], f"bytes {start}-{stop - 1}/{size}"
        return self._answer(status, data[: len(data) // 2] if fault == "short" else data, headers)

    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _sent(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
