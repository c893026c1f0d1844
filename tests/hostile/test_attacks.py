"""Attempts to make a data set do more than hold data. What counts is that nothing happens outside of it."""

import json
import os
import resource
import shutil
import sys

import pytest

import conceptloader as cl
from conceptloader.errors import ConceptloaderError, FormatError
from conceptloader.format.spec.jsonfile import dump_json
from conceptloader.storage import reads as io
from tests.corpora.small import written
from tests.raises import raises


def build(path, record="x", **track):
    return written(path, [([1, 2, 3, 4], {"notes": [(0, 3, record)]})], tracks={"notes": track or {"codec": "json"}})


def edit(path, *place, value):
    """Change one value of the manifest, its seal made right again."""
    file = path / "manifest.json"
    head = json.loads(file.read_bytes())
    head.pop("checksum")
    holder = head
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    file.write_bytes(dump_json(head))


@pytest.mark.parametrize("name", ["os.system", "antigravity", "this:main", "../x", "conceptloader.testing"])
def test_a_codec_name_imports_nothing(tmp_path, name):
    path = build(tmp_path / "ds")
    edit(path, "tracks", "notes", "codec", value=name)
    before = set(sys.modules)
    with raises(FormatError, found="codec"):
        cl.open_dataset(path).spans("notes", 0, 4)
    assert not {module for module in set(sys.modules) - before if not module.startswith("conceptloader.")}


@pytest.mark.parametrize("kind", ["../secret", "../../secret", "{}/secret", "x/../../secret"])
def test_paths_out_of_the_roots_are_not_read(tmp_path, kind):
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    path = build(root / "inner" / "ds")
    size = (path / "00000.stream.bin").stat().st_size
    secret = tmp_path / "root" / "secret"
    secret.write_bytes(bytes(size))
    wanted = kind.format(root) if "{}" in kind else kind
    edit(path, "shards", "files", "stream.bin", "path", value=[wanted])
    if os.path.normpath(path / wanted) == str(path.parent / "secret"):
        with pytest.raises(ConceptloaderError):  # a sibling: allowed, but not there
            cl.open_dataset(path).tokens(0, 2)
        return
    with raises(FormatError, found="secret", fix="roots=["):
        cl.open_dataset(path).tokens(0, 2)
    with raises(FormatError, "secret", "sample checksum"):
        cl.open_dataset(path, roots=[tmp_path]).tokens(0, 2)
    ds = cl.open_dataset(path, roots=[tmp_path], verify_files=False)
    assert ds.tokens(0, 2).tolist() == [0, 0], "it is there for those who allow it"


def test_a_link_swapped_in_after_opening_is_not_followed(tmp_path):
    root = tmp_path / "root"
    path = build(root / "ds")
    file = path / "00000.stream.bin"
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(file.stat().st_size))
    ds = cl.open_dataset(path)
    file.unlink()
    file.symlink_to(secret)
    with raises(FormatError, found="secret", fix="roots=["):
        ds.tokens(0, 2)


def swap_while_opening(monkeypatch, path, elsewhere, back):
    """After all looks, `path` becomes a link to elsewhere; back: for the opening alone."""
    swaps = [path.parent / "before"]

    def swapping(file, flags):
        if not file.endswith("stream.bin") or not swaps:
            return os.open(file, flags)
        before = swaps.pop()
        path.rename(before)
        path.symlink_to(elsewhere)
        try:
            return os.open(file, flags)
        finally:
            if back:
                path.unlink()
                before.rename(path)

    monkeypatch.setattr(io, "open_descriptor", swapping)


@pytest.mark.parametrize(("name", "back"), [("", False), ("00000.stream.bin", False), ("", True)])
@pytest.mark.parametrize("proc", ["as it is", "not there", "of other names"])
def test_a_link_swapped_in_while_opening_is_not_followed(tmp_path, monkeypatch, name, back, proc):
    """Also for the time of the opening alone, where the system cannot say, or in another spelling, what was opened."""
    path, readlink = build(tmp_path / "root/ds"), os.readlink
    shutil.copytree(path, tmp_path / "elsewhere")

    def other(link, **options):
        if proc == "not there" and os.fspath(link).startswith("/proc/self/fd"):
            raise FileNotFoundError(link)
        found = readlink(link, **options)
        return found.upper() if os.fspath(link).startswith("/proc/self/fd") else found

    if proc != "as it is":
        monkeypatch.setattr(os, "readlink", other)
    ds = cl.open_dataset(path)
    swap_while_opening(monkeypatch, path / name, tmp_path / "elsewhere" / name, back)
    with raises(FormatError, fix="roots=["):
        ds.tokens(0, 2)
    if back:
        assert ds.tokens(0, 2).tolist() == [1, 2], "the file itself"


@pytest.mark.parametrize("special", ["fifo", "directory", "device"])
def test_no_regular_file_is_no_data(tmp_path, special):
    """In particular, opening a fifo must not wait for a writer that never comes."""
    path = build(tmp_path / "ds")
    file = path / "00000.stream.bin"
    file.unlink()
    if special == "fifo":
        os.mkfifo(file)
    elif special == "directory":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(ConceptloaderError):
        cl.open_dataset(path, roots=["/"]).tokens(0, 2)


def test_sizes_from_outer_space_allocate_nothing(tmp_path):
    """All numbers at once, so that they agree with each other."""
    path = build(tmp_path / "ds")
    head = json.loads((path / "manifest.json").read_bytes())
    head.pop("checksum")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for tokens in (2**40, 2**61):
        big = json.loads(json.dumps(head))
        big["num_tokens"] = big["shards"]["tokens"][0] = tokens
        big["shards"]["files"]["stream.bin"]["size"][0] = 4 * tokens
        (path / "manifest.json").write_bytes(dump_json(big))
        with pytest.raises(ConceptloaderError):
            cl.open_dataset(path).read(0, 4, ["notes"], documents=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"
