"""Datasets in object stores give what they give in a directory; faults are survived or reported."""

import shutil
import subprocess
import sys
import uuid

import fsspec
import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, ReadError
from tests.corpora.small import written
from tests.raises import raises


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Two shards with documents, ids, a field, a dense track and a sparse one with a vocabulary."""
    rng = np.random.default_rng(0)

    def documents(shard):
        for number in range(150):
            n = int(rng.integers(1, 90))
            spans = {"c": [(0, n, [number % 2])], "d": [(0, n // 2, [number])] if n > 1 else []}
            yield rng.integers(0, 1000, n), spans, f"{shard}-{number}", {"weight": rng.random(n)}

    tracks = {"c": {"vocabulary": ["a", "b"], "encoding": "spans"}, "d": {"encoding": "dense"}}
    path = tmp_path_factory.mktemp("local") / "ds"
    return written(path, *map(documents, range(2)), tracks=tracks, fields={"weight": "f2"})


def upload(local, server):
    return server.upload(local.parent, f"b{uuid.uuid4().hex}") + "/ds"


def contents(dataset):
    """All of it."""
    whole = 0, dataset.num_tokens
    held, spans = dataset.documents_in(*whole), [dataset.spans(track, *whole) for track in "cd"]
    found = [dataset.tokens(*whole), dataset.fields(*whole)["weight"], held.ids, held.first]
    found += [values for of_track in spans for values in (of_track.start, of_track.ends_after)]
    records = [bytes(record) for of_track in spans for record in of_track.records]
    return [values.tolist() for values in found], records, dataset.stream_fingerprint, dataset.find_document("1-7")


def check(local, url, **options):
    """Everything of a dataset is as in the directory."""
    near, far = cl.open_dataset(local), cl.open_dataset(url, **options)
    assert contents(far) == contents(near)
    assert far.vocabulary("c") == ["a", "b"]
    return far


def test_every_kind_of_store(local, server):
    """By obstore and fsspec; http: test_http.py."""
    fsspec.filesystem("memory").put(str(local), "/bucket/ds", recursive=True)
    url = upload(local, server)
    for each in (url, "memory://bucket/ds"):
        check(local, each)


def test_neighbours_and_roots(local, server, tmp_path):
    """References to other prefixes of the bucket work; to other places only when they are allowed."""
    from conceptloader.format.tools.concat import concat

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "ds").symlink_to(local)
    concat([str(tmp_path / "a" / "ds")], tmp_path / "joined", roots=[str(tmp_path), str(local.parent)])
    (tmp_path / "a" / "ds").unlink()
    url = server.upload(tmp_path, f"b{uuid.uuid4().hex}")
    shutil.copytree(local, server.folder / url[5:] / "a" / "ds")
    check(local, f"{url}/joined")
    with pytest.raises(FormatError, match=r"expected a file below s3://b\w+/joined, s3://other"):
        cl.open_dataset(f"{url}/joined", roots=["s3://other/x"])
    check(local, f"{url}/joined", roots=[url])


def test_what_is_not_there(server, monkeypatch):
    with pytest.raises(ReadError, match=r"s3://nowhere-\w+/ds/manifest\.json: cannot be read"):
        cl.open_dataset(f"s3://nowhere-{uuid.uuid4().hex}/ds")
    with raises(ConfigError, "nosuch://", "fsspec cannot read it"):
        cl.open_dataset("nosuch://bucket/ds")
    monkeypatch.setenv("CONCEPTLOADER_REMOTE_CONNECTIONS", "many")
    with raises(ConfigError, "CONCEPTLOADER_REMOTE_CONNECTIONS", found="many"):
        cl.open_dataset("memory://empty")
    with raises(ConfigError, found="a URL"):
        cl.verify("s3://bucket/ds")


def test_local_datasets_import_no_client(checkout, local):
    script = (
        "import sys, conceptloader as cl\n"
        f"ds = cl.open_dataset({str(local)!r}); ds.windows(8)[0]\n"
        "assert not {'obstore', 'fsspec', 's3fs'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=checkout)
