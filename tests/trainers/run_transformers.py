"""A run of Hugging Face's Trainer, for tests.ranks."""

import copy
import os

import torch
import torch._dynamo  # which optimizers import; here, once for all launches
import transformers
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import conceptloader as cl
from conceptloader.integrations.transformers_lm import ConceptTrainer, collate
from tests.trainers import values
from tests.trainers.ahead import Ahead

transformers.logging.set_verbosity_error()
EPOCH = 53  # of which 48 make whole steps


class Model(values.Tiny):
    """The weighted loss, over all targets of a step, as losses of transformers are."""

    model_inputs = ("loss_weight",)
    record = None

    def forward(
        self, input_ids, labels, shift_labels, position_ids, num_items_in_batch = None, sample_index = None,
        **more,
    ):  # fmt: skip
        if self.record is not None:
            self.record(sample_index, "train" if self.training else "val0")
        assert torch.equal(labels[:, 1:], shift_labels[:, :-1])
        logits = super().forward(input_ids, position_ids)
        losses = cross_entropy(logits.flatten(0, 1), shift_labels.flatten(), reduction="none")
        count = (shift_labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        weights = more["loss_weight"].flatten() if "loss_weight" in more else 1
        return {"loss": (losses * weights).sum() / count, "logits": logits}

    def by_hand(self, batch):
        return values.mean(super().forward(batch["input_ids"], batch["position_ids"]), batch)


class Saves(transformers.TrainerCallback):
    def __init__(self, launch):
        self.launch = launch

    def on_step_end(self, args, state, control, **_):
        control.should_save = state.global_step == self.launch.save_at
        control.should_training_stop = state.global_step >= self.launch.steps


class ReadingAhead(ConceptTrainer):
    def get_batch_samples(self, epoch_iterator, *args):
        if not hasattr(self, "_ahead") or self._ahead[0] is not epoch_iterator:
            self._ahead = (epoch_iterator, iter(Ahead(epoch_iterator)))
        return super().get_batch_samples(self._ahead[1], *args)


class Llama(transformers.LlamaForCausalLM):
    """Packs: documents do not see each other, which weights of 0.3 show, unlike a default initialisation."""

    model_inputs = ()

    def __init__(self):
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        weights = {"initializer_range": 0.3}
        super().__init__(transformers.LlamaConfig(vocab_size=256, num_key_value_heads=2, **shape, **weights))

    def by_hand(self, batch):
        logits = values.apart(lambda ids, places: self(input_ids=ids).logits, batch)
        return values.mean(logits, batch)


def settings(out, kind=transformers.TrainingArguments, **options):
    """Of losses that a loop by hand can have, too."""
    common = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1,
              "lr_scheduler_type": "constant", "max_grad_norm": 0, "learning_rate": values.RATE}  # fmt: skip
    return kind(str(out), **{**common, **options})


def arguments(launch, **options):
    sizes = {"per_device_train_batch_size": launch.micro, "gradient_accumulation_steps": launch.accumulate}
    return settings(launch.out, **{**sizes, **options})


def train_from(launch, trainer):
    """From the newest checkpoint, if the launch resumes."""
    saved = sorted(launch.path.glob("checkpoint-*"), key=os.path.getmtime) if launch.resume else []
    trainer.train(resume_from_checkpoint=str(saved[-1]) if saved else None)


def compare_values(launch):
    model = {"windows": Model, "packs": Llama}[launch.options["values"]]()
    fresh = copy.deepcopy(model)
    given = arguments(
        launch, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=values.eval_batch(launch),
        max_steps=launch.steps,
    )  # fmt: skip
    trainer = ConceptTrainer(
        model, given, train_dataset=cl.SampleDataset(launch.config), model_inputs=model.model_inputs,
        eval_dataset=cl.SampleDataset(launch.valid, values.HELD_OUT), callbacks=[Saves(launch)],
        optimizers=(torch.optim.SGD(model.parameters(), lr=values.RATE), None),
    )  # fmt: skip
    train_from(launch, trainer)
    found = [
        [line[name] for line in trainer.state.log_history if name in line and line["step"] > launch.first]
        for name in ("loss", "eval_loss")
    ]
    if trainer.args.process_index == 0:
        values.compare(launch, model, fresh, type(model).by_hand, found[0], found[1], False)


def train(launch):
    if "values" in launch.options:
        compare_values(launch)
        return
    options = dict(launch.options)
    epoch = options.pop("epoch_samples", EPOCH)
    wrapped, allow_changed = options.pop("wrapped", False), options.pop("allow_changed", ())
    evaluation = {"eval_strategy": "steps" if launch.valid else "no", "eval_steps": 2, "per_device_eval_batch_size": 4}
    given = arguments(launch, **{"max_steps": 20, **evaluation, **options})
    model = Model()
    kind = transformers.Trainer if launch.bare else ReadingAhead if launch.ahead else ConceptTrainer
    more = (
        {"data_collator": collate(["sample_index"])}
        if launch.bare
        else {"model_inputs": ["sample_index"], "allow_changed": allow_changed}
    )
    data = cl.SampleDataset(launch.config, epoch)
    trainer = kind(
        model, given, train_dataset=DataLoader(data) if wrapped else data, callbacks=[Saves(launch)],
        eval_dataset=cl.SampleDataset(launch.valid) if launch.valid else None, **more,
    )  # fmt: skip
    model.record = lambda samples, kind: launch.record(trainer.state.global_step, samples, kind)
    train_from(launch, trainer)
