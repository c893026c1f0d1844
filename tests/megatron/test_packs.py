"""Packs of documents of Megatron's own files, through its dataset: no document sees another."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
import yaml

from conceptloader.torch.loader import make_dataloader
from tests.megatron.stock import adopted, data_of, dataset_config

pytestmark = pytest.mark.usefixtures("one_process")
LENGTH = 29


def test_a_pack_is_a_sequence_for_each_document(tmp_path: Path) -> None:
    path, _ = adopted(tmp_path, "ab", order="sequential", packing={"bins": 4})
    plain = make_dataloader(
        {**yaml_of(path), "seq_len": LENGTH, "outputs": {"cu_seqlens": True}}, micro_batch_size=1
    )  # fmt: skip
    config = dataset_config(LENGTH, reset_position_ids=True, reset_attention_mask=True)
    data = data_of(path, config, [len(plain), 0, 0], split="1,0,0")
    dataset = data.datasets()[0]
    assert dataset is not None
    several = 0
    for sample, batch in zip(map(dataset.__getitem__, range(len(dataset))), plain, strict=True):
        for theirs, ours in (("tokens", "input_ids"), ("labels", "labels"), ("loss_mask", "loss_mask")):
            assert torch.equal(sample[theirs], batch[ours][0])
        assert torch.equal(sample["position_ids"], batch["position_ids"][0])
        borders = batch["cu_seqlens"].tolist()
        several += len(borders) > 3
        for first, end in pairwise(borders):
            allowed = ~sample["attention_mask"][0, first:end]
            assert torch.equal(allowed[:, first:end], torch.ones(end - first, end - first).tril().bool())
            assert not allowed[:, :first].any()
            assert not allowed[:, end:].any()
    assert several > 3


def yaml_of(path: Path | str) -> dict[str, object]:
    content: dict[str, object] = yaml.safe_load(Path(path).read_text())
    for entry in content["datasets"].values():  # type: ignore[attr-defined]
        entry["path"] = str(Path(path).parent / entry["path"])
    return content
