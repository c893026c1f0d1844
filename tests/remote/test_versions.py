"""Stores that do not say which version of an object they give: nothing of another version is used unseen."""

import fsspec
import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import FormatError
from conceptloader.storage.objects import Objects, Part
from conceptloader.storage.remote import stores
from conceptloader.storage.source import Expected
from tests.corpora.small import written
from tests.raises import raises
from tests.remote.files import FileServer

TOKENS = 40_000


@pytest.fixture(params=[False, True], ids=["bare", "dated"])
def server(request, tmp_path):
    with FileServer(tmp_path / "served", dated=request.param) as started:
        yield started


def write(path, seed):
    """Of any seed files of equal sizes."""
    shards = ([(np.random.default_rng([seed, shard]).integers(0, 1000, TOKENS),)] for shard in range(2))
    return written(path, *shards, token_type="u2")


def rebuild(path, seed):
    new = write(path.parent / f"new{seed}", seed)
    for file in new.iterdir():
        assert file.stat().st_size == (path / file.name).stat().st_size
        file.replace(path / file.name)


def test_a_cache_on_the_disk_never_gives_what_was_there_before(server, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("CONCEPTLOADER_REMOTE_CACHE_DIR", str(tmp_path / "cache"))
    near = write(server.folder / "ds", 0)
    for seed in (1, 2):
        far, local = (cl.open_dataset(place).tokens(0, TOKENS) for place in (f"{server.url}/ds", near))
        assert far.tolist() == local.tolist()
        rebuild(near, seed)
    assert any((tmp_path / "cache").rglob("*")) == server.dated
    assert ("the disk cache is not used" in caplog.text) == (not server.dated)


def test_a_file_system_is_asked_again_for_versions(tmp_path, monkeypatch):
    files = fsspec.filesystem("memory")
    files.put(str(write(tmp_path / "ds", 0)), "/versions/ds", recursive=True)
    far = cl.open_dataset("memory://versions/ds")
    far.tokens(0, 9)
    files.put(str(write(tmp_path / "new", 1) / "00000.stream.bin"), "/versions/ds/00000.stream.bin")
    monkeypatch.setattr(stores, "FRESH_S", 0.0)
    with raises(FormatError, expected="as when it was first read"):
        far.tokens(9, 20)


class Proxied(Objects):
    """A store that is asked through a proxy, which makes some of its ETags weak."""

    tags = iter(['"a"', 'W/"a"', '"a"', 'W/"b"'])

    def get(self, url, offset, size):
        return Part(b"x" * size, 8, next(self.tags))


def test_a_weak_etag_is_that_of_the_same_object():
    objects = Proxied(check=False)
    file = Expected("proxied://a", 8, "")
    for _ in range(3):
        assert objects.fetch(file, 0, 4) == b"xxxx"
    with raises(FormatError, "proxied://a", 'version "b"'):
        objects.fetch(file, 0, 4)
