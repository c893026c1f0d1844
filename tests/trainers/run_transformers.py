"""A run of Hugging Face's Trainer, for zygote.py."""

import os
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.integrations.transformers_lm import ConceptTrainer, collate
from tests.trainers.ahead import Ahead
from tests.trainers.zygote import Launch

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


def train(launch: Launch) -> None:
    options = dict(launch.options)
    epoch = options.pop("epoch_samples", EPOCH)
    wrapped = options.pop("wrapped", False)
    arguments = transformers.TrainingArguments(
        launch.out, use_cpu=True, per_device_train_batch_size=launch.micro, report_to=[], disable_tqdm=True,
        gradient_accumulation_steps=launch.accumulate, save_strategy="no", save_only_model=False,
        eval_strategy="steps" if launch.valid else "no", eval_steps=2, per_device_eval_batch_size=4,
        **{"max_steps": 20, **options},
    )  # fmt: skip
    model = Model()
    kind = transformers.Trainer if launch.bare else ReadingAhead if launch.ahead else ConceptTrainer
    more: dict[str, Any] = (
        {"data_collator": collate(["sample_index"])} if launch.bare else {"tensors": ["sample_index"]}
    )
    data: Any = cl.SampleDataset(launch.config, epoch)
    trainer = kind(
        model, arguments, train_dataset=DataLoader(data) if wrapped else data, callbacks=[Saves(launch)],
        eval_dataset=cl.SampleDataset(launch.valid) if launch.valid else None, **more,
    )  # fmt: skip
    model.record = lambda samples, kind: launch.record(trainer.state.global_step, samples, kind)
    saved = sorted(launch.path.glob("checkpoint-*"), key=os.path.getmtime) if launch.resume else []
    trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)
