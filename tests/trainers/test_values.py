"""Losses of training and evaluation in plain PyTorch, equal to those of a loop written by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import conceptloader as cl
from tests.trainers import by_hand, values
from tests.trainers.by_hand import ByHand, Sample, Tables

SEQ_LEN, RATE = 16, 0.5
WINDOWS: dict[str, Any] = {
    "outputs": {"position_ids": "document", "mask_document_boundaries": True, "loss_on_eos": False}
}
PACKS: dict[str, Any] = {"packing": {"bins": 4}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets, of which one has neither masks nor weights."""
    return write_datasets(tmp_path_factory.mktemp("values"))


def write_datasets(folder: Path) -> Path:
    by_hand.write(folder / "masked", by_hand.documents(seed=1))
    by_hand.write(folder / "plain", plain(), fields=())
    return folder


def plain() -> list[by_hand.Document]:
    """The documents of the second dataset: everything is trained on, with weight 1."""
    return [
        by_hand.Document(one.tokens, [1] * len(one.tokens), [1.0] * len(one.tokens))
        for one in by_hand.documents(30, seed=2)
    ]


def config_of(folder: Path, kind: dict[str, Any], **outputs: Any) -> dict[str, Any]:
    datasets = {name: {"path": str(folder / name), "weight": 1 + (name == "masked")} for name in ("masked", "plain")}
    return {"seq_len": SEQ_LEN, "datasets": datasets, **kind, "outputs": {**kind.get("outputs", {}), **outputs}}


def samples_of(source: Any, kind: dict[str, Any], stop: int) -> list[Sample]:
    """The first samples of a run, from the documents."""
    corpora = {"masked": by_hand.documents(seed=1), "plain": plain()}
    if kind is WINDOWS:
        rules = {"restart": True, "mask_boundaries": True, "loss_on_eos": False}
        every = {name: by_hand.windows(corpus, SEQ_LEN, **rules) for name, corpus in corpora.items()}
    else:
        every = {}
        for view in source.blend.views:  # where best fit puts documents is tested elsewhere
            corpus, starts = corpora[view.name], [0]
            for document in corpus:
                starts.append(starts[-1] + len(document.tokens))
            packs = [view.packs.parts(number) for number in range(view.count)]
            every[view.name] = [
                by_hand.packed(corpus, [(p.document, p.start - starts[p.document], p.tokens) for p in pack], SEQ_LEN)
                for pack in packs
            ]
    return by_hand.in_order(source, every, 0, stop)


def with_weights(model: Tables, batch: dict[str, Any]) -> torch.Tensor:
    """Losses [B, S], as docs/annotations.md says."""
    logits = model(batch["input_ids"], batch["position_ids"])
    return cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none") * batch["loss_weight"]


@pytest.mark.parametrize("kind", [WINDOWS, PACKS], ids=["windows", "packs"])
def test_attention_within_documents(folder: Path, kind: dict[str, Any]) -> None:
    """The masks of docs/pytorch.md give what each document gives by itself; without documents they do not."""
    with cl.make_dataloader(config_of(folder, kind, cu_seqlens=True), micro_batch_size=8) as loader:
        batch = next(iter(loader))
    positions, tiny = batch["position_ids"], values.Tiny()
    by_itself = values.apart(tiny, batch)
    assert torch.allclose(tiny(batch["input_ids"], positions), by_itself, atol=1e-5)
    assert torch.equal(batch["cu_seqlens"][:-1].long(), (positions.flatten() == 0).nonzero().flatten())
    tiny.documents = torch.zeros_like  # type: ignore[method-assign]
    assert (tiny(batch["input_ids"], positions) - by_itself).abs().max() > 0.1


@pytest.mark.parametrize("kind", [WINDOWS, PACKS], ids=["windows", "packs"])
def test_training_with_masks_weights_and_accumulation(folder: Path, kind: dict[str, Any]) -> None:
    """Steps of three micro batches, on two ranks whose gradients are averaged: with `total`, each token weighs 1."""
    config = config_of(folder, kind, loss_weight={"name": "weight", "missing": 1})
    loaders = [
        cl.make_dataloader(config, dp_rank=rank, dp_size=2, micro_batch_size=2, global_batch_size=12) for rank in (0, 1)
    ]
    samples = samples_of(loaders[0], kind, 48)
    hand, model = ByHand(SEQ_LEN, weighted=True), Tables(SEQ_LEN)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    batches = [iter(loader) for loader in loaders]
    for step in range(4):
        of_step = [next(rank) for _ in range(3) for rank in batches]
        total = torch.stack([batch["loss_mask"].sum() for batch in of_step]).sum()
        loss = torch.stack([cl.token_mean(with_weights(model, b), b, total / 2) / 2 for b in of_step]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wanted = hand.step(by_hand.batched(samples[12 * step : 12 * step + 12], 2), RATE)
        assert loss.item() == pytest.approx(wanted, rel=1e-9)


def test_evaluation_of_every_window_once(folder: Path) -> None:
    """order: sequential, in a Loader and in torch's DataLoader, with a last batch that is not full."""
    config = config_of(folder, WINDOWS, loss_weight={"name": "weight", "missing": 1})
    config["order"] = "sequential"
    for dataset in config["datasets"].values():
        del dataset["weight"]
    loader, data = cl.make_dataloader(config, micro_batch_size=7), cl.SampleDataset(config)
    samples = samples_of(loader, WINDOWS, len(data))
    assert len(data) % 7
    wanted = ByHand(SEQ_LEN, weighted=True).evaluate([samples])
    model = Tables(SEQ_LEN)
    for batches in (loader, DataLoader(data, batch_size=7, collate_fn=cl.collate_fn)):
        mean = cl.TokenMean()
        for batch in batches:
            mean.add(with_weights(model, batch), batch)
        assert mean.finish() == pytest.approx(wanted, rel=1e-9)
