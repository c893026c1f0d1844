"""Arguments of ConceptTrainer: what is applied, and what is refused before a step is made."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

import conceptloader as cl
from conceptloader.errors import ConfigError
from tests.corpora.for_megatron import write_config, write_datasets
from tests.raises import raises

transformers = pytest.importorskip("transformers")
from conceptloader.integrations.transformers_lm import ConceptTrainer, collate  # noqa: E402


class Named(torch.nn.Module):
    """Its forward names no loss mask: what the Trainer takes for unused columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), list[tuple[bool, float]]()

    def forward(self, input_ids: Any, labels: Any, twice: Any) -> dict[str, Any]:
        self.seen.append((self.training, float(twice)))
        return {"loss": self.layer(torch.ones(1)).sum(), "logits": input_ids}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """data(kind, samples): plain, in order, or weighted, with weights that are labels modulo 5."""
    folder = write_datasets(tmp_path_factory.mktemp("transformers"))
    sequential = {"order": "sequential", "datasets": {name: {"path": name} for name in ("code", "web")}}
    records = {"tracks": {"topic": {"layout": "records"}}}
    kinds = {
        "plain": {},
        "records": records,
        "indexed": {"outputs": {"sample_index": True}},
        "in order": sequential,
        "weighted": {"outputs": {"loss_weight": "weight"}},
    }
    paths = {kind: write_config(folder / f"{kind}.yaml", seq_len=16, **more) for kind, more in kinds.items()}
    return lambda kind="plain", samples=None: cl.SampleDataset(str(paths[kind]), samples)


@pytest.fixture
def make(data: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    arguments = transformers.TrainingArguments(str(tmp_path_factory.mktemp("out")), use_cpu=True, report_to=[],
        max_steps=1, disable_tqdm=True, save_strategy="no")  # fmt: skip

    def trainer(model: Any = None, smoothing: float = 0, **options: Any) -> Any:
        settings = dataclasses.replace(arguments, label_smoothing_factor=smoothing)
        return ConceptTrainer(model or torch.nn.Linear(1, 1), settings, **{"train_dataset": data(), **options})

    return trainer


def test_evaluations_read_no_window_twice(make: Any, data: Any) -> None:
    refused = "793 samples in a shuffled order are 552 of web, which has 549"
    with raises(ConfigError, "eval_dataset", refused):
        make(eval_dataset=data())
    with raises(ConfigError, "a run of 10000 samples", "order sequential has"):
        make(eval_dataset=data("in order", 10_000))
    with raises(ConfigError, "eval_dataset", "a Subset"):
        make(eval_dataset={"one": data("in order"), "other": Subset(data("in order"), range(3))})
    trainer = make(eval_dataset=data(samples=50))  # less than an epoch of either
    assert len(trainer.get_eval_dataloader()) == 7
    for call in (trainer.evaluate, trainer.predict, lambda data: trainer.evaluate({"some": data})):
        with raises(ConfigError, found=refused):
            call(data())


def test_a_data_collator_is_that_of_training_too(make: Any, data: Any) -> None:
    class Twice(collate):
        def __call__(self, samples: Any) -> Any:
            batch = super().__call__(samples)
            assert torch.equal(samples[1]["loss_mask"], samples.batch["loss_mask"][1])
            return {"twice": 2 * samples.batch["loss_mask"].sum(), **{k: batch[k] for k in ("input_ids", "labels")}}

    model = Named()
    trainer = make(model, data_collator=Twice(), eval_dataset=data(samples=12))
    trainer.train()
    trainer.evaluate()
    assert model.seen == [(True, 256.0), (False, 256.0), (False, 128.0)]
    with raises(ConfigError, "data_collator", "a function", "transformers_lm.collate or a"):
        make(data_collator=cl.collate_fn)
    with raises(ConfigError, "model_inputs", "found ['topic_ids'], but the data_collator has []"):
        make(data_collator=collate(), model_inputs=["topic_ids"])


def test_smoothing_that_leaves_out_targets(make: Any) -> None:
    model = Named()
    model.config = transformers.PretrainedConfig()
    with raises(ConfigError, "label_smoothing_factor", "0.1", "0"):
        make(model, smoothing=0.1)


@pytest.mark.parametrize("at", [0, 2])
def test_a_batch_size_found_by_trial(data: Any, tmp_path: Path, at: int) -> None:
    """The Trainer begins again with less, where memory ran out: nothing that was trained is trained twice."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen, self.full = torch.nn.Linear(1, 1), list[int](), True

        def forward(self, sample_index: Any, **_: Any) -> dict[str, Any]:
            if self.full and len(self.seen) == at * 8:
                self.full = False
                raise RuntimeError("CUDA out of memory.")
            self.seen += sample_index.tolist()
            return {"loss": self.layer(torch.ones(1)).sum()}

    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], max_steps=4,
        per_device_train_batch_size=8, disable_tqdm=True, save_strategy="no", auto_find_batch_size=True)  # fmt: skip
    model = Model()
    trainer = ConceptTrainer(model, arguments, train_dataset=data("indexed"), model_inputs=["sample_index"])
    if at:
        with raises(ConfigError, "auto_find_batch_size", "16 samples", fix="per_device_train_batch_size"):
            trainer.train()
        assert model.seen == list(range(16))
        model.seen.clear()
    trainer.train()  # a run of its own
    assert model.seen == list(range(len(model.seen)))
    assert len(model.seen) >= 4 * 7


def test_names_of_tensors(make: Any, data: Any) -> None:
    """Refused are those that no batch has, and weights not among them, in training and in evaluations, before a step
    is made; by collate alone with the first batch."""
    weighted, plain = data("weighted", 100), data("plain", 100)
    for datasets in (
        {"train_dataset": weighted},
        {"train_dataset": plain, "eval_dataset": weighted},
        {"train_dataset": plain, "eval_dataset": {"one": plain, "other": weighted}},
    ):
        with raises(ConfigError, "outputs.loss_weight", "model_inputs does not name"):
            make(**datasets)
    for datasets in ({"train_dataset": plain}, {"train_dataset": weighted, "eval_dataset": {"one": plain}}):
        with raises(ConfigError, "model_inputs", "unknown key of a batch 'loss_weight'", "labels, "):
            make(model_inputs=["loss_weight"], **datasets)
    with raises(ConfigError, "model_inputs", "topic_records", "tensors", fix="layout"):
        make(model_inputs=["topic_records"], train_dataset=data("records"))
    with raises(ConfigError, "outputs.loss_weight", "model_inputs does not name"):
        collate()(weighted.__getitems__([0, 1]))
    with raises(ConfigError, "model_inputs", "unknown key of a batch 'loss_weigth'", fix="did you mean loss_weight?"):
        collate(["loss_weight", "loss_weigth"])(weighted.__getitems__([0, 1]))
    with pytest.raises(KeyError, match="loss_weigth"):  # samples one by one, whose layout nobody knows
        collate(["loss_weigth"])([weighted[0], weighted[1]])
    with raises(ConfigError, "model_inputs", "expected a list of names, found the string 'random'", fix="write ['ran"):
        make(train_dataset=plain, model_inputs="random")
    with raises(ConfigError, "train_dataset", "num_samples of at least one step, 8 samples, found 3"):
        make(train_dataset=data(samples=3)).get_train_dataloader()
    batch = next(iter(make(train_dataset=weighted, model_inputs=["loss_weight"]).get_train_dataloader()))
    assert torch.equal(batch["loss_weight"], (batch["shift_labels"] % 5).float())
