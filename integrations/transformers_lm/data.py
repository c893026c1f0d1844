"""A Trainer of Hugging Face that reads conceptloader's order, and keeps its state in trainer_state.json.

The Trainer counts steps; what they took is steps x global batch. It would shuffle the samples again, replay epochs from
their number alone, and skip batches by reading them: here the loader stands where the checkpoint says.
"""

import copy
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.functional import cross_entropy, pad

from conceptloader.base.checks import as_names
from conceptloader.base.packages import imported
from conceptloader.errors import ConfigError
from conceptloader.loader.batch.open import batch_layout
from conceptloader.loader.torch.collate import Rows, collate_fn
from conceptloader.loader.torch.dataset import SampleDataset
from conceptloader.loader.torch.trained import (
    IGNORED,
    POSITION,
    TrainedLoader,
    check_each_once,
    check_tensors,
    trained_labels,
)

with imported("transformers_lm: transformers", "pip install 'transformers[torch]'", "transformers"):
    import transformers
    from transformers.trainer_callback import ExportableState

    from .documents import Documents

logger = logging.getLogger(__name__)

_LEAF = "loader"
# Arguments about data that would have no effect, or a wrong one: the values that are right, and what to do. Of all
# others, transformers' own code does what they say: an evaluation has workers, drop_last and pinned memory of its own.
_ARGUMENTS = {
    "train_sampling_strategy": (("random", "sequential"), "the configuration decides the order"),
    "data_seed": ((None,), "set seed in the configuration"),
    "accelerator_config.split_batches": ((False,), "each rank reads its own batches"),
    "accelerator_config.dispatch_batches": ((None, False), "each rank reads its own batches"),
    "include_num_input_tokens_seen": (("no", "all"), "batches have no attention_mask that says what is padding"),
    "dataloader_persistent_workers": ((False,), "the Trainer would read the first eval_dataset in place of later ones"),
}


def check_arguments(args: Any, allowed: Mapping[str, tuple[tuple[Any, ...], str]], kind: str) -> None:
    """Raise ConfigError for a value of `args`, an object named `kind`, that is not among those allowed."""
    values = {**vars(args), **{f"accelerator_config.{name}": v for name, v in vars(args.accelerator_config).items()}}
    for name, (known, fix) in allowed.items():
        if name in values and values[name] not in known:
            raise ConfigError(f"{kind}.{name}", repr(values[name]), " or ".join(map(repr, known)), fix)


def for_model(batch: Mapping[str, Any], model_inputs: Sequence[str] = ()) -> dict[str, Any]:
    """The keywords of a causal language model, and `model_inputs` of the batch under their names.

    `shift_labels` belong to the token before, as the batch's labels do; transformers' losses take them as they are.
    `labels` belong to the token itself, for models that shift by themselves.
    """
    targets = trained_labels(batch)
    labels = targets.roll(1, dims=-1)
    labels[:, 0] = IGNORED
    keys = ["input_ids", *({"position_ids"} & batch.keys()), *model_inputs]
    return {**{name: batch[name] for name in keys}, "labels": labels, "shift_labels": targets}


class collate:
    """The data_collator, of training and evaluation: samples of a SampleDataset to what `for_model` gives.

    Derive from it to change what the model gets: `samples.batch` in `__call__` has all tensors of the batch.
    """

    def __init__(self, model_inputs: Sequence[str] = ()) -> None:
        self.model_inputs = as_names(model_inputs, "model_inputs")

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if isinstance(samples, Rows):
            check_tensors(self.model_inputs, samples.layout, _Loader.entry)
        return for_model(collate_fn(samples), self.model_inputs)


class _Loader(TrainedLoader):
    entry = replace(
        TrainedLoader.entry,
        name="ConceptTrainer",
        keys=TrainedLoader.entry.keys | {"labels", "shift_labels"},
    )
    tracked: dict[str, float] | None = None  # of the last step, for the Trainer's next log

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unseen: deque[dict[str, torch.Tensor]] = deque()  # of batches that the model has not seen: their samples

    @property
    def trained_here(self) -> int:
        """Samples over all processes since this launch began."""
        return self.consumed_samples - self.run.began

    def saw(self, outputs: Any, targets: torch.Tensor) -> None:
        """What the model's forward gave for the next batch: its losses, by sample to spare memory."""
        known = outputs if isinstance(outputs, Mapping) else {}
        if known.get("log_probs") is not None:  # of the targets, from TRL's fused head
            losses = -known["log_probs"].detach().float()
        elif known.get("logits") is None:
            raise ConfigError(
                "losses",
                "a model that returns no logits",
                "those of training",
                "turn off a fused loss, such as by use_liger_kernel=False",
            )
        else:
            pairs = zip(known["logits"].detach(), targets, strict=True)
            losses = torch.stack([cross_entropy(a.float(), b, reduction="none") for a, b in pairs])
        self.losses.add(losses, {**self.unseen.popleft(), "loss_mask": targets != IGNORED})

    def track(self, step: int, values: dict[str, float]) -> None:
        self.tracked = values


