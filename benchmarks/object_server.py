"""A folder as buckets of an object store on this machine, every answer late: python object_server.py FOLDER DELAY_S.

Prints its port. Knows ranges, HEAD, and DELETE of anything, which says how many requests and bytes there were since the
last one.
"""

import json
import os
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

FOLDER, DELAY = sys.argv[1], float(sys.argv[2])
counts, lock = {"requests": 0, "bytes": 0}, threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def do_DELETE(self) -> None:
        with lock:
            body = json.dumps(counts).encode()
            counts.update(requests=0, bytes=0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        time.sleep(DELAY)
        path = os.path.join(FOLDER, unquote(urlsplit(self.path).path).lstrip("/"))
        if not os.path.isfile(path):
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size, asked = os.path.getsize(path), self.headers.get("Range")
        start, stop = 0, size
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(size, int(last) + 1) if last else size
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{size:x}"')
        self.send_header("Last-Modified", formatdate(os.path.getmtime(path), usegmt=True))
        self.end_headers()
        if body:
            with open(path, "rb") as file:
                file.seek(start)
                self.wfile.write(file.read(stop - start))
        self.wfile.flush()
        with lock:
            counts["requests"] += 1
            counts["bytes"] += (stop - start) * body

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that end
    print(server.server_port, flush=True)
    server.serve_forever()
