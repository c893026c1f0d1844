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


class Named(torch.nn.Module):
    """Its forward names no loss mask: what the Trainer takes for unused columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), list[tuple[bool, float]]()

    def forward(self, input_ids: Any, labels: Any, twice: Any) -> dict[str, Any]:
        self.seen.append((self.training, float(twice)))
        return {"loss": self.layer(torch.ones(1)).sum(), "logits": input_ids}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from conceptloader.integrations.transformers_lm import ConceptTrainer

    folder = write_datasets(tmp_path_factory.mktemp("transformers"))
    shuffled = str(write_config(folder / "run.yaml", seq_len=16))
    sequential = {name: {"path": name} for name in ("code", "web")}
    in_order = str(write_config(folder / "valid.yaml", seq_len=16, order="sequential", datasets=sequential))
    arguments = transformers.TrainingArguments(str(folder / "out"), use_cpu=True, report_to=[], max_steps=1,
        disable_tqdm=True, save_strategy="no")  # fmt: skip

    def trainer(samples: int | None = None, ordered: bool = False, smoothing: float = 0, **options: Any) -> Any:
        evaluated = cl.SampleDataset(in_order if ordered else shuffled, samples)
        options = {"train_dataset": cl.SampleDataset(shuffled), "eval_dataset": evaluated, **options}
        settings = dataclasses.replace(arguments, label_smoothing_factor=smoothing)
        return ConceptTrainer(options.pop("model", None) or torch.nn.Linear(1, 1), settings, **options)

    return trainer


def test_evaluations_read_no_window_twice(make: Any, tmp_path: Path) -> None:
    refused = "793 samples in a shuffled order are 552 of web, which has 549: some windows would count twice"
    with pytest.raises(ConfigError, match=f"eval_dataset: {refused}"):
        make()
    with raises(ConfigError, "a run of 10000 samples", "order sequential has"):
        make(10_000, ordered=True)
    data = make(ordered=True).eval_dataset
    with raises(ConfigError, "eval_dataset", "a Subset"):
        make(eval_dataset={"one": data, "other": Subset(data, range(3))})
    trainer = make(50)  # less than an epoch of either
    assert len(trainer.get_eval_dataloader()) == 7
    whole = trainer.train_dataset
    for call in (trainer.evaluate, trainer.predict, lambda data: trainer.evaluate({"some": data})):
        with pytest.raises(ConfigError, match=refused):
            call(whole)


def test_a_data_collator_is_that_of_training_too(make: Any) -> None:
    from conceptloader.integrations.transformers_lm import collate

    class Twice(collate):
        def __call__(self, samples: Any) -> Any:
            batch = super().__call__(samples)
            assert torch.equal(samples[1]["loss_mask"], samples.batch["loss_mask"][1])
            return {"twice": 2 * samples.batch["loss_mask"].sum(), **{k: batch[k] for k in ("input_ids", "labels")}}

    model = Named()
    trainer = make(12, model=model, data_collator=Twice())
    trainer.train()
    trainer.evaluate()
    assert model.seen == [(True, 256.0), (False, 256.0), (False, 128.0)]
    with raises(ConfigError, "data_collator", "a function", "transformers_lm.collate or a"):
        make(12, data_collator=cl.collate_fn)
    with raises(ConfigError, "tensors", "found ['topic_ids'], but the data_collator has []"):
        make(12, data_collator=collate(), tensors=["topic_ids"])


def test_smoothing_that_leaves_out_targets(make: Any) -> None:
    model = Named()
    model.config = transformers.PretrainedConfig()
    with raises(ConfigError, "label_smoothing_factor", "0.1", "0"):
        make(12, model=model, smoothing=0.1)