class _Batches:
    """What the Trainer iterates over: the loader, with batches for the model."""

    def __init__(self, loader: _Loader, to_model: collate) -> None:
        self.loader, self.to_model = loader, to_model

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        layout = batch_layout(self.loader.blend)
        self.loader.unseen.clear()
        for batch in self.loader:
            del batch[POSITION]  # which no sample has
            if self.loader.run.takes_losses:
                self.loader.unseen.append(
                    {name: batch[name] for name in ("dataset_id", "sample_index") if name in batch}
                )
            yield self.to_model(Rows(layout, batch))


@dataclass
class _Evaluated:
    """An evaluation of so many samples: sums over this process of losses and of labels, in so many batches."""

    samples: int
    sums: torch.Tensor
    batches: int = 0
    count: int = 0  # of the batch


class ConceptTrainer(transformers.Trainer):
    """A Trainer whose train_dataset is a conceptloader.SampleDataset; its length, rounded down to steps, is an epoch.

    Samples follow each other as the configuration orders them, through all epochs; nothing is shuffled again. Resuming
    takes any number of processes, as long as per_device_train_batch_size x gradient_accumulation_steps x processes is
    what it was. eval_dataset is one SampleDataset or a dict of them, with order sequential.

    Args:
        model_inputs: Further tensors of a batch that the model's forward gets by name. data_collator: a `collate`, or a
            class derived from it; by default collate(model_inputs). allow_changed: Names of changes of consumed samples
            that a resume accepts.

    Raises:
        ConfigError: For arguments that would change the batches.
        ResumeError: For a checkpoint of other data.
    """

    def __init__(
        self, *args: Any, model_inputs: Sequence[str] = (), allow_changed: Collection[str] = (), **kwargs: Any
    ) -> None:
        if len(args) < 3 and kwargs.get("data_collator") is None:
            kwargs["data_collator"] = collate(model_inputs)
        super().__init__(*args, **kwargs)
        if not isinstance(self.data_collator, collate):
            raise ConfigError(
                "data_collator",
                f"a {type(self.data_collator).__name__}",
                "transformers_lm.collate or a class derived from it: the labels of a sample are shifted and have no "
                "mask yet, so that a model would train on other targets",
                "pass data_collator=transformers_lm.collate or a class derived from it, or omit data_collator",
            )
        if model_inputs and as_names(model_inputs, "model_inputs") != self.data_collator.model_inputs:
            raise ConfigError(
                "model_inputs",
                f"{list(model_inputs)}, but the data_collator has {list(self.data_collator.model_inputs)}",
                "the same in both",
                "pass model_inputs to the data_collator only",
            )
        if self.train_dataset is not None:
            self._check_dataset(self.train_dataset, "train_dataset")
        evaluated = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        for dataset in evaluated.values():
            if dataset is not None:
                self._check_evaluation(dataset, "eval_dataset")
        check_arguments(self.args, _ARGUMENTS, "TrainingArguments")
        if self.args.dataloader_num_workers and self.train_dataset is not None and self.is_world_process_zero():
            logger.warning("dataloader_num_workers: no effect in training, which reads in loader.num_threads threads")
        self._targets: torch.Tensor | None = None  # of the batch that the model has
        for name, call in (("label_smoother", self._smooth), ("compute_loss_func", self._call)):
            if getattr(self, name) is not None:
                setattr(self, name, partial(call, getattr(self, name)))
        whole = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        if self.get_total_train_batch_size(self.args) != whole:
            raise ConfigError(
                "ConceptTrainer",
                f"{self.args.world_size} processes, of which some read the same samples (tensor, context or "
                "sequence parallelism)",
                "processes with samples of their own",
                "set tensor, context and sequence parallel sizes to 1: ConceptTrainer assigns samples to all processes",
            )
        self.args.ignore_data_skip = True  # the loader stands there already
        # The Trainer would drop what the model's forward does not name before data_collator sees it: the loss mask.
        self.args.remove_unused_columns = False
        self._loader: _Loader | None = None
        self._evaluated: _Evaluated | None = None
        self._documents = Documents(self.model, self.args.n_gpu)
        self._allow_changed = allow_changed
        self.add_callback(Progress())

    def _check_dataset(self, dataset: Any, name: str) -> None:
        if not isinstance(dataset, SampleDataset):
            raise ConfigError(
                name,
                f"a {type(dataset).__name__}",
                "a conceptloader.SampleDataset, without a sampler or a DataLoader around it",
                f"pass the SampleDataset itself as {name}=",
            )
        check_tensors(self.data_collator.model_inputs, batch_layout(dataset.blend), _Loader.entry)

    def _check_evaluation(self, dataset: Any, name: str) -> None:
        """Its mean is over each window once, or over fewer."""
        self._check_dataset(dataset, name)
        check_each_once(dataset.blend, len(dataset), name)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The Trainer's own, of a SampleDataset that reads no window twice."""
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        if chosen is not None:
            self._check_evaluation(self.eval_dataset[chosen] if isinstance(chosen, str) else chosen, "eval_dataset")
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The Trainer's own, of a SampleDataset that reads no window twice."""
        self._check_evaluation(test_dataset, "test_dataset")
        return super().get_test_dataloader(test_dataset)

    def set_weights(self, weights: Mapping[str, float], at: int | None = None) -> int:
        """Draw datasets in other proportions while training; see Loader.set_weights."""
        if self._loader is None:
            raise ConfigError(
                "set_weights", "no training", "a training that has begun", "call set_weights from a TrainerCallback"
            )
        return self._loader.set_weights(weights, at)

    def _prepare_inputs(self, inputs: Any) -> Any:
        # Before they are on the GPU, for whose answer nothing has to wait then.
        prepared = super()._prepare_inputs(self._documents.inputs(inputs))
        self._targets = prepared.get("shift_labels")
        return prepared

    # A loss that shifts labels by itself drops the target of the last logit of each row.

    def _smooth(self, smoother: Any, outputs: Any, labels: Any, shift_labels: bool = False, **options: Any) -> Any:
        if self._targets is None:
            return smoother(outputs, labels, shift_labels, **options)
        return smoother(outputs, self._targets, **options)

    def _call(self, compute_loss_func: Any, outputs: Any, labels: Any, **options: Any) -> Any:
        if self._targets is not None:
            if not isinstance(outputs, Mapping) or outputs.get("logits") is None:
                raise ConfigError(
                    "compute_loss_func",
                    "a model that returns no logits",
                    "logits",
                    "turn off a fused loss, such as by use_liger_kernel=False",
                )
            outputs = copy.copy(outputs)  # with a logit more at the end, and a label more at the start
            outputs["logits"], labels = pad(outputs["logits"], (0, 0, 0, 1)), pad(self._targets, (1, 0), value=IGNORED)
        return compute_loss_func(outputs, labels, **options)

    def compute_loss_context_manager(self) -> Any:
        """The Trainer's own, around each forward of training and evaluation, in which no document sees another."""
        stack = super().compute_loss_context_manager()
        stack.enter_context(self._documents.watched())
        return stack

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        """The Trainer's own; where the configuration asks for losses, those of each label are computed as well."""
        if self._loader is None or not self._loader.run.takes_losses or not model.training:
            return super().compute_loss(model, inputs, return_outputs, **kwargs)
        targets, outputs = inputs["shift_labels"], list[Any]()
        # Of the forward that is trained: to return outputs, TRL makes another one.
        with model.register_forward_hook(lambda *call: outputs.append(call[-1])):
            found = super().compute_loss(model, inputs, return_outputs, **kwargs)
        self._loader.saw(outputs[0], targets)
        return found

    # An evaluation's loss is the mean over all labels that count: sums over counts. The Trainer's own is a mean of the
    # means of batches, in the last of which the first samples stand again where processes have fewer.

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """The Trainer's own, whose loss is the mean over all labels that count, of all batches and processes."""
        self._evaluated = _Evaluated(len(dataloader.dataset), torch.zeros(2, dtype=torch.float64))
        try:
            found = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
            sums = self.accelerator.reduce(self._evaluated.sums.float().to(self.args.device))
        finally:
            self._evaluated = None
        name = f"{metric_key_prefix}_loss"
        if name in found.metrics:
            found.metrics[name] = float(sums[0] / sums[1])
        return found

    def prediction_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own; labels of samples that stand again count for nothing."""
        of = self._evaluated
        if of is None:
            return super().prediction_step(model, inputs, *args, **kwargs)
        size = self.args.eval_batch_size
        left = of.samples - (of.batches * self.args.world_size + self.args.process_index) * size
        of.batches += 1
        targets = {name: inputs[name].clone() for name in ("labels", "shift_labels") if name in inputs}
        for labels in targets.values():
            labels[max(left, 0) :] = IGNORED
        of.count = sum(int((labels != IGNORED).sum()) for labels in [*targets.values()][-1:])
        found = super().prediction_step(model, dict(inputs, **targets), *args, **kwargs)
        if found[0] is not None and of.count:
            of.sums += torch.tensor([float(found[0]) * of.count, of.count])
        return found

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_num_items_in_batch(*args, **kwargs)
        if found is None:
            return None
        if self._evaluated is None:
            return found.clamp(min=1)  # the loss of a step without labels is 0, not NaN
        # What counts in the batch of this process alone, times what the Trainer multiplies the loss by.
        return torch.full_like(
            found, self._evaluated.count * (self.args.world_size if self.args.average_tokens_across_devices else 1)
        )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """The Trainer's own; next to the training loss stand the metrics of the last step, if they are wanted."""
        tracked = self._loader.tracked if self._loader is not None and "loss" in logs else None
        super().log({**logs, **(tracked or {})}, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own; each call is a launch."""
        self._loader = None
        return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """The loader of this process, from sample 0 on; Progress puts it where the checkpoint was."""
        if self.train_dataset is None:
            raise ConfigError("train_dataset", "nothing", "a conceptloader.SampleDataset", "pass it as train_dataset=")
        micro, accumulate = self._train_batch_size, self.args.gradient_accumulation_steps
        batch = micro * accumulate * self.args.world_size
        if self.args.auto_find_batch_size and self._loader is not None and self._loader.trained_here:
            raise ConfigError(
                "auto_find_batch_size",
                f"no memory left at {self._loader.consumed_samples} samples, after which the Trainer "
                f"begins again with {micro} a process: it would train {self._loader.trained_here} of "
                "them twice",
                "a batch that fits in memory",
                f"set per_device_train_batch_size={micro}, and begin again",
            )
        epoch = len(self.train_dataset) // batch * batch
        if not epoch:
            raise ConfigError(
                "train_dataset",
                f"num_samples of {len(self.train_dataset)}",
                f"at least one step, {batch} samples: an epoch would have no step",
                "raise num_samples, or lower per_device_train_batch_size or gradient_accumulation_steps",
            )
        self._loader = loader = _Loader(
            self.train_dataset.blend,
            dp_rank=self.args.process_index,
            dp_size=self.args.world_size,
            micro_batch_size=micro,
            global_batch_size=batch,
            epoch_samples=epoch,
            allow_changed=self._allow_changed,
            check_ranks=True,
        )
        loader.remedy = "Progress, the callback of ConceptTrainer, was removed; leave it in"
        return _Batches(loader, self.data_collator)


class Progress(transformers.TrainerCallback, ExportableState):
    """Puts the loader where the checkpoint says, and its state into the next one. ConceptTrainer brings it along."""

    def __init__(self) -> None:
        self._loader: _Loader | None = None

    def state(self) -> dict[str, Any]:
        """For trainer_state.json."""
        return {"args": {}, "attributes": {} if self._loader is None else {_LEAF: self._loader.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse to start anywhere but where the steps of the Trainer ended."""
        batches = kwargs["train_dataloader"]
        if not isinstance(batches, _Batches):
            raise ConfigError(
                "ConceptTrainer",
                f"a {type(batches).__name__} as train_dataloader",
                "the loader that it was given",
                "omit the get_train_dataloader of this subclass or plugin",
            )
        self._loader = batches.loader
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
        if state.global_step and _LEAF in saved:
            self._loader.load_state_dict(saved[_LEAF])
        self._loader.check_step(state.global_step)
        self._loader.log_start(args.output_dir, state.global_step)
        trained = self._loader.consumed_samples - self._loader.run.count_start
        if trained != state.global_step * self._loader.step_samples:
            raise ConfigError(
                "per_device_train_batch_size x gradient_accumulation_steps x processes",
                f"{self._loader.step_samples} samples a step",
                f"what the run began with: {state.global_step} steps took {trained}",
                "restore per_device_train_batch_size and gradient_accumulation_steps: the Trainer counts "
                "its epochs in steps of one size",
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is trained; the epoch, which the Trainer counts from its own start, is the loader's."""
        loader = self._loader
        assert loader is not None
        loader.acknowledge_step(state.global_step)
        loader.observe_step(args.device)
        state.epoch = (loader.consumed_samples - loader.run.count_start) / (loader.run.epoch_samples or 1)
