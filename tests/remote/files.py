"""A server of files by ranges, as it may be found: with redirects, without dates, with whole files now and then."""

import http.server
import threading
from collections.abc import Callable
from pathlib import Path


class FileServer(http.server.ThreadingHTTPServer):
    """Serves `folder` while it is a context; redirects: where to, by path. asked: the paths of all requests. whole:
    which of the `ranges` get the whole file. dated: answers say when a file was written."""

    def __init__(self, folder: Path, dated: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.dated = folder, dated
        self.asked: list[str] = []
        self.redirects: dict[str, str] = {}
        self.ranges = 0
        self.whole: Callable[[int], bool] = lambda number: False
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "FileServer":
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        target = self.server.redirects.get(self.path)
        file = self.server.folder / self.path.partition("?")[0].lstrip("/")
        if target or not file.is_file():
            self.send_response(302 if target else 404)
            if target:
                self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = file.read_bytes()
        first, last = 0, len(data) - 1
        wanted = self.headers["Range"]
        self.server.ranges += bool(wanted)
        if self.server.whole(self.server.ranges):
            wanted = None
        if wanted:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            last = min(last, len(data) - 1)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        if self.server.dated:
            self.send_header("Last-Modified", self.date_time_string(file.stat().st_mtime_ns % (1 << 31)))
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first : last + 1])

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass
