"""Stores that do not say which version of an object they give: nothing of another version is used unseen."""

import fsspec
import numpy as np

import conceptloader as cl
from conceptloader.errors import FormatError
from conceptloader.storage.objects import Objects, Part
from conceptloader.storage.remote import stores
from conceptloader.storage.source import Expected
from tests.corpora.small import written
from tests.raises import raises


def write(path, seed):
    """Of any seed files of equal sizes."""
    shards = ([(np.random.default_rng([seed, shard]).integers(0, 1000, 40_000),)] for shard in range(2))
    return written(path, *shards, token_type="u2")


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
