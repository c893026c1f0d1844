"""A dataset leads to no host, bucket or directory but its roots; a store that cannot be used is named at once."""

import itertools
import json
import shutil
from pathlib import Path

import fsspec
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConceptloaderError, ConfigError, FormatError, ReadError
from conceptloader.format.spec.paths import UrlRoots
from conceptloader.storage import reads as io
from conceptloader.storage.remote import stores
from conceptloader.storage.urls import normal
from tests.corpora.small import written
from tests.hostile.targets import resealed
from tests.raises import cells, raises
from tests.remote.files import FileServer


@pytest.fixture
def dataset(tmp_path):
    return written(tmp_path / "trusted" / "data" / "ds", [([1, 2, 3],)])


@pytest.fixture
def servers(tmp_path, dataset, monkeypatch):
    """One that is trusted, and another one with the same files."""
    monkeypatch.setattr(io, "BACKOFF_S", (0.001,))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    stores._open_store.cache_clear()
    shutil.copytree(tmp_path / "trusted", tmp_path / "other")
    with FileServer(tmp_path / "trusted") as trusted, FileServer(tmp_path / "other") as other:
        yield [trusted, other]


LINES = [line.split(" ", 2) for line in Path(__file__).with_name("urls.txt").read_text().splitlines()[2:]]


@pytest.mark.parametrize(("url", "sign", "given"), LINES)
def test_urls_outside_of_the_roots_are_refused(url, sign, given):
    """Those of the same place are allowed, in every spelling."""
    above, paths = url if url.count("/") == 2 else url.removesuffix("/ds"), given.split(" | ")
    if sign == "=":
        roots = UrlRoots(url, None)
        roots.check(paths, "manifest")
        assert all(normal(roots.resolve(path)) == roots.resolve(path) for path in paths)
        return
    for path, known in itertools.product(paths, (None, [above])):
        with raises(FormatError, fix="roots=[...]"):
            UrlRoots(url, known).check([path], "manifest")


def refer(dataset, to):
    """Let the manifest say that the files of its shard are somewhere else, with a checksum that fits."""
    file = dataset / "manifest.json"
    head = json.loads(file.read_bytes())
    head.pop("checksum", None)
    head["shards"]["path"] = [to]
    file.write_bytes(resealed(json.dumps(head).encode()))


def test_a_manifest_leads_to_no_other_host(dataset, servers):
    trusted, other = servers
    refer(dataset, f"{other.url}/data/ds/00000")
    with pytest.raises(FormatError, match=r"roots=\[...\]"):
        cl.open_dataset(f"{trusted.url}/data/ds").tokens(0, 3)
    assert other.asked == []
    allowed = cl.open_dataset(f"{trusted.url}/data/ds", roots=[other.url])
    assert allowed.tokens(0, 3).tolist() == [1, 2, 3]


def test_a_file_url_is_no_directory(dataset, tmp_path):
    with pytest.raises(ConfigError, match=f"a URL of a local directory, expected its path; pass {dataset}$"):
        cl.open_dataset(f"file://{dataset}")
    secret = tmp_path / "secret"
    shutil.copytree(dataset, secret)
    for path in (f"file://{dataset.parent}/../../secret/00000", "../../../secret/00000"):
        refer(dataset, path)
        with pytest.raises((FormatError, ReadError)):
            cl.open_dataset(dataset).tokens(0, 3)


def test_a_url_of_any_store_cannot_climb(dataset):
    memory = fsspec.filesystem("memory")
    memory.put(str(dataset), "/doors/secret", recursive=True)
    refer(dataset, "memory://doors/data/../secret/00000")
    memory.put(str(dataset), "/doors/data/ds", recursive=True)
    with pytest.raises(FormatError, match=r"roots=\[...\]"):
        cl.open_dataset("memory://doors/data/ds").tokens(0, 3)
    assert cl.open_dataset("memory://doors/data/ds", roots=["memory://doors"]).tokens(0, 3).tolist() == [1, 2, 3]


