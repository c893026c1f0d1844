"""Stores that do not say which version of an object they give: nothing of another version is used unseen."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import FormatError
from conceptloader.storage import stores
from conceptloader.storage.http import Http
from tests.raises import raises

TOKENS = 40_000


class Ranges(http.server.BaseHTTPRequestHandler):
    """Ranges of files, with no word of their version, or with their dates."""

    folder: ClassVar[Path]
    dated: ClassVar[bool]

    def _answer(self, body: bool) -> None:
        file = self.folder / self.path.strip("/")
        if not file.exists():
            self.send_error(404)
            return
        data = file.read_bytes()
        first, last = 0, len(data) - 1
        if "Range" in self.headers:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            last = min(last, len(data) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        else:
            self.send_response(200)
        if self.dated:
            self.send_header("Last-Modified", self.date_time_string(file.stat().st_mtime_ns % (1 << 31)))
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        if body:
            self.wfile.write(data[first : last + 1])

    def do_GET(self) -> None:
        self._answer(True)

    def do_HEAD(self) -> None:
        self._answer(False)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["bare", "dated"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    Ranges.folder, Ranges.dated = tmp_path / "served", request.param
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def write(path: Path, seed: int) -> Path:
    """Of any seed files of equal sizes."""
    build = cl.create_build(path, cl.BuildOptions(token_type="u2"), plan=[0, 1])
    for shard in range(2):
        with build.shard(shard) as writer:
            writer.add_document(np.random.default_rng([seed, shard]).integers(0, 1000, TOKENS))
    cl.finalize(path)
    return path


def rebuild(path: Path, seed: int) -> None:
    new = write(path.parent / f"new{seed}", seed)
    for file in new.iterdir():
        assert file.stat().st_size == (path / file.name).stat().st_size
        file.replace(path / file.name)


def test_a_cache_on_the_disk_never_gives_what_was_there_before(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CONCEPTLOADER_REMOTE_CACHE_DIR", str(tmp_path / "cache"))
    near = write(Ranges.folder / "ds", 0)
    for seed in (1, 2):
        assert (
            cl.open_dataset(f"{url}/ds").tokens(0, TOKENS).tolist() == cl.open_dataset(near).tokens(0, TOKENS).tolist()
        )
        rebuild(near, seed)
    assert any((tmp_path / "cache").rglob("*")) == Ranges.dated
    assert ("the disk cache is not used" in caplog.text) == (not Ranges.dated)


def test_a_dataset_rebuilt_in_use(url: str) -> None:
    near = write(Ranges.folder / "ds", 0)
    far = cl.open_dataset(f"{url}/ds")
    far.tokens(0, 9)
    rebuild(near, 1)
    with raises(FormatError, found="manifest of other content"):
        far.tokens(TOKENS, TOKENS + 9)


def test_dates_are_versions(url: str) -> None:
    (Ranges.folder).mkdir()
    (Ranges.folder / "file").write_bytes(b"12345")
    version = Http(url).get(f"{url}/file", 1, 2, lambda _: False).version
    assert (version is not None) == Ranges.dated


def test_a_file_system_is_asked_again_for_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    files.put(str(write(tmp_path / "ds", 0)), "/versions/ds", recursive=True)
    far = cl.open_dataset("memory://versions/ds")
    far.tokens(0, 9)
    files.put(str(write(tmp_path / "new", 1) / "00000.stream.bin"), "/versions/ds/00000.stream.bin")
    monkeypatch.setattr(stores, "FRESH_S", 0.0)
    with raises(FormatError, expected="as when it was first read"):
        far.tokens(9, 20)
