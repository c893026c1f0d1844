"""Names of tensors that a trainer hands on: refused are those that no batch has, and weights not among them."""

from pathlib import Path
from typing import Any

import pytest
import torch

import conceptloader as cl
from conceptloader.errors import ConfigError
from conceptloader.testing import random_documents, write_dataset
from tests.corpora.for_megatron import write_config, write_datasets
from tests.raises import raises

REFUSED = r"outputs\.loss_weight: found weights, .* tensors does not name"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Configurations with weights, which are labels modulo 5, and without."""
    folder = write_datasets(tmp_path_factory.mktemp("weights"))
    return {
        weighted: str(write_config(folder / f"{weighted}.yaml", seq_len=16, outputs=outputs))
        for weighted, outputs in ((True, {"loss_weight": "weight"}), (False, {}))
    }


def test_of_transformers(paths: dict[bool, str], tmp_path: Path) -> None:
    """Of the training and of evaluations, before a step is made; by collate alone with the first batch."""
    transformers = pytest.importorskip("transformers")
    from conceptloader.integrations.transformers_lm import ConceptTrainer, collate

    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], max_steps=1)
    weighted, plain = (cl.SampleDataset(paths[which], 100) for which in (True, False))

    def trainer(**options: Any) -> Any:
        return ConceptTrainer(torch.nn.Linear(1, 1), arguments, **options)

    for datasets in (
        {"train_dataset": weighted},
        {"train_dataset": plain, "eval_dataset": weighted},
        {"train_dataset": plain, "eval_dataset": {"one": plain, "other": weighted}},
    ):
        with pytest.raises(ConfigError, match=REFUSED):
            trainer(**datasets)
    with pytest.raises(ConfigError, match=REFUSED):
        collate()(weighted.__getitems__([0, 1]))
    with raises(ConfigError, "tensors", "expected a list of names, found the string 'random'", fix="write ['ran"):
        trainer(train_dataset=plain, tensors="random")
    few = trainer(train_dataset=cl.SampleDataset(paths[False], 3))
    with pytest.raises(ConfigError, match=r"train_dataset: expected num_samples of at least one step, 8 .*, found 3"):
        few.get_train_dataloader()
    found = trainer(train_dataset=weighted, tensors=["loss_weight"])
    batch = next(iter(found.get_train_dataloader()))
    assert torch.equal(batch["loss_weight"], (batch["shift_labels"] % 5).float())


def test_names_that_no_batch_has(paths: dict[bool, str], tmp_path: Path) -> None:
    """Of the training and of evaluations, before a step is made; by collate alone with the first batch."""
    transformers = pytest.importorskip("transformers")
    from conceptloader.integrations.transformers_lm import ConceptTrainer, collate

    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], max_steps=1)
    weighted, plain = (cl.SampleDataset(paths[which], 100) for which in (True, False))
    with raises(ConfigError, "tensors", "unknown key of a batch 'loss_weigth'", fix="did you mean loss_weight?"):
        collate(["loss_weight", "loss_weigth"])(weighted.__getitems__([0, 1]))
    with pytest.raises(KeyError, match="loss_weigth"):  # samples one by one, whose layout nobody knows
        collate(["loss_weigth"])([weighted[0], weighted[1]])
    for datasets in ({"train_dataset": plain}, {"train_dataset": weighted, "eval_dataset": {"one": plain}}):
        with raises(ConfigError, "tensors", "unknown key of a batch 'loss_weight'", "labels, "):
            ConceptTrainer(torch.nn.Linear(1, 1), arguments, tensors=["loss_weight"], **datasets)


def test_documents_and_rows_of_olmo(paths: dict[bool, str], tmp_path: Path) -> None:
    """What its micro batches cannot be cut into is refused; where documents begin reaches the model, or is refused."""
    pytest.importorskip("olmo_core")
    from olmo_core.data.utils import get_cumulative_document_lengths, split_batch

    from conceptloader.integrations.olmo_lm import ConceptDataLoader

    folder = Path(paths[False]).parent

    def loader(tensors: tuple[str, ...] = (), **config: Any) -> Any:
        path = write_config(folder / "olmo.yaml", seq_len=16, **config)
        return ConceptDataLoader(
            str(path), global_batch_size=96, work_dir=str(tmp_path), tensors=tensors, fs_local_rank=0
        )

    ragged = {"concepts": {"topic": {"layout": "ragged"}}}
    for name in ("topic_values", "topic_offsets"):
        with pytest.raises(ConfigError, match=f"tensors: {name} has no row for each window"):
            loader((name,), **ragged)
    with pytest.raises(ConfigError, match=r"outputs\.position_ids: document has no effect here"):
        loader(outputs={"position_ids": "document"})
    made = loader(("position_ids",), outputs={"position_ids": "document", "cu_seqlens": True})
    made.reshuffle(1)
    for micro in split_batch(next(iter(made)), 2):
        begins = (micro["position_ids"].flatten() == 0).nonzero().flatten().tolist()
        assert get_cumulative_document_lengths(micro["doc_lens"]).tolist() == [*begins, 32]
        assert micro["max_doc_lens"] == micro["doc_lens"].amax(1).tolist()


def test_of_olmo(paths: dict[bool, str], tmp_path: Path) -> None:
    pytest.importorskip("olmo_core")
    from conceptloader.integrations.olmo_lm import ConceptDataLoaderConfig

    options = {"config": paths[True], "global_batch_size": 64, "work_dir": str(tmp_path)}
    with pytest.raises(ConfigError, match=REFUSED):
        ConceptDataLoaderConfig(**options).build()
    loader = ConceptDataLoaderConfig(**options, tensors=("loss_weight",)).build()
    loader.reshuffle(1)
    batch = next(iter(loader))
    assert torch.equal(batch["loss_weight"], (batch["labels"] % 5).float())


def test_a_batch_without_labels_is_no_nan_in_olmo(tmp_path: Path) -> None:
    """OLMo-core divides by the labels of a rank's batch; where there are some, its loss is the mean over them."""
    pytest.importorskip("olmo_core")
    from olmo_core.nn.transformer import TransformerConfig
    from olmo_core.optim import AdamWConfig
    from olmo_core.train.train_module.transformer import TransformerTrainModuleConfig

    from conceptloader.integrations.olmo_lm import ConceptDataLoader

    data = write_dataset(tmp_path / "data", random_documents(20, seed=1))
    model = TransformerConfig.llama_like(d_model=32, vocab_size=1000, n_layers=1, n_heads=2).build(init_device="cpu")
    module = TransformerTrainModuleConfig(rank_microbatch_size=32, max_sequence_length=16, optim=AdamWConfig()).build(
        model, device=torch.device("cpu")
    )
    metrics: dict[str, Any] = {}
    module.record_metric = lambda name, value, *_, **__: metrics.update({name: float(value)})
    module.record_ce_loss = lambda value, *_, **__: metrics.update({"loss": float(value)})

    def loss(stop: int) -> float:
        """Of the first four windows, of which the tokens from 0 to `stop` are quarantined."""
        config = {"seq_len": 16, "order": "sequential", "datasets": {"data": {"path": data}}}
        config["quarantine"] = [{"dataset": "data", "tokens": [0, stop]}]
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
