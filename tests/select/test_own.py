"""`take: own` and `labels` of `exclude`: what is taken out has no influence, which is what is claimed, and what masks
of labels alone do not give. That samples and answers are as documented is what tests/oracle and trace compare."""

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import conceptloader as cl
from conceptloader.config.exclude import Excluded
from conceptloader.config.mask import Holes, Mask
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.testing import write_dataset
from conceptloader.trace.index import build_index
from conceptloader.trace.subset import SubsetOptions, make_subsets
from tests.corpora.twins import CONCEPT, IDS, NAMES, OUT, VOCAB, documents, write_twins
from tests.raises import raises

SEQ_LEN = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("own")
    for what in ("documents", "spans"):
        for mode in (None, "document"):
            write_twins(folder, what, mode)
        for number in (0, 1):
            source = folder / f"{what}-None-{number}"
            make_subsets(source, folder / f"{what}-view-{number}", SubsetOptions(where="document % 7 <> 5"))
    return folder


def config(path: Path, exclude: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    limits = {"max_spans": SEQ_LEN, "max_concepts": 4}
    return {
        "seq_len": SEQ_LEN,
        "datasets": {"web": {"path": str(path), "loss_weight": 0.5}},
        "exclude": exclude,
        "tracks": {"concepts": limits, "topics": {**limits, "layout": "ragged"}},
        "outputs": {
            "document_ids": True,
            "cu_seqlens": True,
            "position_ids": "document",
        },
        **more,
    }


OWN = {"at": 0, "ids": IDS, "take": "own"}
SPANS = {"at": 0, "concept": {"track": "concepts", "name": f"concept-{CONCEPT}"}, "take": "own"}


def batches(config: dict[str, Any], count: int = 6) -> list[dict[str, Any]]:
    with cl.make_dataloader(config, micro_batch_size=8, num_samples=8 * count) as loader:
        return [dict(batch) for batch in loader]


def equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return all(
        torch.equal(a[name], b[name]) if torch.is_tensor(a[name]) else a[name] == b[name]
        for a, b in zip(one, other, strict=True)
        for name in a
    )


@pytest.mark.parametrize("kind", ["None", "document", "view", "packs"])
@pytest.mark.parametrize(("what", "entry"), [("documents", OWN), ("spans", SPANS)])
def test_no_array_of_a_batch_depends_on_what_is_taken_out(
    folder: Path, kind: str, what: str, entry: dict[str, Any]
) -> None:
    paths = [folder / f"{what}-{kind.replace('packs', 'None')}-{number}" for number in (0, 1)]
    more = {"packing": {"bins": 2}} if kind == "packs" else {}
    one, other = (batches(config(path, [entry], **more)) for path in paths)
    assert equal(one, other)
    untouched, changed = (batches(config(path, [], **more)) for path in paths)
    assert not equal(untouched, changed)
    late = batches(config(paths[0], [{**entry, "at": 20}], **more))
    assert equal(late[:2], untouched[:2])
    assert equal(late[3:], one[3:])
    assert late[2]["input_ids"][4:].equal(one[2]["input_ids"][4:])
    assert late[2]["input_ids"][:4].equal(untouched[2]["input_ids"][:4])


class Model(torch.nn.Module):
    """One layer of attention, causal, and within documents if isolated; concepts are inputs too."""

    def __init__(self, isolated: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.isolated = isolated
        self.tokens, self.places = torch.nn.Embedding(VOCAB, 16), torch.nn.Embedding(512, 16)
        self.concepts = torch.nn.Embedding(6, 16)
        self.mix, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, VOCAB)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        rows, size = batch["input_ids"].shape
        ids = batch["concepts_ids"]  # [B, M, C]
        spans = (self.concepts(ids.clamp(min=0)) * (ids >= 0)[..., None]).sum(2)
        index = batch["concepts_span_index"]
        inside = spans.gather(1, index.clamp(min=0)[..., None].expand(-1, -1, 16)) * (index >= 0)[..., None]
        x = self.tokens(batch["input_ids"]) + self.places(batch["position_ids"]) + inside
        q, k, v = self.mix(x).split(16, -1)
        allowed = torch.ones(size, size, dtype=torch.bool).tril().expand(rows, -1, -1)
        if self.isolated:
            starts = torch.zeros(rows * size, dtype=torch.long)
            starts[batch["cu_seqlens"][:-1].long()] = 1
            number = starts.cumsum(0).view(rows, size)
            allowed = allowed & (number[:, :, None] == number[:, None])
        weights = (q @ k.transpose(1, 2) / 4).masked_fill(~allowed, -torch.inf).softmax(-1)
        return self.out(x + weights @ v)


def trained(batches: list[dict[str, Any]], isolated: bool) -> dict[str, torch.Tensor]:
    model = Model(isolated)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for batch in batches:
        losses = cross_entropy(model(batch).transpose(1, 2), batch["labels"], reduction="none")
        (losses * batch["loss_mask"] * batch["loss_weight"]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def masked(path: Path, border: bool) -> list[dict[str, Any]]:
    """Batches with the documents in them, but without the losses of their tokens, and of the labels behind them."""
    blend = cl.open_blend(config(path, []))
    own = np.zeros(blend.datasets["web"].num_tokens + 1, bool)
    for number in OUT:
        own[slice(*blend.datasets["web"].document_range(number))] = True
    found = batches(config(path, []))
    for batch in found:
        for row, sample in enumerate(batch["sample_index"].tolist()):
            tokens = blend.order.sample(sample)[2] * SEQ_LEN + np.arange(SEQ_LEN)
            batch["loss_mask"][row, own[tokens + 1]] = 0
            if border:
                batch["loss_mask"][row, own[tokens]] = 0
    return found


@pytest.mark.parametrize("isolated", [False, True])
def test_weights_have_the_same_bits_whatever_was_taken_out(folder: Path, isolated: bool) -> None:
    paths = [folder / f"documents-None-{number}" for number in (0, 1)]
    ways = {
        "own tokens, labels and border": [batches(config(path, [OWN])) for path in paths],
        "own labels": [masked(path, border=False) for path in paths],
        "own labels and border": [masked(path, border=True) for path in paths],
    }
    same = {}
    for way, both in ways.items():
        one, other = (trained(found, isolated) for found in both)
        same[way] = all(torch.equal(one[name], other[name]) for name in one)
    expected = {"own tokens, labels and border": True, "own labels": False, "own labels and border": isolated}
    assert same == expected


def test_spans_from_the_index_are_those_of_the_track(folder: Path, tmp_path: Path, caplog: Any) -> None:
    path = Path(write_dataset(tmp_path / "web", documents(False, True), shards=3, vocabularies=NAMES))
    make_subsets(path, tmp_path / "view", SubsetOptions(where="document % 3 <> 1"))
    both = [config(one, [SPANS]) for one in (path, tmp_path / "view")]
    read = [cl.open_blend(one).excluded["web"].holes.own for one in both]
    assert caplog.text.count(f"`conceptloader index {path} --track concepts` builds one") == 2
    store = fsspec.filesystem("memory")
    store.put(f"{tmp_path}/", "/own", recursive=True)
    caplog.clear()
    for mask, name in zip(read, ("web", "view"), strict=True):
        found = cl.open_blend(config(Path(name), [SPANS], datasets={"web": {"path": f"memory://own/{name}"}}))
        np.testing.assert_array_equal(mask.start, found.excluded["web"].holes.own.start)
    store.rm("/own", recursive=True)
    assert caplog.text.count("has no index") == 2
    assert "conceptloader index" not in caplog.text  # no URL has one
    build_index(path, "concepts")
    caplog.clear()
    for mask, one in zip(read, both, strict=True):
        found = cl.open_blend(one).excluded["web"].holes.own
        assert len(found.at) > 3
        for a, b in zip(mask, found, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not caplog.records


def test_fingerprints_say_what_is_taken() -> None:
    mask = Mask.of(np.array([0, 40]), np.array([10, 50]), np.array([30, 60]))
    assert Excluded(samples=mask).prints == (None, PRINTS)  # of the first release
    own = Excluded(samples=mask, holes=Holes(own=mask)).prints[1]
    labels = Excluded(samples=mask, holes=Holes(labels=mask)).prints[1]
    assert len({*own, *labels}) == 6
    assert [at for at, _ in own] == [30, 30, 60, 60]


PRINTS = ((30, "62044da80560a0190a3c633eb7e396f0"), (60, "b1d64622ce27a6d0e2b353d18a0e573f"))


def test_another_take_is_another_past(folder: Path) -> None:
    def blend(*takes: str, at: int = 40) -> Any:
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


@pytest.mark.parametrize(
    ("entry", "where", "problem"),
    [
        ({"ids": IDS, "take": "labels"}, "exclude[0].take", "labels"),
        ({"ids": IDS, "take": "tokens"}, "exclude[0].take", "tokens"),
        ({"ids": ["nobody"], "take": "own"}, "exclude[0]", "nothing that matches it in web"),
        ({"ids": IDS, "concept": {"track": "concepts", "id": 3}}, "exclude[0]", "ids, concept"),
        ({"concept": {"track": "concept", "id": 3}}, "exclude[0].concept.track", "unknown track of concepts 'concept'"),
        ({"concept": {"track": "concepts", "id": 6}}, "exclude[0].concept.id", "6"),
        ({"concept": {"track": "concepts", "name": "concept-7"}}, "exclude[0].concept.name", "'concept-7'"),
        ({"concept": {"track": "concepts"}}, "exclude[0].concept", "name and id"),
        ({"concept": {"track": "concepts", "name": "a", "id": 3}}, "exclude[0].concept", "name and id"),
    ],
)
def test_entries_that_mean_nothing(folder: Path, entry: dict[str, Any], where: str, problem: str) -> None:
    with raises(ConfigError, path=where, found=problem):
        cl.open_blend(config(folder / "documents-None-0", [{"at": 0, **entry}]))


def test_an_id_of_two_concepts_is_an_error(folder: Path, tmp_path: Path) -> None:
    made, names = documents(False, True), {**NAMES, "concepts": NAMES["concepts"][::-1]}
    write_dataset(tmp_path / "other", made, vocab_size=VOCAB, vocabularies=names)
    datasets = {
        "other": {"path": str(tmp_path / "other"), "weight": 1},
        "web": {"path": str(folder / "spans-None-0"), "weight": 1},
    }

    def masks(**concept: Any) -> Any:
        entry = {"at": 0, "concept": {"track": "concepts", **concept}, "take": "own"}
        return cl.open_blend({"seq_len": SEQ_LEN, "datasets": datasets, "exclude": [entry]}).excluded

    with raises(ConfigError, path="exclude[0].concept.id", found="['concept-2', 'concept-3']"):
        masks(id=2)
    found, third = masks(name="concept-2"), masks(name="concept-3")
    assert len(found["web"].holes.own.at) != len(found["other"].holes.own.at) == len(third["web"].holes.own.at)


def test_a_configuration_is_what_it_says(folder: Path) -> None:
    entries = [OWN, SPANS, {**SPANS, "take": "labels", "at": 9}]
    blend = cl.open_blend(config(folder / "documents-None-0", entries))
    assert cl.open_blend(blend.config.to_dict()).spec == blend.spec
    assert [entry.take for entry in blend.config.exclude] == ["own", "own", "labels"]


@pytest.mark.parametrize("entry", [OWN, {**SPANS, "take": "labels"}])
def test_a_loss_mask_is_needed(folder: Path, entry: dict[str, Any]) -> None:
    with raises(ConfigError, path="outputs.loss_mask", found="excluded documents"):
        cl.make_dataloader(
            config(folder / "documents-None-0", [entry], outputs={"loss_mask": False}), micro_batch_size=8
        )
