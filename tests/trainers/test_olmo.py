"""Arguments of OLMo-core's loader, and its batches: what is refused, what its model gets."""

import json
from itertools import chain

import pytest
import torch

from conceptloader.cli import main
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.for_megatron import write_config, write_datasets
from tests.raises import raises

pytest.importorskip("olmo_core")


def test_documents_and_rows_of_olmo(tmp_path):
    """What its micro batches cannot be cut into is refused; where documents begin reaches the model."""
    from olmo_core.data.utils import get_cumulative_document_lengths, split_batch

    from conceptloader.integrations.olmo_lm import ConceptDataLoader

    folder = write_datasets(tmp_path)

    def loader(model_inputs=(), **config):
        path = write_config(folder / "olmo.yaml", seq_len=16, **config)
        return ConceptDataLoader(
            str(path), global_batch_size=96, work_dir=str(tmp_path), model_inputs=model_inputs, fs_local_rank=0
        )

    for name in ("labels", "doc_lens"):
        with raises(ConfigError, "model_inputs", f"{name}, which OLMo-core gives the model itself"):
            loader((name,))
    packs = {"packing": {"bins": 4}}
    for config in ({"outputs": {"position_ids": "document"}}, packs):
        made = loader(("position_ids",), **config)
        made.reshuffle(1)
        batch = next(iter(made))
        assert (batch["position_ids"] == 0).sum() > len(batch["position_ids"])
        for micro in split_batch(batch, 2):
            begins = (micro["position_ids"].flatten() == 0).nonzero().flatten().tolist()
            assert get_cumulative_document_lengths(micro["doc_lens"]).tolist() == [*begins, 32]
            assert micro["max_doc_lens"] == micro["doc_lens"].amax(1).tolist()
    assert "doc_lens" not in loader(**packs, outputs={"position_ids": "off"}).get_mock_batch()


def test_a_batch_size_that_changes_is_in_the_one_account_of_the_run(tmp_path, capsys):
    """Its log, its steps and what its mixture has learned. A step may be observed after the change."""
    from conceptloader.integrations.olmo_lm import ConceptDataLoaderConfig

    path = write_config(write_datasets(tmp_path) / "run.yaml", seq_len=16, mixing={"odm": {}})
    log, options = str(tmp_path / "checkpoints"), {"config": str(path), "work_dir": str(tmp_path)}
    states, trained = [], []
    for launch in range(2):
        loader = ConceptDataLoaderConfig(**options, global_batch_size=64 * (1 + launch), run_log=log).build()
        if states:
            loader.load_state_dict(states[-1])
        loader.reshuffle(1)
        for number, batch in enumerate(loader):
            trained.append(batch["index"].tolist())
            if number == 1 and not launch:
                loader.global_batch_size *= 2
            loader.loader.observe({"code": 2.0, "web": 1.0 + number})
            assert loader.loader.steps == loader.loader.mixing.steps == len(trained)
            if number == 3:
                break
        states.append(loader.state_dict())
        loader.loader.close()
    assert [len(samples) for samples in trained] == [4, 4, 8, 8, 8, 8, 8, 8]
    assert [*chain(*trained)] == list(range(56))
    for step, samples in enumerate(trained):
        capsys.readouterr()
        assert main(["trace", "--run-log", log, "--step", str(step), "--json"]) == 0
        assert [one["sample"] for one in json.loads(capsys.readouterr().out)["samples"]] == samples


def test_a_batch_without_labels_is_no_nan_in_olmo(tmp_path):
    """OLMo-core divides by the labels of a rank's batch; where there are some, its loss is the mean over them."""
    from olmo_core.nn.transformer import TransformerConfig
    from olmo_core.optim import AdamWConfig
    from olmo_core.train.train_module.transformer import TransformerTrainModuleConfig

    from conceptloader.integrations.olmo_lm import ConceptDataLoader

    data = write_dataset(tmp_path / "data", random_documents(20, seed=1))
    model = TransformerConfig.llama_like(d_model=32, vocab_size=1000, n_layers=1, n_heads=2).build(init_device="cpu")
    module = TransformerTrainModuleConfig(rank_microbatch_size=32, max_sequence_length=16, optim=AdamWConfig()).build(
        model, device=torch.device("cpu")
    )
    metrics = {}
    module.record_metric = lambda name, value, *_, **__: metrics.update({name: float(value)})
    module.record_ce_loss = lambda value, *_, **__: metrics.update({"loss": float(value)})

    def loss(stop):
        """Of the first four windows, of which the tokens from 0 to `stop` are quarantined."""
        config = {"seq_len": 16, "order": "sequential", "datasets": {"data": {"path": data}}}
        config["exclude"] = [{"dataset": "data", "tokens": [0, stop]}]
        loader = ConceptDataLoader(config, global_batch_size=64, work_dir=str(tmp_path), fs_local_rank=0)
        loader.reshuffle(1)
        batch = next(iter(loader))
        labelled = (batch["labels"] != -100).any(1)
        assert labelled.tolist() == [row >= stop // 16 for row in range(4)]
        module.train_batch(dict(batch))
        assert all(torch.isfinite(value.grad).all() for value in model.parameters())
        return metrics["loss"]

    assert loss(4 * 16 + 1) == 0
    assert loss(2 * 16) > 5, "the mean of the labels, not of all windows"
