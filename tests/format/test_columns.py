"""Columns as files: what verify finds, and what becomes of them in datasets that are made of others."""

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.spec.columnfile import ColumnFile, ItemFiles, column_file
from conceptloader.format.spec.jsonfile import dump_json, load_json
from conceptloader.storage.sample import sample_checksum
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.columns import add_column, random_items
from tests.raises import raises

RNG = np.random.default_rng(49)


def dataset(path, seed=0):
    write_dataset(path, random_documents(40, seed=seed), shards=3)
    return cl.open_dataset(path)


def with_ids(path, seed=0, **options):
    """The items of a column u4[3] of a new dataset."""
    items = random_items(np.random.default_rng(seed), dataset(path, seed).num_tokens, "u4", (3,))
    add_column(path, "ids", items, **options)
    return items


def edited(path, name, **keys):
    head = load_json(str(path / column_file(name)))
    (path / column_file(name)).write_bytes(dump_json({**head.value, **keys}))


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"dtype": "u3"}, "dtype"),
        ({"shape": [1, 1, 3]}, "shape"),
        ({"shape": [0]}, "shape"),
        ({"shape": [1 << 20]}, "shape"),
        ({"shape": [4]}, "files.size"),
        ({"stream_fingerprint": "of others"}, "stream_fingerprint"),
        ({"version": 2}, "version"),
        ({"nobody": "knows"}, "nobody"),
        ({"files": {"size": [1], "checksum": [None], "sample": [None]}}, "files.size"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path, keys, where):
    with_ids(tmp_path / "ds")
    edited(tmp_path / "ds", "ids", **keys)
    with pytest.raises(FormatError) as error:
        cl.open_dataset(tmp_path / "ds").columns["ids"]
    assert error.value.path.startswith(f"{tmp_path / 'ds' / 'ids.column.json'}: {where}"), error.value
    assert [problem.file for problem in cl.verify(tmp_path / "ds")] == [str(tmp_path / "ds" / "ids.column.json")]


def test_verify_reads_every_item(tmp_path):
    ds = dataset(tmp_path / "ds")
    items = random_items(RNG, ds.num_tokens, "f4", (2,))
    missing = RNG.random(ds.num_tokens) < 0.3
    missing[[ds.document_range(k)[0] for k in range(20)]] = True
    add_column(tmp_path / "ds", "probs", items, missing=missing)
    assert cl.verify(tmp_path / "ds", full=True) == []
    place = tmp_path / "ds" / "00001.probs.column"
    whole = place.read_bytes()
    changed = np.frombuffer(whole, "f4").reshape(-1, 2).copy()
    changed[5, 1] += 1
    place.write_bytes(changed.tobytes())
    [problem] = cl.verify(tmp_path / "ds", full=True)
    assert "checksum" in problem.message
    assert problem.tokens == tuple(ds.shard_starts[1:3])
    place.write_bytes(whole[:-8])
    [problem] = cl.verify(tmp_path / "ds")
    assert problem.file == str(place)
    changed[5, 1] = np.nan
    place.write_bytes(changed.tobytes())
    files = load_json(str(tmp_path / "ds" / "probs.column.json")).value["files"]
    edited(tmp_path / "ds", "probs", files={**files, "checksum": [None] * len(files["checksum"])})
    [problem] = cl.verify(tmp_path / "ds", full=True)
    assert "item of token 5: found [" in problem.message


def test_joined_columns_belong_to_the_same(tmp_path):
    for seed, name in enumerate("ab"):
        with_ids(tmp_path / name, seed)
        edited(tmp_path / name, "ids", extra={"at": "labels", "teacher": "big", "number": seed})
    cl.concat([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
    assert cl.open_dataset(tmp_path / "ab").columns["ids"].extra == {"at": "labels", "teacher": "big"}
    edited(tmp_path / "b", "ids", extra={"at": "inputs"})
    with raises(ConfigError, "concat: column 'ids'", "inputs"):
        cl.concat([tmp_path / "a", tmp_path / "b"], tmp_path / "other")


def test_an_array_of_numpy_is_read_where_it_is(tmp_path):
    """One file for all shards, each of which begins somewhere in it; joined, too."""
    ds = dataset(tmp_path / "ds")
    items = random_items(RNG, ds.num_tokens, "f2", (2, 3))
    np.save(tmp_path / "values.npy", items)
    data = (tmp_path / "values.npy").read_bytes()
    begin = len(data) - items.nbytes
    sample = sample_checksum(len(data), lambda at, size: data[at : at + size])
    files = ItemFiles(
        size=np.full(3, len(data)),
        checksum=[None] * 3,
        sample=[sample] * 3,
        path=["../values.npy"] * 3,
        offset=begin + np.array(ds.shard_starts[:-1]) * 12,
    )
    tokens = ds.stream_fingerprint
    column = ColumnFile(dtype="f2", shape=(2, 3), stream_fingerprint=tokens, files=files, created_by="tests")
    (tmp_path / "ds" / "probs.column.json").write_bytes(column.dump())
    cl.concat([tmp_path / "ds", tmp_path / "ds"], tmp_path / "deeper" / "joined", roots=[tmp_path])
    for path, times in ((tmp_path / "ds", 1), (tmp_path / "deeper" / "joined", 2)):
        assert cl.verify(path, full=True, roots=[tmp_path]) == []
        found, known = cl.open_dataset(path, roots=[tmp_path]).column_values("probs", 0, times * ds.num_tokens)
        assert known.all()
        assert np.array_equal(found, np.concatenate([items] * times))
    (tmp_path / "values.npy").write_bytes(data[:-1])
    with pytest.raises(FormatError, match=r"values\.npy"):
        cl.open_dataset(tmp_path / "ds").column_values("probs", 0, 1)
