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

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self):
        with lock:
            body = json.dumps(counts).encode()
            counts.update(requests=0, bytes=0)
        self.answer(200, {"Content-Length": len(body)}, body)

    def do_GET(self):
        time.sleep(DELAY)
        path = os.path.join(FOLDER, unquote(urlsplit(self.path).path).lstrip("/"))
        if not os.path.isfile(path):
            self.answer(404, {"Content-Length": 0})
            return
        size, asked = os.path.getsize(path), self.headers.get("Range")
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(size, int(last) + 1) if last else size
        headers = {"Content-Length": stop - start, "Accept-Ranges": "bytes", "ETag": f'"{size:x}"'}
        headers |= {"Last-Modified": formatdate(os.path.getmtime(path), usegmt=True)}
        body = b""
        if self.command == "GET":
            with open(path, "rb") as file:
                file.seek(start)
                body = file.read(stop - start)
        self.answer(
            206 if asked else 200,
            headers | ({"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if asked else {}),
            body,
        )
        with lock:
            counts["requests"] += 1
            counts["bytes"] += len(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # clients that end
    print(server.server_port, flush=True)
    server.serve_forever()
