"""`take: own` of `exclude`: what is taken out has no influence, which is what is claimed, and what masks
of labels alone do not give. That samples and answers are as documented is what tests/oracle and trace compare."""

from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch

import conceptloader as cl
from conceptloader.config.exclude import Excluded
from conceptloader.config.mask import Mask
from conceptloader.errors import ResumeError
from conceptloader.testing import write_dataset
from conceptloader.trace.index import build_index
from conceptloader.trace.subset import SubsetOptions, make_ranges, make_subsets
from tests.corpora.twins import CONCEPT, IDS, NAMES, documents, write_twins
from tests.raises import raises

SEQ_LEN = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    for what in ("documents", "spans"):
        for mode in (None, "document"):
            write_twins(folder, what, mode)
        for number in (0, 1):
            source = folder / f"{what}-None-{number}"
            make_subsets(source, folder / f"{what}-view-{number}", SubsetOptions(where="document % 7 <> 5"))
    return folder


def config(path, exclude, **more):
    limits = {"max_spans": SEQ_LEN, "max_concepts": 4}
    return {
        "seq_len": SEQ_LEN,
        "datasets": {"web": {"path": str(path), "loss_weight": 0.5}},
        "exclude": exclude,
        "tracks": {"concepts": limits, "topics": {**limits, "layout": "ragged"}},
        "outputs": {"document_ids": True, "cu_seqlens": True, "position_ids": "document"},
        **more,
    }


OWN = {"at": 0, "ids": IDS, "take": "own"}


def spans(path):
    """An entry for the spans of a concept."""
    file = path.parent / f"{path.name}.txt"
    make_ranges(path, file, SubsetOptions(spans=f"'concept-{CONCEPT}' in concepts"))
    return {"at": 0, "dataset": "web", "token_file": str(file), "take": "own"}


def batches(config, count=6):
    with cl.make_dataloader(config, micro_batch_size=8, num_samples=8 * count) as loader:
        return [dict(batch) for batch in loader]


def equal(one, other):
    return all(
        torch.equal(a[name], b[name]) if torch.is_tensor(a[name]) else a[name] == b[name]
        for a, b in zip(one, other, strict=True)
        for name in a
    )


@pytest.mark.parametrize("kind", ["None", "document", "view", "packs"])
@pytest.mark.parametrize("what", ["documents", "spans"])
def test_no_array_of_a_batch_depends_on_what_is_taken_out(folder, kind, what):
    paths = [folder / f"{what}-{kind.replace('packs', 'None')}-{number}" for number in (0, 1)]
    more = {"packing": {"bins": 2}} if kind == "packs" else {}
    entries = [OWN if what == "documents" else spans(path) for path in paths]
    one, other = (batches(config(path, [entry], **more)) for path, entry in zip(paths, entries, strict=True))
    assert equal(one, other)
    untouched, changed = (batches(config(path, [], **more)) for path in paths)
    assert not equal(untouched, changed)
    late = batches(config(paths[0], [{**entries[0], "at": 20}], **more))
    assert equal(late[:2], untouched[:2])
    assert equal(late[3:], one[3:])
    assert late[2]["input_ids"][4:].equal(one[2]["input_ids"][4:])
    assert late[2]["input_ids"][:4].equal(untouched[2]["input_ids"][:4])


def test_ranges_by_the_index_are_those_by_the_track(tmp_path, caplog):
    path = Path(write_dataset(tmp_path / "web", documents(False, True), shards=3, vocabularies=NAMES))
    make_subsets(path, tmp_path / "view", SubsetOptions(where="document % 3 <> 1"))
    both = [path, tmp_path / "view"]
    read = [Path(spans(one)["token_file"]).read_text() for one in both]
    assert all(text.count("\n") > 5 for text in read)
    store = fsspec.filesystem("memory")
    store.put(f"{tmp_path}/", "/own", recursive=True)
    make_ranges("memory://own/web", tmp_path / "far.txt", SubsetOptions(spans=f"'concept-{CONCEPT}' in concepts"))
    assert (tmp_path / "far.txt").read_text() == read[0]
    store.rm("/own", recursive=True)
    build_index(path, "concepts")
    assert read == [Path(spans(one)["token_file"]).read_text() for one in both]


def test_fingerprints_say_what_is_taken():
    mask = Mask.of(np.array([0, 40]), np.array([10, 50]), np.array([30, 60]))
    assert Excluded(samples=mask).prints == (None, PRINTS)  # of the first release
    own = Excluded(samples=mask, own=mask, within=mask).prints[1]
    assert len({*own}) == 4
    assert [at for at, _ in own] == [30, 30, 60, 60]


PRINTS = ((30, "62044da80560a0190a3c633eb7e396f0"), (60, "b1d64622ce27a6d0e2b353d18a0e573f"))


def test_another_take_is_another_past(folder):
    def blend(*takes, at=40):
        entries = [{**OWN, "at": at, "take": take} for take in takes]
        return cl.open_blend(config(folder / "documents-None-0", entries))

    saved = blend("own").spec
    assert cl.adapters.OrderSpec.from_dict(saved.to_dict()) == saved
    assert blend("sample").resume(saved, 40).spec.exclude == blend("sample").spec.exclude
    assert blend("own").resume(saved, 48).spec == saved
    for other in (blend("sample"), blend(), blend("own", "sample"), blend("own", at=41)):
        with raises(ResumeError, found="exclude.web"):
            other.resume(saved, 48)
    with raises(ResumeError, found="exclude.web"):
        blend("own").resume(blend("sample").spec, 48)
