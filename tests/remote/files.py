"""A server of files by ranges, as it may be found: with redirects, without dates, with whole files; or as S3 has it."""

import hashlib
import http.server
import re
import threading
import time
from base64 import b64encode
from email.utils import formatdate
from urllib.parse import unquote


class FileServer(http.server.ThreadingHTTPServer):
    """Serves `folder` while it is a context.

    Attributes:
        redirects: Where to, by path.
        asked: The paths of all requests.
        let_in: What those that came with a user said: the header Authorization.
        user: Whom it asks for, as user:password; "" for nobody.
        whole: Which of the `ranges` get the whole file.
        faults: What the next ranges get in place of their bytes: a status; "short" for a body that ends before its
            end; "other" for a range 1 byte before it; "silent" for an answer without its length.
        dated: Answers say when a file was written.
        tagged: They have an ETag, and faults come to all requests of files.
        delay: Seconds before each answer.
        answer: What it says to everything, as S3 writes it: a status and its code; None for nothing of the kind.
    """

    request_queue_size = 128

    def __init__(self, folder, dated=False, tagged=False):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.dated, self.tagged, self.delay, self.answer = folder, dated, tagged, 0.0, None
        self.asked = []
        self.let_in = []
        self.redirects = {}
        self.user = ""
        self.ranges = 0
        self.whole = lambda number: False
        self.faults = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(self.path)
        server.let_in.append(self.headers["Authorization"])
        time.sleep(server.delay)
        target = server.redirects.get(self.path)
        file = server.folder / unquote(self.path.partition("?")[0]).lstrip("/")
        faulty = bool(wanted) or (server.tagged and self.command == "GET")
        fault = server.faults.pop(0) if faulty and server.faults else None
        if server.user and server.let_in[-1] != f"Basic {b64encode(server.user.encode()).decode()}":
            fault = 401
        if server.answer or target or isinstance(fault, int) or not file.is_file():
            status, code = server.answer or (302 if target else fault if isinstance(fault, int) else 404, "")
            body = f"<Error><Code>{code}</Code></Error>".encode() if code and self.command != "HEAD" else b""
            self.send_response(status)
            if target:
                self.send_header("Location", target)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        data = file.read_bytes()
        first, last = 0, len(data) - 1
        server.ranges += bool(wanted)
        if server.whole(server.ranges):
            wanted = None
        if wanted and (found := re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)):
            begin, end = found.groups()
            first = int(begin) - (fault == "other") if begin else max(0, len(data) - int(end))
            last = min(int(end), last) if begin and end else last
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        if server.dated:
            self.send_header("Last-Modified", formatdate(file.stat().st_mtime_ns % (1 << 31), usegmt=True))
        if server.tagged:
            self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        if fault != "silent":
            self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first : last if fault == "short" else last + 1])
        self.close_connection = fault in ("short", "silent")

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_):
        pass
