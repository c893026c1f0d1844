"""A run of Hugging Face's Trainer, for tests.ranks."""

import copy
import os
from typing import Any

import torch
import torch._dynamo  # which optimizers import; here, once for all launches
import transformers
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.integrations.transformers_lm import ConceptTrainer, collate
from tests.ranks.launch import Launch
from tests.trainers import values
from tests.trainers.ahead import Ahead

transformers.logging.set_verbosity_error()
EPOCH = 53  # of which 48 make whole steps


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000))
        self.record: Any = None

    def forward(self, input_ids: Any, labels: Any, shift_labels: Any, sample_index: Any, **_: Any) -> dict[str, Any]:
        self.record(sample_index, "train" if self.training else "val0")
        assert torch.equal(labels[:, 1:], shift_labels[:, :-1])
        assert torch.equal(labels[:, 1:], input_ids[:, 1:])
        logits = self.layers(input_ids)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), shift_labels.flatten()), "logits": logits}


class Saves(transformers.TrainerCallback):
    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = state.global_step == self.launch.save_at
        control.should_training_stop = state.global_step >= self.launch.steps


class ReadingAhead(ConceptTrainer):
    def get_batch_samples(self, epoch_iterator: Any, *args: Any) -> Any:
        if not hasattr(self, "_ahead") or self._ahead[0] is not epoch_iterator:
            self._ahead = (epoch_iterator, iter(Ahead(epoch_iterator)))
        return super().get_batch_samples(self._ahead[1], *args)


class Weighted(values.Tiny):
    """Windows: the weighted loss, over all targets of a step, as losses of transformers are."""

    model_inputs = ("loss_weight",)

    def forward(  # type: ignore[override]
        self, input_ids: Any, labels: Any, shift_labels: Any, position_ids: Any, num_items_in_batch: Any = None,
        **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        assert torch.equal(labels[:, 1:], shift_labels[:, :-1])
        logits = super().forward(input_ids, position_ids)
        losses = cross_entropy(logits.flatten(0, 1), shift_labels.flatten(), reduction="none")
        count = (shift_labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": (losses * more["loss_weight"].flatten()).sum() / count}

    def by_hand(self, batch: dict[str, Any]) -> torch.Tensor:
        logits = super().forward(batch["input_ids"], batch["position_ids"])
        return values.mean(logits, batch)


class Llama(transformers.LlamaForCausalLM):
    """Packs: documents do not see each other, which weights of 0.3 show, unlike a default initialisation."""

    model_inputs = ()

    def __init__(self) -> None:
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        weights = {"initializer_range": 0.3}
        super().__init__(transformers.LlamaConfig(vocab_size=256, num_key_value_heads=2, **shape, **weights))

    def by_hand(self, batch: dict[str, Any]) -> torch.Tensor:
        logits = values.apart(lambda ids, places: self(input_ids=ids).logits, batch)
        return values.mean(logits, batch)


class SavesAt(transformers.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_save = state.global_step == self.step


def compare_values(launch: Launch) -> None:
    model: Any = {"windows": Weighted, "packs": Llama}[launch.options["values"]]()
    fresh = copy.deepcopy(model)
    arguments = transformers.TrainingArguments(
        launch.out, use_cpu=True, per_device_train_batch_size=launch.micro, report_to=[], disable_tqdm=True,
        gradient_accumulation_steps=launch.accumulate, save_strategy="no", learning_rate=values.RATE, logging_steps=1,
        eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=values.eval_batch(launch), max_grad_norm=0,
        lr_scheduler_type="constant", max_steps=launch.steps,
    )  # fmt: skip
    trainer = ConceptTrainer(
        model, arguments, train_dataset=cl.SampleDataset(launch.config), model_inputs=model.model_inputs,
        eval_dataset=cl.SampleDataset(launch.valid, values.HELD_OUT), callbacks=[SavesAt(launch.save_at)],
        optimizers=(torch.optim.SGD(model.parameters(), lr=values.RATE), None),
    )  # fmt: skip
    saved = sorted(launch.path.glob("checkpoint-*"), key=os.path.getmtime) if launch.resume else []
    trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)
    found = [
        [line[name] for line in trainer.state.log_history if name in line and line["step"] > launch.first]
        for name in ("loss", "eval_loss")
    ]
    if trainer.args.process_index == 0:
        values.compare(launch, model, fresh, type(model).by_hand, found[0], found[1], False)


def train(launch: Launch) -> None:
    options = dict(launch.options)
    epoch = options.pop("epoch_samples", EPOCH)
    wrapped, allow_changed = options.pop("wrapped", False), options.pop("allow_changed", ())
    arguments = transformers.TrainingArguments(
        launch.out, use_cpu=True, per_device_train_batch_size=launch.micro, report_to=[], disable_tqdm=True,
        gradient_accumulation_steps=launch.accumulate, save_strategy="no", save_only_model=False,
        eval_strategy="steps" if launch.valid else "no", eval_steps=2, per_device_eval_batch_size=4,
        **{"max_steps": 20, **options},
    )  # fmt: skip
    model = Model()
    kind = transformers.Trainer if launch.bare else ReadingAhead if launch.ahead else ConceptTrainer
    more: dict[str, Any] = (
        {"data_collator": collate(["sample_index"])}
        if launch.bare
        else {"model_inputs": ["sample_index"], "allow_changed": allow_changed}
    )
    data: Any = cl.SampleDataset(launch.config, epoch)
    trainer = kind(
        model, arguments, train_dataset=DataLoader(data) if wrapped else data, callbacks=[Saves(launch)],
        eval_dataset=cl.SampleDataset(launch.valid) if launch.valid else None, **more,
    )  # fmt: skip
    model.record = lambda samples, kind: launch.record(trainer.state.global_step, samples, kind)
    saved = sorted(launch.path.glob("checkpoint-*"), key=os.path.getmtime) if launch.resume else []
    trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)
