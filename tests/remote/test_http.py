"""Datasets on a server of files are those of the directory; whatever else it answers is an error, never other bytes."""

import errno
import shutil

import pytest

import conceptloader as cl
from conceptloader.errors import FormatError, ReadError
from conceptloader.storage import reads as io
from conceptloader.storage.objects import Part
from conceptloader.storage.remote import stores
from tests.raises import raises
from tests.remote.files import FileServer
from tests.remote.test_datasets import check, local

__all__ = ["local"]  # the fixture
DATA = bytes(range(100))


@pytest.fixture
def server(tmp_path, local, monkeypatch):
    """Of the dataset `ds`, and of a `file` of DATA."""
    monkeypatch.setattr(io, "BACKOFF_S", (0.001,) * 4)
    stores._open_store.cache_clear()
    shutil.copytree(local, tmp_path / "served" / "ds")
    (tmp_path / "served" / "file").write_bytes(DATA)
    with FileServer(tmp_path / "served", dated=True) as started:
        yield started


def get(server, offset=10, size=5, name="file"):
    return stores.store_of(server.url).get(f"{server.url}/{name}", offset, size)


def test_a_dataset_is_that_of_the_directory(server, local):
    """Also with a user, and in a directory whose name a URL escapes."""
    check(local, f"{server.url}/ds")
    server.user = "me:s3:cr@t"
    (server.folder / "ds").rename(server.folder / "my d\u00e4ta+1")
    server.asked.clear()
    check(local, f"{server.url.replace('//', '//me:s3%3Acr%40t@')}/my%20d\u00e4ta+1")
    assert {path.rpartition("/")[0] for path in server.asked} == {"/my%20d%C3%A4ta+1"}


def test_ranges(server):
    """Fewer bytes at the end; the size and the version alone."""
    version = get(server).version
    assert version is not None
    assert get(server) == Part(DATA[10:15], 100, version)
    assert get(server, 98, 5) == Part(DATA[98:], 100, version)
    assert get(server, 0, 100) == Part(DATA, 100, version)
    assert get(server, size=0) == Part(b"", 100, version)
    with raises(ReadError, found="path with %2F", fix="rename"):
        get(server, name="a%2Ffile")


@pytest.mark.parametrize(
    ("fault", "number", "found"),
    [
        (401, errno.EACCES, "401"),
        (403, errno.EACCES, "403"),
        (404, errno.ENOENT, "404"),
        (503, errno.EIO, "503"),
        ("short", errno.EIO, "body"),
        ("other", errno.EIO, "Requested 10..15, got 9..15"),
        ("silent", errno.ENOTSUP, "Content-Length"),
    ],
)
def test_each_answer_has_its_error(server, fault, number, found):
    """The errno says whether it may pass."""
    server.faults = [fault]
    with raises(ReadError, f"{server.url}/file", found) as caught:
        get(server)
    assert caught.value.errno == number


def test_a_server_without_ranges(server):
    """Is named at once, with what to do; also where the whole file is what was asked for."""
    server.whole = lambda number: True
    for offset, size in ((10, 5), (0, 100), (0, 1)):
        with raises(
            ReadError, found="Range request not supported", fix="a server that answers Range requests"
        ) as caught:
            get(server, offset, size)
        assert caught.value.errno == errno.ENOTSUP
    with raises(ReadError, "/ds/manifest.json", "Range request not supported"):
        cl.open_dataset(f"{server.url}/ds")


def test_redirects_are_followed_without_the_password(server, tmp_path, local):
    """Wherever they lead: what comes from there has to be what the manifest says."""
    shutil.copytree(local, tmp_path / "other" / "ds")
    near, file = cl.open_dataset(local), "/ds/00000.stream.bin"
    url, server.user = f"{server.url.replace('//', '//me:s3cr3t@')}/ds", "me:s3cr3t"
    with FileServer(tmp_path / "other") as other:
        server.redirects = {file: f"{other.url}{file}?signature=1"}
        assert cl.open_dataset(url).tokens(0, 99).tolist() == near.tokens(0, 99).tolist()
        assert set(other.asked) == {f"{file}?signature=1"}
        assert set(other.let_in) == {None}
        (other.folder / file[1:]).write_bytes(b"7 bytes")
        with raises(FormatError, file, "7 bytes"):
            cl.open_dataset(url).tokens(0, 99)
    (server.folder / file[1:]).replace(server.folder / "moved.bin")
    server.redirects = {file: "/moved.bin"}
    assert cl.open_dataset(url).tokens(0, 99).tolist() == near.tokens(0, 99).tolist()
    server.redirects = {file: file}
    with raises(ReadError, file, "error following redirect", fix="failed 5 times"):
        cl.open_dataset(url).tokens(0, 99)
