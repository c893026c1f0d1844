"""What a server of files may answer, and which error each answer is: the errno says whether it may pass."""

import errno
import http.server
import threading
from collections.abc import Iterator

import pytest

from conceptloader.errors import ReadError
from conceptloader.remote.http import Http
from conceptloader.storage.objects import Part
from tests.raises import raises

DATA = bytes(range(100))


class Answers(http.server.BaseHTTPRequestHandler):
    """The path says what is answered: a status, or how a server without ranges sends the whole file."""

    def do_GET(self) -> None:
        asked = self.path.strip("/")
        body = b"" if asked in ("empty", "silent") else DATA
        if asked in ("part", "other"):
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            if asked == "other":  # as a cache that keeps blocks, or takes one range for another
                first, last = first - first % 8, last - first % 8
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(DATA)}")
            body = DATA[first : last + 1]
        else:
            self.send_response(int(asked) if asked.isdecimal() else 200)
        if asked != "silent":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def get(url: str, what: str, offset: int = 0, size: int = 100) -> Part:
    return Http(url).get(f"{url}/{what}", offset, size, lambda _: False)


ERRORS = {errno.EACCES: (401, 403, 407), errno.ENOENT: (404, 410), errno.EIO: (400, 402, 429, 500, 503)}


def test_each_status_has_its_error(url: str) -> None:
    for number, statuses in ERRORS.items():
        for status in statuses:
            with raises(ReadError, found=f"the server answers {status}") as caught:
                get(url, str(status))
            assert caught.value.errno == number


def test_whole_files_and_parts(url: str) -> None:
    assert get(url, "part", 10, 5) == Part(DATA[10:15], 100, None)
    assert get(url, "whole") == Part(DATA, 100, None)
    assert get(url, "empty", size=1) == Part(b"", 0, None)
    for what, offset, size in (("whole", 10, 5), ("whole", 0, 50), ("silent", 0, 1)):
        with raises(ReadError, found="answers without ranges of bytes"):
            get(url, what, offset, size)


def test_another_part_than_was_asked_for_is_an_error(url: str) -> None:
    assert get(url, "other", 8, 5).data == DATA[8:13]
    with raises(ReadError, found="at offset 10: the server answers with bytes 8-12/100") as caught:
        get(url, "other", 10, 5)
    assert caught.value.errno == errno.EIO


def test_a_proxy_is_left_out_where_the_environment_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "elsewhere")
    with raises(ReadError, found="cannot be read at offset 0"):
        get(url, "whole")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    assert get(url, "whole").size == 100
