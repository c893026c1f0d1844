"""Runs over packs: what they refuse, and how much of them is empty."""

import pytest
import yaml

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from tests.raises import raises

SIZE = 32


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A dataset of three shards, of which the second one is excluded."""
    path = write_dataset(tmp_path_factory.mktemp("web") / "web", random_documents(150, mean_length=25), shards=3)
    _, first, end, _ = cl.open_dataset(path).shard_starts
    datasets, excluded = {"web": {"path": str(path)}}, {"dataset": "web", "tokens": [first, end]}
    packing = {"packing": {"bins": 8}, "order": "sequential"}
    return {"seq_len": SIZE, "datasets": datasets, "exclude": [excluded], **packing}


def test_what_has_no_meaning_with_packs(config):
    with raises(ConfigError, "outputs.shared_labels", "true with packing"):
        cl.make_dataloader({**config, "outputs": {"shared_labels": True}}, micro_batch_size=1)
    with raises(ConfigError, "outputs.loss_mask", "false, but dataset web has packs"):
        cl.make_dataloader({**config, "outputs": {"loss_mask": False}, "exclude": []}, micro_batch_size=1)
    with raises(ConfigError, "seq_len", "nothing"):
        cl.open_blend({**config, "seq_len": None})


def test_doctor_counts_the_packs_that_a_whole_shard_empties(config, tmp_path, capsys):
    """Those of documents beside the shard too: its table of documents, which says where they lie, is not opened."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    first, end = config["exclude"][0]["tokens"]
    blend = cl.open_blend(config)
    packs, tokens = blend.order.num_samples, blend.datasets["web"].num_tokens
    blocks = [(7 * SIZE * k, 7 * SIZE * (k + 1), 8 * k) for k in range(-(-packs // 8))]  # tokens, first pack
    closed = {b + k for a, z, b in blocks if a < end and first < z for k in range(8) if b + k < packs}
    assert len(closed) * 7 * SIZE > 8 * (end - first)
    main(["doctor", str(tmp_path / "run.yaml"), "--seconds", "0.05"])
    text = f"web: {end - first:,} of {tokens:,} tokens"
    assert f", and {len(closed)} of {packs} packs are empty" in capsys.readouterr().out.partition(text)[2]


def test_samples_in_which_nothing_is_learnt_are_counted(config, caplog):
    loader = cl.make_dataloader(config, micro_batch_size=2)
    empty = sum(int((~batch["loss_mask"].any(1)).sum()) for batch in loader)
    assert loader.samples_without_loss == empty > 10
    assert "10 samples so far have a loss mask that is all 0" in caplog.text