@pytest.fixture
def no_waiting(monkeypatch):
    """The pauses that would have been made."""
    pauses = []
    monkeypatch.setattr(io, "sleep", pauses.append)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "REGION", "SESSION_TOKEN", "SKIP_SIGNATURE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    stores._open_store.cache_clear()
    yield pauses
    stores._open_store.cache_clear()


REFUSED = """
s3://bucket/ds | key secret store | 403 InvalidAccessKeyId | the store refuses what it was given: set AWS_
s3://bucket/ds | key secret store | 301 PermanentRedirect | the bucket is in another region: set AWS_REGION
s3://bucket/ds | key secret store | 404 NoSuchBucket | check the URL with its bucket, AWS_REGION
s3://bucket/ds | metadata | - | the environment has no credentials: set AWS_ACCESS_KEY_ID, AWS_SECRET
s3://bucket/ds | key secret nowhere | - | there is no such host
http://no-such-host.invalid/ds | - | - | there is no such host
s3://bucket/ds | key | - | check the URL, and set AWS_ACCESS_KEY_ID
az://bucket/ds | - | - | check the URL, and set AZURE_STORAGE_ACCOUNT
"""


@pytest.mark.parametrize(("url", "given", "answer", "remedy"), cells(REFUSED))
def test_what_cannot_be_used_is_named_at_once(tmp_path, no_waiting, monkeypatch, url, given, answer, remedy):
    status, code = (answer or "403 InvalidAccessKeyId").split()
    with FileServer(tmp_path) as store:
        store.answer = int(status), code
        monkeypatch.setattr(stores, "_METADATA", (store.url[5:],))  # in place of every cloud's own
        variables = {
            "key": ("AWS_ACCESS_KEY_ID", "wrong"), "secret": ("AWS_SECRET_ACCESS_KEY", "wrong"),
            "store": ("AWS_ENDPOINT_URL", store.url), "metadata": ("AWS_METADATA_ENDPOINT", store.url),
            "nowhere": ("AWS_ENDPOINT_URL", "http://no-such-host.invalid"),
        }  # fmt: skip
        for word in given.split():
            monkeypatch.setenv(*variables[word])
        with raises(ConceptloaderError, fix=remedy):
            cl.open_dataset(url)
    assert no_waiting == []


def test_a_token_that_expires_in_mid_run(server, dataset):
    """Nothing is lost while it is renewed; when it is not, the error says what to do."""
    far = cl.open_dataset(server.upload(dataset.parent, "expired") + "/ds")
    assert far.tokens(0, 1).tolist() == [1]
    server.plan(refused=3)
    assert far.tokens(0, 3).tolist() == [1, 2, 3]
    server.plan(refused=10**6)
    with pytest.raises(ReadError, match=r"accepted it before: renew the token .* failed 5 times"):
        far.tokens(0, 2)


def test_passwords_in_urls_are_not_shown(tmp_path, servers, capsys, caplog):
    url = servers[0].url.replace("://", "://me:s3cr3t@") + "/data/ds"
    missing, run = url.replace("/ds", "/none"), tmp_path / "run.yaml"
    assert "://me:***@" in repr(cl.open_dataset(url))
    run.write_text(f"seq_len: 2\ndatasets: {{a: {{path: '{url}'}}}}\n")
    for words in ("inspect URL", "inspect URL --json", "inspect URL --stats", "inspect URL --random 1 --seq-len 2"):
        assert main([word.replace("URL", url) for word in words.split()]) == 0
    assert main(["doctor", str(run), "--seconds", "0.1"]) == 0
    for call in (cl.open_dataset, lambda url: cl.open_blend({"seq_len": 2, "datasets": {"a": {"path": url}}})):
        with pytest.raises(ReadError, match=r"me:\*\*\*@") as caught:
            call(missing)
        assert "s3cr3t" not in str(caught.value)
    (tokens,) = (tmp_path / "trusted" / "data" / "ds").glob("*.stream.bin")
    tokens.unlink()
    assert main(["verify", url]) == 2
    assert main(["inspect", "--random", "3", url, "--seq-len", "2", "--verbose"]) == 1
    assert main(["inspect", missing, "--verbose"]) == 1
    assert "s3cr3t" not in "".join(capsys.readouterr()) + caplog.text
