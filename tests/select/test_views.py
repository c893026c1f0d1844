"""Views of views and of spans, their checks and what they refuse; that they read what their documents are in the
source is a part of tests/format/test_dataset.py."""

import json
import pickle
import shutil

import numpy as np
import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError, FormatError
from conceptloader.format.write.view import write_view
from conceptloader.testing import random_documents, write_dataset
from conceptloader.trace.index import build_index
from conceptloader.trace.subset import SubsetOptions, make_subsets

SEQ_LEN = 24


@pytest.fixture(scope="module")
def raw():
    return random_documents(150, seed=5, vocab_size=200, mean_length=30, tracks={"concepts": 8, "topics": 3})


@pytest.fixture(scope="module", params=["spans", "dense", "document"])
def folder(request, raw, tmp_path_factory):
    """Source `data`, and the view `view` of some of its documents."""
    folder = tmp_path_factory.mktemp(request.param)
    how = {"mode": "document"} if request.param == "document" else {"encoding": request.param}
    write_dataset(folder / "data", raw, shards=4, **how)
    make_subsets(folder / "data", folder / "view", SubsetOptions(where="share < 0.6"))
    return folder


def numbers(view):
    """Of the documents of a view in its source."""
    with cl.open_dataset(view) as dataset:
        return [int((dataset.document_id(k) or "").removeprefix("doc-")) for k in range(len(dataset))]


PACKS = {"packing": {"bins": 3, "overflow": "truncate"}}


BASE = {"seq_len": SEQ_LEN, "tracks": {"concepts": {}}}


def test_a_view_of_one_document(folder):
    """Its tokens lie elsewhere in their files, as those of views with many runs do."""
    make_subsets(folder / "data", folder / "one", SubsetOptions(where="document = 149"))
    config = {"seq_len": 8, "order": "sequential", "datasets": {"one": {"path": str(folder / "one")}}}
    with cl.open_dataset(folder / "data") as data, cl.make_dataloader(config, micro_batch_size=1) as loader:
        start, stop = data.document_range(149)
        read = next(iter(loader))["input_ids"][0].tolist()
        assert read[: stop - start] == data.tokens(start, min(stop, start + 8)).tolist()


def test_views_of_views(folder):
    """They are flat: what lies between may go."""
    shutil.copytree(folder / "view", folder / "between")
    make_subsets(folder / "between", folder / "flat", SubsetOptions(where="tokens > 20"))
    shutil.rmtree(folder / "between")
    make_subsets(folder / "data", folder / "at_once", SubsetOptions(where="share < 0.6 and tokens > 20"))
    assert (folder / "flat/runs.bin").read_bytes() == (folder / "at_once/runs.bin").read_bytes()
    one, other = (json.loads((folder / name / "manifest.json").read_text()) for name in ("flat", "at_once"))
    assert one["source"] == other["source"] == {**one["source"], "path": "../data"}
    assert one["max_spans"] == other["max_spans"]


def test_spans(folder, monkeypatch):
    """A view of the tokens that carry something: each run is a document, which has the id of the one that it is of."""
    monkeypatch.setattr("conceptloader.trace.concepts._CHUNK_TOKENS", 40)  # runs across what is read at once stay whole
    ask = SubsetOptions(spans="'concept-1' in concepts or 'concept-3' in concepts", where="tokens > 10")
    with cl.open_dataset(folder / "data") as data:
        if data.mode == "document":
            with pytest.raises(ConfigError, match="only whole documents"):
                make_subsets(folder / "data", folder / "spans", ask)
            return
        expected = []
        for number in range(len(data)):
            start, stop = data.document_range(number)
            spans = data.spans("concepts", start, stop)
            held = np.zeros(stop - start, bool)
            for a, b, ids in zip(spans.start.tolist(), spans.end.tolist(), spans.decode(), strict=True):
                held[a:b] |= bool({1, 3} & set(ids.tolist()))
            borders = np.flatnonzero(np.diff(np.concatenate([[0], held, [0]])))
            if stop - start > 10:
                expected += [(number, start + a, start + b) for a, b in borders.reshape(-1, 2).tolist()]
        make_subsets(folder / "data", folder / "spans", ask)
        with cl.open_dataset(folder / "spans") as view:
            assert len(view) == len(expected)
            assert view.num_tokens == sum(b - a for _, a, b in expected)
            for k, (number, a, b) in enumerate(expected):
                assert view.tokens(*view.document_range(k)).tolist() == data.tokens(a, b).tolist()
                assert view.document_id(k) == f"doc-{number}"
                assert view.sources(np.array([k])).tolist() == [number]
                assert k in view.find_document(f"doc-{number}")


def test_verify_and_a_source_that_changed(folder, raw, capsys):
    assert main(["verify", "--full", str(folder / "view")]) == 0
    for name, change in (("runs.bin", lambda data: data[:-1] + b"\1"), ("manifest.json", lambda data: data[:-9])):
        broken = folder / f"broken-{name}"
        shutil.copytree(folder / "view", broken)
        (broken / name).write_bytes(change((broken / name).read_bytes()))
        assert main(["verify", str(broken)]) == 1
        with pytest.raises(FormatError, match="corrupt"):
            cl.open_dataset(broken)
    other = folder / "other"
    shutil.copytree(folder / "view", other / "view")
    write_dataset(other / "data", raw[1:], shards=4)
    with pytest.raises(FormatError, match="found other tokens, documents or tracks in"):
        cl.open_dataset(other / "view")
    assert main(["verify", str(other / "view")]) == 1
    shutil.copytree(folder / "data", folder / "damaged/data")
    shutil.copytree(folder / "view", folder / "damaged/view")
    stream = folder / "damaged/data/00001.stream.bin"
    data = stream.read_bytes()
    stream.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    capsys.readouterr()
    assert main(["verify", "--full", "--json", str(folder / "damaged/view")]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    start, stop = problem["tokens"]  # of the view, which a quarantine wants
    chosen = [k for k in numbers(folder / "view") if 150 // 4 <= k < 150 // 2]
    with cl.open_dataset(folder / "view") as view:
        assert start == view.document_range(view.find_document(f"doc-{chosen[0]}")[0])[0]
        assert stop == view.document_range(view.find_document(f"doc-{chosen[-1]}")[0])[1]


def test_doors(folder):
    """What needs files of its own says so; processes get views; roots are as for any dataset."""
    with cl.open_dataset(folder / "view") as view:
        again = pickle.loads(pickle.dumps(view))
        assert again.tokens(0, 50).tolist() == view.tokens(0, 50).tolist()
        assert again.stream_fingerprint == view.stream_fingerprint
    assert main(["subset", str(folder / "view"), str(folder / "view"), "--out", str(folder / "no")]) in (1, 2)
    assert not (folder / "no").exists()
    with pytest.raises(ConfigError, match="which has the index of its source"):
        build_index(folder / "view")
    with cl.open_dataset(folder / "data") as data:
        border, across = data.shard_starts[1], folder / "across"
        across.mkdir()
        write_view(str(across), str(across), data, np.array([border - 9]), np.array([border + 9]), {})
    config = {**BASE, **PACKS, "datasets": {"some": {"path": str(across), "weight": 1}}}
    with pytest.raises(ConfigError, match=r"datasets\.some: packing: found document 0 of the .* across shards"):
        cl.open_blend(config)
    inner = folder / "deep/inner"
    make_subsets(folder / "data", inner, SubsetOptions(where="true"))
    with pytest.raises(FormatError, match="roots"):
        cl.open_dataset(inner)
    assert cl.open_dataset(inner, roots=[folder]).num_documents == 150
