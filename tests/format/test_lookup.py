"""Finding documents by their external ids."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.format.read import ids as lookup
from conceptloader.format.tools.verify import verify
from conceptloader.format.write import tables
from tests.corpora.small import written
from tests.raises import raises


def write(path, shards):
    documents = ([([1], {}, name) for name in ("", *ids)] for ids in shards)
    return cl.open_dataset(written(path, *documents, mode="token-stream"))


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(st.sampled_from(["", "a", "b", "ü", "x" * 300]) | st.text(max_size=2), max_size=40),
        min_size=1,
        max_size=3,
    )
)
def test_every_document_is_found_by_its_id(tmp_path_factory, shards):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "_READ", 4)
        patch.setattr(lookup, "isqrt", lambda n: -3)  # so that lookups go through several reads
        ds = write(tmp_path_factory.mktemp("ids") / "ds", shards)
        every = [name for ids in shards for name in ["", *ids]]
        assert [ds.document_id(i) or "" for i in range(ds.num_documents)] == every
        for name in {*every, "absent"} - {""}:
            assert ds.find_document(name) == [i for i, other in enumerate(every) if other == name]
        assert ds.find_document("") == []
        first = {name: lookup.AMBIGUOUS if every.count(name) > 1 else every.index(name) for name in {*every} - {""}}
        asked = [*first, "absent"]
        assert lookup.find_many(ds.files, asked).tolist() == [first.get(name, lookup.MISSING) for name in asked]
        assert verify(ds.path, full=True) == []


def test_equal_hashes_of_different_ids(tmp_path, monkeypatch):
    """All hashes collide: the ids themselves are compared, over several reads to both sides."""
    for module in (tables, lookup):
        monkeypatch.setattr(module.xxhash, "xxh3_64_intdigest", lambda data: 2**63)
    monkeypatch.setattr(lookup, "isqrt", lambda n: -3)
    names = [f"id{i % 7}" for i in range(50)]
    ds = write(tmp_path / "ds", [names])
    assert ds.find_document("id3") == [1 + i for i in range(50) if i % 7 == 3]
    assert ds.find_document("other") == []


def test_concepts_by_name_and_id(tmp_path):
    """From many threads; also of a dataset that is closed."""
    names = [f"c{number}" for number in range(3000)]
    path = written(tmp_path / "ds", [([1, 2], {"c": [(0, 1, [3])]})], tracks={"c": {"vocabulary": names}})
    ds = cl.open_dataset(path)
    wanted = ds.concepts("c")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ds.concept, range(3000))) == wanted
        assert list(threads.map(ds.concept, names)) == wanted
    assert ds.concept(np.int64(7)) == wanted[7]
    with raises(ConfigError, found="no concept 'c3000'", expected="one of 3000 names or ids"):
        ds.concept("c3000")
    ds.close()
    assert ds.concept("c2999") == wanted[2999]
