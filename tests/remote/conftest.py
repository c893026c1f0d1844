"""An S3 server of one's own for a test session, and buckets in it."""

import shutil

import pytest

from conceptloader.storage import reads as io
from conceptloader.storage.remote import stores
from tests.remote.files import FileServer


class Server(FileServer):
    """Buckets are folders; signatures are not looked at."""

    def plan(self, unavailable=0, refused=0, delay=0):
        """What the next requests get; counting begins at 0."""
        self.faults = [503] * unavailable + [403] * refused
        self.delay = delay
        self.asked.clear()

    def upload(self, folder, bucket):
        """The files below a folder as objects of a new bucket. Returns: its URL."""
        shutil.copytree(folder, self.folder / bucket)
        return f"s3://{bucket}"


@pytest.fixture(scope="session")
def running(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("s3"), dated=True, tagged=True) as started:
        yield started


@pytest.fixture
def server(running, monkeypatch):
    """The server without faults; the environment leads clients to it, and waiting between attempts is short."""
    for name, value in {
        "AWS_ENDPOINT_URL": running.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(io, "BACKOFF_S", (0.001,) * 4)
    stores._open_store.cache_clear()
    running.plan()
    return running
