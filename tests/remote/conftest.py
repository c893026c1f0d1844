"""An S3 server of one's own for a test session, and buckets in it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conceptloader.storage import reads as io
from conceptloader.storage.remote import stores


@dataclass(frozen=True)
class Server:
    """plan, count: see tests.remote.server."""

    endpoint: str

    def plan(self, **faults: float) -> None:
        self._request("/-/plan", json.dumps(faults).encode(), "POST")

    def count(self) -> int:
        return int(self._request("/-/count", None, "GET"))

    def upload(self, folder: Path, bucket: str) -> str:
        """The files below a folder as objects of a new bucket. Returns: its URL."""
        self._request(f"/{bucket}", b"", "PUT")
        for file in folder.rglob("*"):
            if file.is_file():
                self.put(bucket, str(file.relative_to(folder)), file.read_bytes())
        return f"s3://{bucket}"

    def put(self, bucket: str, name: str, data: bytes) -> None:
        self._request(f"/{bucket}/{name}", data, "PUT")

    def _request(self, path: str, data: bytes | None, method: str) -> Any:
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(self.endpoint + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.remote.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        try:
            yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server without faults; the environment leads clients to it, and waiting between attempts is short."""
    for name, value in {
        "AWS_ENDPOINT_URL": running.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(io, "BACKOFF_S", (0.001,) * 4)
    stores._open_store.cache_clear()
    running.plan()
    return running
