"""`take: own` of `exclude`: what is taken out has no influence, which is what is claimed, and what masks
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
from conceptloader.config.mask import Mask
from conceptloader.errors import ConfigError, ResumeError
from conceptloader.testing import write_dataset
from conceptloader.trace.index import build_index
from conceptloader.trace.subset import SubsetOptions, make_ranges, make_subsets
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


def spans(path: Path) -> dict[str, Any]:
    """An entry for the spans of a concept."""
    file = path.parent / f"{path.name}.txt"
    make_ranges(path, file, SubsetOptions(spans=f"'concept-{CONCEPT}' in concepts"))
    return {"at": 0, "dataset": "web", "token_file": str(file), "take": "own"}


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
@pytest.mark.parametrize("what", ["documents", "spans"])
def test_no_array_of_a_batch_depends_on_what_is_taken_out(folder: Path, kind: str, what: str) -> None:
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


def test_ranges_by_the_index_are_those_by_the_track(tmp_path: Path, caplog: Any) -> None:
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


def test_fingerprints_say_what_is_taken() -> None:
    mask = Mask.of(np.array([0, 40]), np.array([10, 50]), np.array([30, 60]))
    assert Excluded(samples=mask).prints == (None, PRINTS)  # of the first release
    own = Excluded(samples=mask, own=mask, within=mask).prints[1]
    assert len({*own}) == 4
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
        ({"ids": IDS, "take": "tokens"}, "exclude[0].take", "tokens"),
        ({"ids": ["nobody"], "take": "own"}, "exclude[0]", "nothing that matches it in web"),
        ({"ids": IDS, "token_file": "x"}, "exclude[0]", "ids, token_file"),
    ],
)
def test_entries_that_mean_nothing(folder: Path, entry: dict[str, Any], where: str, problem: str) -> None:
    with raises(ConfigError, path=where, found=problem):
        cl.open_blend(config(folder / "documents-None-0", [{"at": 0, **entry}]))


def test_a_configuration_is_what_it_says(folder: Path) -> None:
    entries = [OWN, spans(folder / "documents-None-0"), {"dataset": "web", "tokens": [3, 9]}]
    blend = cl.open_blend(config(folder / "documents-None-0", entries))
    assert cl.open_blend(blend.config.to_dict()).spec == blend.spec
    assert [entry.take for entry in blend.config.exclude] == ["own", "own", "sample"]


def test_a_loss_mask_is_needed(folder: Path) -> None:
    with raises(ConfigError, path="outputs.loss_mask", found="excluded documents"):
        cl.make_dataloader(config(folder / "documents-None-0", [OWN], outputs={"loss_mask": False}), micro_batch_size=8)
