"""A store of one's own, for a made-up scheme: what it needs is a `get`, and the core alone trains from it."""

import errno
import itertools
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError, ReadError
from conceptloader.format.spec.jsonfile import seal
from conceptloader.loader.batch.open import open_reader
from conceptloader.storage import reads as io
from conceptloader.storage.objects import REMOTE, SCHEMES, Objects, Part
from conceptloader.testing import random_documents, write_dataset
from tests.raises import raises

FILES = {}
FAULTS = []


class MadeUp(Objects):
    def get(self, url, offset, size):
        if FAULTS and size:
            raise ReadError(url, "made up", errno=FAULTS.pop())
        if url not in FILES:
            raise ReadError(url, "not there", errno=errno.ENOENT)
        return replace(FILES[url], data=FILES[url].data[offset : offset + size])


@pytest.fixture(params=["1", None], ids=["versions", "no versions"])
def near(request, tmp_path, monkeypatch):
    """A dataset that is at made-up://host/near as well."""
    monkeypatch.setitem(SCHEMES, "made-up", MadeUp)
    monkeypatch.setattr(io, "BACKOFF_S", (0.001,) * 3)
    path = tmp_path / "near"
    write_dataset(path, random_documents(300, seed=1), shards=3, encoding="spans")
    for file in path.iterdir():
        FILES[f"made-up://host/near/{file.name}"] = Part(data := file.read_bytes(), len(data), request.param)
    yield path
    FILES.clear()
    FAULTS.clear()


def config(path, **more):
    return {"seq_len": 32, "datasets": {"a": {"path": str(path)}}, "tracks": {"concepts": {}}, **more}


def stream(shard=0):
    return f"made-up://host/near/0000{shard}.stream.bin"


def test_a_training_from_it(near):
    """Through faults that pass; resumed."""
    far, loader = (cl.batches(config(at), micro_batch_size=8) for at in ("Made-Up://host/near", near))
    FAULTS[:] = [errno.EIO] * 3
    wanted = list(itertools.islice(loader, 6))
    for mine, theirs in zip(far, wanted, strict=False):
        assert mine.keys() == theirs.keys()
        assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
    far.load_state_dict(far.state_dict_at(32))
    assert next(iter(far))["sample_index"].tolist() == wanted[4]["sample_index"].tolist()
    assert not FAULTS


def test_what_it_gives_is_checked(near):
    far, url = cl.open_dataset("made-up://host/near"), stream()
    sound = FILES[url]
    for wrong, kind, parts in [
        ({"data": sound.data[2:] + sound.data[:2]}, FormatError, {"found": "sample checksum"}),
        ({"size": sound.size - 4}, FormatError, {"expected": "as the manifest says"}),
        ({"data": sound.data[:-4]}, ReadError, {"fix": "failed 4 times"}),
    ]:
        FILES[url] = replace(sound, **wrong)
        with raises(kind, url, **parts):
            far.tokens(0, 9)
    FILES[url] = sound
    assert len(far.tokens(0, 9)) == 9
    reader, samples = open_reader(cl.open_blend(config("made-up://host/near"))), np.arange(40, dtype=np.uint64)
    reader.read(samples)
    FILES[url] = replace(sound, version="2")
    with pytest.raises(FormatError, match=rf"sample \d+, dp_rank 0: {url}.*as when it was first read"):
        reader.read(samples)
    del FILES[stream(1)]
    with raises(ReadError, stream(1), found="not there"):
        far.tokens(far.shard_starts[1], far.num_tokens)


def test_a_dataset_rebuilt_there_in_use(near):
    """Known by the end of its manifest where the store has no versions; another form of it is the same dataset."""
    far, name = cl.open_dataset("made-up://host/near"), "made-up://host/near/manifest.json"

    def put(data):
        FILES[name] = Part(data, len(data), FILES[name].version and f"{len(data)}")

    again = {key: value for key, value in json.loads(FILES[name].data).items() if key != "checksum"}
    put(seal(json.dumps(again)[:-1].encode()))
    far.tokens(0, 9)
    put(replace(far.manifest, created_by="another build").dump())
    with raises(FormatError, name, "a manifest of other content"):
        far.tokens(far.shard_starts[1], far.num_tokens)


def test_a_scheme_that_nothing_reads(monkeypatch):
    monkeypatch.setitem(sys.modules, REMOTE, None)
    monkeypatch.delitem(SCHEMES, "made-up", raising=False)
    with raises(ConfigError, found=f"made-up://host/ds: found the scheme made-up, and no {REMOTE}"):
        cl.open_dataset("made-up://host/ds")
